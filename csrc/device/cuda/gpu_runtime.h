// The runtime that the kernel library calls: CUDA, or HIP under the same names.
#pragma once

#if defined(__HIP__)

#include <hip/hip_runtime.h>

#define __grid_constant__  // HIP passes arguments of a kernel in constant memory

// Coherent, so that the host sees what a running kernel writes.
#define cudaHostAlloc(memory, bytes, flags) hipHostMalloc(memory, bytes, (flags) | hipHostMallocCoherent)
#define cudaHostAllocMapped hipHostMallocMapped
#define cudaLaunchKernel(kernel, ...) hipLaunchKernel(reinterpret_cast<const void*>(kernel), __VA_ARGS__)
#define cudaFuncGetAttributes(found, kernel) hipFuncGetAttributes(found, reinterpret_cast<const void*>(kernel))
// Shuffles the lanes of each group of kWarp: a wavefront may have twice as many.
#define __shfl_xor_sync(lanes, value, mask) __shfl_xor(value, mask, 32)

#define cudaDevAttrConcurrentManagedAccess hipDeviceAttributeConcurrentManagedAccess
#define cudaDeviceGetAttribute hipDeviceGetAttribute
#define cudaDeviceSynchronize hipDeviceSynchronize
#define cudaErrorMemoryAllocation hipErrorOutOfMemory
#define cudaError_t hipError_t
#define cudaEventCreateWithFlags hipEventCreateWithFlags
#define cudaEventDisableTiming hipEventDisableTiming
#define cudaEventRecord hipEventRecord
#define cudaEvent_t hipEvent_t
#define cudaFree hipFree
#define cudaFreeHost hipHostFree
#define cudaFuncAttributes hipFuncAttributes
#define cudaGetDevice hipGetDevice
#define cudaGetErrorString hipGetErrorString
#define cudaGetLastError hipGetLastError
#define cudaHostGetDevicePointer hipHostGetDevicePointer
#define cudaMalloc hipMalloc
#define cudaMallocManaged hipMallocManaged
#define cudaMemcpyAsync hipMemcpyAsync
#define cudaMemcpyDeviceToHost hipMemcpyDeviceToHost
#define cudaMemsetAsync hipMemsetAsync
#define cudaStreamCaptureMode hipStreamCaptureMode
#define cudaStreamCaptureModeRelaxed hipStreamCaptureModeRelaxed
#define cudaStreamCaptureStatus hipStreamCaptureStatus
#define cudaStreamCaptureStatusNone hipStreamCaptureStatusNone
#define cudaStreamCreateWithFlags hipStreamCreateWithFlags
#define cudaStreamDestroy hipStreamDestroy
#define cudaStreamIsCapturing hipStreamIsCapturing
#define cudaStreamNonBlocking hipStreamNonBlocking
#define cudaStreamSynchronize hipStreamSynchronize
#define cudaStreamWaitEvent hipStreamWaitEvent
#define cudaStream_t hipStream_t
#define cudaSuccess hipSuccess
#define cudaThreadExchangeStreamCaptureMode hipThreadExchangeStreamCaptureMode

#else

#include <cuda_runtime.h>

#endif
