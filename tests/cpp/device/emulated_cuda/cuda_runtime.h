// A host in place of a GPU, so that scan_kernel.cu can be compiled as C++ and run in tests: what it uses of CUDA.
//
// Blocks run one after the other. The threads of a block are contexts that take turns: each runs to its next barrier or
// shuffle, and goes on when all have got there. Work on streams is done at once.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <algorithm>
#include <utility>

#define __global__
#define __device__
#define __shared__ static  // one block runs at a time
#define __grid_constant__
#define __launch_bounds__(threads)

struct dim3 {
  explicit dim3(uint32_t count) : x(count) {}
  uint32_t x;
};

namespace torchnan::emulated {

struct Index {
  uint32_t x;
};

extern Index thread_index;
extern Index block_index;
extern Index grid_size;

// A point that all threads of a block reach before one of them goes on.
void wait_for_block();
// Returns the value of the thread of the same warp whose index differs in the bits `lanes`.
uint64_t exchange(uint64_t value, uint32_t lanes);

// Runs `body` as each thread of each block.
void run_grid(uint32_t blocks, uint32_t threads, void (*body)(void* kernel), void* kernel);

// What the program under test has done.
struct Counts {
  int launches;
  int allocations;  // that have not been freed
  uint32_t blocks;  // of the last launch
};
extern Counts counts;
extern int refused_launches;  // how many of the next launches fail

}  // namespace torchnan::emulated

#define threadIdx ::torchnan::emulated::thread_index
#define blockIdx ::torchnan::emulated::block_index
#define gridDim ::torchnan::emulated::grid_size

inline void __syncthreads() { torchnan::emulated::wait_for_block(); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline uint64_t __shfl_xor_sync(uint32_t, uint64_t value, uint32_t lanes) {
  return torchnan::emulated::exchange(value, lanes);
}

using DeviceWord = unsigned long long;
inline DeviceWord atomicMax(DeviceWord* word, DeviceWord value) { return std::exchange(*word, std::max(*word, value)); }
inline DeviceWord atomicMin(DeviceWord* word, DeviceWord value) { return std::exchange(*word, std::min(*word, value)); }
inline DeviceWord atomicCAS(DeviceWord* word, DeviceWord expected, DeviceWord value) {
  return std::exchange(*word, *word == expected ? value : *word);
}

inline uint32_t atomicAdd(uint32_t* word, uint32_t value) { return std::exchange(*word, *word + value); }

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorLaunchOutOfResources = 701 };
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaMemcpyKind { cudaMemcpyDeviceToHost };
constexpr unsigned cudaStreamNonBlocking = 1, cudaHostAllocMapped = 2, cudaEventDisableTiming = 2;
using cudaStream_t = struct EmulatedStream*;
using cudaEvent_t = struct EmulatedEvent*;
struct cudaFuncAttributes {};

namespace torchnan::emulated {
extern cudaError_t last_error;
}

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaHostGetDevicePointer(void** on_device, void* on_host, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t emulated_malloc(void** memory, size_t bytes);
enum cudaDeviceAttr { cudaDevAttrConcurrentManagedAccess };
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMallocManaged(void** memory, size_t bytes);
template <typename T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
  return emulated_malloc(reinterpret_cast<void**>(memory), bytes);
}
cudaError_t cudaFree(void* memory);
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);

template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel*) {
  return cudaSuccess;
}

template <typename... Arguments>
cudaError_t cudaLaunchKernel(void (*kernel)(Arguments...), dim3 grid, dim3 block, void** arguments, size_t,
                             cudaStream_t) {
  using torchnan::emulated::counts;
  if (torchnan::emulated::refused_launches > 0) {
    --torchnan::emulated::refused_launches;
    return torchnan::emulated::last_error = cudaErrorLaunchOutOfResources;
  }
  ++counts.launches;
  counts.blocks = grid.x;
  auto call = [&]<size_t... kAt>(std::index_sequence<kAt...>) {
    auto body = [&] { kernel(*static_cast<Arguments*>(arguments[kAt])...); };
    torchnan::emulated::run_grid(grid.x, block.x, [](void* each) { (*static_cast<decltype(body)*>(each))(); }, &body);
  };
  call(std::index_sequence_for<Arguments...>());
  return cudaSuccess;
}
