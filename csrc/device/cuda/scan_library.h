// The interface of the kernel library, which nvcc builds and which is loaded at run time. It needs a driver only when
// it is used.
//
// A scanner belongs to one device, which the caller makes current, and has a separate stream. Only scanner_read() and
// scanner_free() wait for the device. All functions return 0, or an error that error_text() explains.
#pragma once

#include <stdint.h>

#include <torchnan/export.h>

#include "device/cuda/scan_table.h"

#define TORCHNAN_CUDA_ABI 6

// What torchnan_scanner_make() returns for lack of memory: that of CUDA. A later call may succeed.
#define TORCHNAN_OUT_OF_MEMORY 2

extern "C" {

struct TorchnanScanner;

// Returns TORCHNAN_CUDA_ABI of the build, for the loader to compare.
TORCHNAN_API int torchnan_cuda_abi();
TORCHNAN_API const char* torchnan_cuda_error_text(int error);

// Allocates kSlots cleared slots on the device, and the words of host memory that the device can write to. May be
// called while streams are being captured. Fails if the kernels have no code for the device.
TORCHNAN_API int torchnan_scanner_make(int device, TorchnanScanner** made);
// Waits for the launched kernels.
TORCHNAN_API int torchnan_scanner_free(TorchnanScanner* scanner);

// Returns the words that the host polls. Reading them is one load; they lag behind as far as the device is behind the
// host.
TORCHNAN_API const volatile torchnan::cuda::HostWords* torchnan_scanner_words(const TorchnanScanner* scanner);

// Queues scans on a stream of the device; may be captured. The tensors must live until the stream has executed it. The
// first entry of the launch has number `first`.
TORCHNAN_API int torchnan_scan(TorchnanScanner* scanner, const torchnan::cuda::Table* table, uint64_t first,
                               void* stream);
TORCHNAN_API int torchnan_scan_strided(TorchnanScanner* scanner, const torchnan::cuda::StridedEntry* strided,
                                       uint64_t number, void* stream);

// Reserves memory of the device that takes none before something is written there; sets null if the device has none of
// this kind. It lives as long as the process.
TORCHNAN_API int torchnan_reserve(TorchnanScanner* scanner, uint64_t bytes, void** reserved);

// Queues copies on a stream, which must not be captured. They are made only if the alarm has been raised by then.
TORCHNAN_API int torchnan_copy_if_alarmed(TorchnanScanner* scanner, const torchnan::cuda::CopyTable* table,
                                          uint32_t number, void* stream);

// The same, made only if one of the numbers is not finite then. The stream must not be captured.
TORCHNAN_API int torchnan_copy_if_nonfinite(const torchnan::cuda::CopyTable* table,
                                            const torchnan::cuda::Numbers* numbers, void* stream);

// Records how far a stream has come, in a mark. If `*mark` is null, it creates one, which lives as long as the process.
// The stream must not be captured.
TORCHNAN_API int torchnan_record_mark(TorchnanScanner* scanner, void* stream, void** mark);

// Makes a stream wait for another one to reach a mark. Neither may be captured.
TORCHNAN_API int torchnan_follow_mark(void* mark, void* stream);

// Queues the clearing of slots on a stream, which must not be captured.
TORCHNAN_API int torchnan_scanner_clear(TorchnanScanner* scanner, uint32_t first, uint32_t count, void* stream);

// The following run on the scanner's own stream, which the first returns. It is never captured.
TORCHNAN_API void* torchnan_scanner_stream(const TorchnanScanner* scanner);
// Resets the alarm if it is still `handled`, and counts the reset in either case.
TORCHNAN_API int torchnan_scanner_reset_alarm(TorchnanScanner* scanner, uint64_t handled);
// Copies slots to the host, and waits for the copy.
TORCHNAN_API int torchnan_scanner_read(TorchnanScanner* scanner, uint32_t first, uint32_t count,
                                       torchnan::cuda::Slot* slots);

// Whether the stream is being captured into a graph.
TORCHNAN_API int torchnan_is_capturing(void* stream, int* capturing);

}  // extern "C"
