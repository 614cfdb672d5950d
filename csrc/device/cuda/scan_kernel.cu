// The scan on the device: one read of every word, one atomic per 64 KiB, and no communication with the host while
// everything is finite.
#include "device/cuda/scan_library.h"

#include <cuda_runtime.h>

#include <new>

#include "device/cuda/scan_body.h"

namespace torchnan::cuda {
namespace {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kStridedBlocks = 1024;

// The memory that the kernels write to.
struct ScannerState {
  Slot* slots;                // on the device
  unsigned long long* first;  // on the device: the lowest number whose limit was exceeded
  volatile uint64_t* alarm;   // in host memory: the same, for the host
};

__device__ uint64_t warp_max(uint64_t value) {
  for (uint32_t lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffff, value, lanes);
    value = value < other ? other : value;
  }
  return value;
}

// Returns the largest value of a block to its first thread.
__device__ uint64_t block_max(uint64_t value) {
  __shared__ uint64_t warps[kThreads / kWarp];
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  if (threadIdx.x >= kWarp) return 0;
  return warp_max(threadIdx.x < kThreads / kWarp ? warps[threadIdx.x] : 0);
}

// Blocks raise the alarm in any order, but the host must end up with the lowest number: after writing a number, a
// thread checks whether a lower one has arrived meanwhile.
__device__ void raise_alarm(const ScannerState& state, uint64_t number) {
  if (atomicMin(state.first, number) <= number) return;
  uint64_t written;
  do {
    written = *static_cast<volatile unsigned long long*>(state.first);
    *state.alarm = written;
    __threadfence_system();
  } while (*static_cast<volatile unsigned long long*>(state.first) < written);
}

__device__ void publish(const ScannerState& state, const Entry& entry, const ScanMaxima& maxima, uint64_t first) {
  const uint64_t max_magnitude = block_max(maxima.max_magnitude);
  const uint64_t max_finite = entry.track_max_finite ? block_max(maxima.max_finite) : 0;
  if (threadIdx.x != 0) return;
  const uint64_t number = first + entry.event_offset;
  auto* slot = reinterpret_cast<unsigned long long*>(&state.slots[number % kSlots]);
  if (max_magnitude != 0) atomicMax(&slot[0], max_magnitude);
  if (max_finite != 0) atomicMax(&slot[1], max_finite);
  if (max_magnitude > entry.limit) raise_alarm(state, number);
}

__global__ void __launch_bounds__(kThreads)
    scan(const __grid_constant__ Table table, ScannerState state, uint64_t first) {
  const uint32_t which = entry_of(table, blockIdx.x);
  const Entry& entry = table.entry[which];
  const ChunkWork work{entry, blockIdx.x - table.first_chunk[which], threadIdx.x};
  publish(state, entry, dispatch_encoding(entry, work), first);
}

__global__ void __launch_bounds__(kThreads)
    scan_strided_entry(const __grid_constant__ StridedEntry strided, ScannerState state, uint64_t number) {
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * kThreads;
  const StridedWork work{strided, static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x, threads};
  publish(state, strided.entry, dispatch_encoding(strided.entry, work), number);
}

__global__ void reset_alarm(ScannerState state) {
  *state.first = kNoAlarm;
  *state.alarm = kNoAlarm;
}

}  // namespace
}  // namespace torchnan::cuda

using torchnan::cuda::kNoAlarm;
using torchnan::cuda::kThreads;
using torchnan::cuda::ScannerState;
using torchnan::cuda::Slot;
using torchnan::cuda::StridedEntry;
using torchnan::cuda::Table;

struct TorchnanScanner {
  int device;
  uint64_t* alarm;  // pinned and mapped
  ScannerState state;
};

namespace {

// Makes a device current until destruction, as c10::DeviceGuard does.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != device) error_ = cudaSetDevice(device);
    moved_ = error_ == cudaSuccess && before_ != device;
  }
  ~DeviceGuard() {
    if (moved_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  bool moved_ = false;
  cudaError_t error_ = cudaSuccess;
};

cudaError_t allocate(TorchnanScanner& scanner) {
  void* seen_by_device = nullptr;
  cudaError_t error = cudaHostAlloc(reinterpret_cast<void**>(&scanner.alarm), sizeof(uint64_t), cudaHostAllocMapped);
  if (error == cudaSuccess) error = cudaHostGetDevicePointer(&seen_by_device, scanner.alarm, 0);
  if (error == cudaSuccess)
    error = cudaMalloc(reinterpret_cast<void**>(&scanner.state.slots), torchnan::cuda::kSlots * sizeof(Slot));
  if (error == cudaSuccess) error = cudaMalloc(reinterpret_cast<void**>(&scanner.state.first), sizeof(uint64_t));
  if (error == cudaSuccess) error = cudaMemset(scanner.state.slots, 0, torchnan::cuda::kSlots * sizeof(Slot));
  if (error == cudaSuccess) error = cudaMemset(scanner.state.first, 0xff, sizeof(uint64_t));
  if (error != cudaSuccess) return error;
  scanner.state.alarm = static_cast<volatile uint64_t*>(seen_by_device);
  *scanner.alarm = kNoAlarm;
  return cudaDeviceSynchronize();
}

}  // namespace

int torchnan_cuda_abi() { return TORCHNAN_CUDA_ABI; }

const char* torchnan_cuda_error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int torchnan_scanner_make(int device, TorchnanScanner** made) {
  const DeviceGuard guard(device);
  if (guard.error() != cudaSuccess) return guard.error();
  auto* scanner = new (std::nothrow) TorchnanScanner{device, nullptr, {nullptr, nullptr, nullptr}};
  if (scanner == nullptr) return cudaErrorMemoryAllocation;
  const cudaError_t error = allocate(*scanner);
  if (error != cudaSuccess) {
    torchnan_scanner_free(scanner);
    return error;
  }
  *made = scanner;
  return cudaSuccess;
}

int torchnan_scanner_free(TorchnanScanner* scanner) {
  const DeviceGuard guard(scanner->device);
  const cudaError_t error = guard.error() == cudaSuccess ? cudaDeviceSynchronize() : guard.error();
  cudaFree(scanner->state.slots);
  cudaFree(scanner->state.first);
  cudaFreeHost(scanner->alarm);
  delete scanner;
  return error;
}

const volatile uint64_t* torchnan_scanner_alarm(const TorchnanScanner* scanner) { return scanner->alarm; }

int torchnan_scan(TorchnanScanner* scanner, const Table* table, uint64_t first, void* stream) {
  const DeviceGuard guard(scanner->device);
  if (guard.error() != cudaSuccess) return guard.error();
  const uint32_t blocks = table->first_chunk[table->entries];
  if (blocks == 0) return cudaSuccess;
  torchnan::cuda::scan<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*table, scanner->state, first);
  return cudaGetLastError();
}

int torchnan_scan_strided(TorchnanScanner* scanner, const StridedEntry* strided, uint64_t number, void* stream) {
  const DeviceGuard guard(scanner->device);
  if (guard.error() != cudaSuccess) return guard.error();
  torchnan::cuda::
      scan_strided_entry<<<torchnan::cuda::kStridedBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
          *strided, scanner->state, number);
  return cudaGetLastError();
}

int torchnan_scanner_clear(TorchnanScanner* scanner, uint32_t first, uint32_t count, void* stream) {
  const DeviceGuard guard(scanner->device);
  if (guard.error() != cudaSuccess) return guard.error();
  return cudaMemsetAsync(scanner->state.slots + first, 0, count * sizeof(Slot), static_cast<cudaStream_t>(stream));
}

int torchnan_scanner_reset_alarm(TorchnanScanner* scanner, void* stream) {
  const DeviceGuard guard(scanner->device);
  if (guard.error() != cudaSuccess) return guard.error();
  torchnan::cuda::reset_alarm<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(scanner->state);
  return cudaGetLastError();
}

int torchnan_scanner_read(TorchnanScanner* scanner, uint32_t first, uint32_t count, Slot* slots, void* stream) {
  const DeviceGuard guard(scanner->device);
  if (guard.error() != cudaSuccess) return guard.error();
  const auto queue = static_cast<cudaStream_t>(stream);
  const cudaError_t error =
      cudaMemcpyAsync(slots, scanner->state.slots + first, count * sizeof(Slot), cudaMemcpyDeviceToHost, queue);
  return error == cudaSuccess ? cudaStreamSynchronize(queue) : error;
}

int torchnan_is_capturing(void* stream, int* capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  *capturing = status != cudaStreamCaptureStatusNone ? 1 : 0;
  return error;
}
