// The kernel library's doors. It is built by nvcc, found at run time, and needs a driver only when it is used.
//
// A scanner belongs to one device. Nothing here waits for the device except scanner_read() and scanner_free(). All
// functions return 0, or an error that error_text() tells.
#pragma once

#include <stdint.h>

#include <torchnan/export.h>

#include "device/cuda/scan_table.h"

#define TORCHNAN_CUDA_ABI 1

extern "C" {

struct TorchnanScanner;

// TORCHNAN_CUDA_ABI of the build, for whoever loads it.
TORCHNAN_API int torchnan_cuda_abi();
TORCHNAN_API const char* torchnan_cuda_error_text(int error);

// Allocates kSlots slots on the device, cleared, and one word of host memory that the device can write to.
TORCHNAN_API int torchnan_scanner_make(int device, TorchnanScanner** made);
// Waits for what was launched.
TORCHNAN_API int torchnan_scanner_free(TorchnanScanner* scanner);

// The alarm (see kNoAlarm). One load; the value may be late by as much as the device is behind the host.
TORCHNAN_API const volatile uint64_t* torchnan_scanner_alarm(const TorchnanScanner* scanner);

// Queues scans on a stream of the device; may be captured. The tensors must live until the stream has come there. The
// first entry of the launch has number `first`.
TORCHNAN_API int torchnan_scan(TorchnanScanner* scanner, const torchnan::cuda::Table* table, uint64_t first,
                               void* stream);
TORCHNAN_API int torchnan_scan_strided(TorchnanScanner* scanner, const torchnan::cuda::StridedEntry* strided,
                                       uint64_t number, void* stream);

// Queues the clearing of slots, and of the alarm.
TORCHNAN_API int torchnan_scanner_clear(TorchnanScanner* scanner, uint32_t first, uint32_t count, void* stream);
TORCHNAN_API int torchnan_scanner_reset_alarm(TorchnanScanner* scanner, void* stream);

// Copies slots to the host, when the stream has come here, and waits for that. Of no slots: only waits.
TORCHNAN_API int torchnan_scanner_read(TorchnanScanner* scanner, uint32_t first, uint32_t count,
                                       torchnan::cuda::Slot* slots, void* stream);

// Whether the stream is being captured into a graph.
TORCHNAN_API int torchnan_is_capturing(void* stream, int* capturing);

}  // extern "C"
