// The interface of the kernel library, which nvcc builds and which is loaded at run time. It needs a driver only when
// used.
//
// A scanner belongs to one device. Nothing here waits for the device except scanner_read() and scanner_free(). All
// functions return 0, or an error that error_text() explains.
#pragma once

#include <stdint.h>

#include <torchnan/export.h>

#include "device/cuda/scan_table.h"

#define TORCHNAN_CUDA_ABI 1

extern "C" {

struct TorchnanScanner;

// Returns TORCHNAN_CUDA_ABI of the build, for the loader to compare.
TORCHNAN_API int torchnan_cuda_abi();
TORCHNAN_API const char* torchnan_cuda_error_text(int error);

// Allocates kSlots slots on the device, cleared, and one word of host memory that the device can write to.
TORCHNAN_API int torchnan_scanner_make(int device, TorchnanScanner** made);
// Waits for the launched kernels.
TORCHNAN_API int torchnan_scanner_free(TorchnanScanner* scanner);

// Returns the alarm (see kNoAlarm). Reading it is one load; the value lags as far as the device is behind the host.
TORCHNAN_API const volatile uint64_t* torchnan_scanner_alarm(const TorchnanScanner* scanner);

// Queues scans on a stream of the device; may be captured. The tensors must live until the stream has executed it. The
// first entry of the launch has number `first`.
TORCHNAN_API int torchnan_scan(TorchnanScanner* scanner, const torchnan::cuda::Table* table, uint64_t first,
                               void* stream);
TORCHNAN_API int torchnan_scan_strided(TorchnanScanner* scanner, const torchnan::cuda::StridedEntry* strided,
                                       uint64_t number, void* stream);

// Queue the clearing of slots, and of the alarm.
TORCHNAN_API int torchnan_scanner_clear(TorchnanScanner* scanner, uint32_t first, uint32_t count, void* stream);
TORCHNAN_API int torchnan_scanner_reset_alarm(TorchnanScanner* scanner, void* stream);

// Copies slots to the host in stream order, and waits for the copy. Without slots it only waits.
TORCHNAN_API int torchnan_scanner_read(TorchnanScanner* scanner, uint32_t first, uint32_t count,
                                       torchnan::cuda::Slot* slots, void* stream);

// Whether the stream is being captured into a graph.
TORCHNAN_API int torchnan_is_capturing(void* stream, int* capturing);

}  // extern "C"
