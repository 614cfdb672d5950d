// The scan on the device: one read of every word, one atomic operation per 16 or 64 KiB, and no communication with the
// host while everything is finite. Tests compile it for the host too, so kernels are launched by a function.
#include "device/cuda/scan_library.h"

#include "device/cuda/gpu_runtime.h"

#include <new>

#include "device/cuda/copy_body.h"
#include "device/cuda/scan_body.h"

namespace torchnan::cuda {
namespace {

constexpr uint64_t kMaxStridedBlocks = 1024;
constexpr uint64_t kStridedWords = 4 * kThreads;  // per block, if there are not too many

// The memory that the kernels write to.
struct ScannerState {
  Slot* slots;                // on the device
  unsigned long long* first;  // on the device: the lowest number whose limit was exceeded
  volatile HostWords* words;  // in host memory: the same, for the host
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

// The host must end up with the number on the device: after writing one, a thread checks whether another has arrived
// meanwhile.
__device__ void publish_alarm(const ScannerState& state) {
  __threadfence();
  uint64_t written;
  do {
    written = *static_cast<volatile unsigned long long*>(state.first);
    state.words->alarm = written;
    __threadfence_system();
  } while (*static_cast<volatile unsigned long long*>(state.first) != written);
}

// Blocks raise the alarm in any order; the lowest number wins.
__device__ void raise_alarm(const ScannerState& state, uint64_t number) {
  if (atomicMin(state.first, number) > number) publish_alarm(state);
}

__device__ void publish(const ScannerState& state, const Entry& entry, uint64_t of_thread, uint64_t first) {
  const uint64_t max_magnitude = block_max(of_thread);
  if (threadIdx.x != 0 || max_magnitude == 0) return;
  const uint64_t number = first + entry.event_offset;
  atomicMax(reinterpret_cast<unsigned long long*>(&state.slots[number % kSlots].max_magnitude), max_magnitude);
  if (max_magnitude > entry.limit) raise_alarm(state, number);
}

__global__ void __launch_bounds__(kThreads)
    scan(const __grid_constant__ Table table, ScannerState state, uint64_t first) {
  for_each_entry(table, blockIdx.x, threadIdx.x, [&](const Entry& entry, const ChunkWork& work) {
    publish(state, entry, dispatch_encoding(entry, work), first);
  });
}

__global__ void __launch_bounds__(kThreads)
    scan_strided_entry(const __grid_constant__ StridedEntry strided, ScannerState state, uint64_t number) {
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * kThreads;
  const StridedWork work{strided, static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x, threads};
  publish(state, strided.entry, dispatch_encoding(strided.entry, work), number);
}

// The share of this thread in all copies of a table.
__device__ void copy(const CopyTable& table) {
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * kThreads;
  for (uint32_t i = 0; i < table.entries; ++i) copy_share(table.entry[i], thread, threads);
}

// A block that sees no alarm copies nothing, and is not counted.
__global__ void __launch_bounds__(kThreads)
    copy_if_alarmed(const __grid_constant__ CopyTable table, ScannerState state, uint32_t number) {
  __shared__ bool is_alarmed;
  if (threadIdx.x == 0) is_alarmed = *static_cast<volatile unsigned long long*>(state.first) != kNoAlarm;
  __syncthreads();
  if (!is_alarmed) return;
  copy(table);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(const_cast<uint32_t*>(&state.words->copied_blocks[number % kCopyLaunches]), 1u);
}

// Each block reads the numbers itself. They stay as they are while it runs.
__global__ void __launch_bounds__(kThreads)
    copy_if_nonfinite(const __grid_constant__ CopyTable table, const __grid_constant__ Numbers numbers) {
  __shared__ bool is_bad;
  if (threadIdx.x == 0) is_bad = false;
  __syncthreads();
  if (finds_nonfinite(numbers, threadIdx.x, kThreads)) is_bad = true;
  __syncthreads();
  if (is_bad) copy(table);
}

// A lower number that has arrived since then is a new alarm.
__global__ void reset_alarm(ScannerState state, unsigned long long handled) {
  atomicCAS(state.first, handled, kNoAlarm);
  publish_alarm(state);
  state.words->resets = state.words->resets + 1;
}

}  // namespace
}  // namespace torchnan::cuda

using torchnan::cuda::CopyTable;
using torchnan::cuda::HostWords;
using torchnan::cuda::kNoAlarm;
using torchnan::cuda::kThreads;
using torchnan::cuda::Numbers;
using torchnan::cuda::ScannerState;
using torchnan::cuda::Slot;
using torchnan::cuda::StridedEntry;
using torchnan::cuda::Table;

struct TorchnanScanner {
  HostWords* words = nullptr;  // pinned and mapped
  ScannerState state{};
  cudaStream_t stream = nullptr;  // does not wait for the default stream
};

namespace {

static_assert(cudaErrorMemoryAllocation == TORCHNAN_OUT_OF_MEMORY);

// Returns the error of a call of the scan. CUDA also keeps it for cudaGetLastError(), where the program would take it
// for its own.
int own(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

// Lets this thread allocate, wait, and use its own stream while streams are being captured, by it or by others. A
// capture in the mode that PyTorch uses would otherwise fail.
class CaptureModeGuard {
 public:
  CaptureModeGuard() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~CaptureModeGuard() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  CaptureModeGuard(const CaptureModeGuard&) = delete;
  CaptureModeGuard& operator=(const CaptureModeGuard&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Loads the kernels now, because the first launch of a kernel may wait for the device. Fails if they have no code for
// the device.
cudaError_t load_kernels() {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, torchnan::cuda::scan);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, torchnan::cuda::scan_strided_entry);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, torchnan::cuda::copy_if_alarmed);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, torchnan::cuda::copy_if_nonfinite);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, torchnan::cuda::reset_alarm);
  return error;
}

// Returns the error of this launch. cudaGetLastError() would return an earlier one of the program, and clear it.
template <typename Kernel>
cudaError_t launch(Kernel* kernel, uint32_t blocks, void** arguments, void* stream) {
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(kThreads), arguments, 0, static_cast<cudaStream_t>(stream));
}

cudaError_t allocate(TorchnanScanner& scanner) {
  ScannerState& state = scanner.state;
  void* seen_by_device = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&scanner.stream, cudaStreamNonBlocking);
  if (error == cudaSuccess)
    error = cudaHostAlloc(reinterpret_cast<void**>(&scanner.words), sizeof(HostWords), cudaHostAllocMapped);
  if (error == cudaSuccess) error = cudaHostGetDevicePointer(&seen_by_device, scanner.words, 0);
  if (error == cudaSuccess)
    error = cudaMalloc(reinterpret_cast<void**>(&state.slots), torchnan::cuda::kSlots * sizeof(Slot));
  if (error == cudaSuccess) error = cudaMalloc(reinterpret_cast<void**>(&state.first), sizeof(uint64_t));
  if (error == cudaSuccess)
    error = cudaMemsetAsync(state.slots, 0, torchnan::cuda::kSlots * sizeof(Slot), scanner.stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(state.first, 0xff, sizeof(uint64_t), scanner.stream);
  if (error != cudaSuccess) return error;
  state.words = static_cast<volatile HostWords*>(seen_by_device);
  *scanner.words = {kNoAlarm, 0, {}};
  return cudaStreamSynchronize(scanner.stream);
}

}  // namespace

int torchnan_cuda_abi() { return TORCHNAN_CUDA_ABI; }

const char* torchnan_cuda_error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int torchnan_scanner_make(int, TorchnanScanner** made) {
  const CaptureModeGuard captures_go_on;
  cudaError_t error = load_kernels();
  if (error != cudaSuccess) return own(error);
  auto* scanner = new (std::nothrow) TorchnanScanner;
  if (scanner == nullptr) return cudaErrorMemoryAllocation;
  error = allocate(*scanner);
  if (error != cudaSuccess) {
    torchnan_scanner_free(scanner);
    return own(error);
  }
  *made = scanner;
  return cudaSuccess;
}

int torchnan_scanner_free(TorchnanScanner* scanner) {
  const cudaError_t error = cudaDeviceSynchronize();
  cudaFree(scanner->state.slots);
  cudaFree(scanner->state.first);
  cudaFreeHost(scanner->words);
  if (scanner->stream != nullptr) cudaStreamDestroy(scanner->stream);
  delete scanner;
  return error;
}

const volatile HostWords* torchnan_scanner_words(const TorchnanScanner* scanner) { return scanner->words; }

int torchnan_scan(TorchnanScanner* scanner, const Table* table, uint64_t first, void* stream) {
  const uint32_t chunks = table->first_chunk[table->entries];
  if (chunks == 0) return cudaSuccess;
  void* arguments[] = {const_cast<Table*>(table), &scanner->state, &first};
  return own(launch(torchnan::cuda::scan, torchnan::cuda::blocks_for(chunks), arguments, stream));
}

int torchnan_scan_strided(TorchnanScanner* scanner, const StridedEntry* strided, uint64_t number, void* stream) {
  const uint64_t wanted = torchnan::cuda::words_of(*strided) / torchnan::cuda::kStridedWords + 1;
  const uint64_t most = torchnan::cuda::kMaxStridedBlocks;
  void* arguments[] = {const_cast<StridedEntry*>(strided), &scanner->state, &number};
  return own(launch(torchnan::cuda::scan_strided_entry, static_cast<uint32_t>(wanted < most ? wanted : most), arguments,
                    stream));
}

// Managed memory gets pages where and when they are first written, if the device can fault.
int torchnan_reserve(TorchnanScanner*, uint64_t bytes, void** reserved) {
  const CaptureModeGuard captures_go_on;
  int device = 0, gets_pages_late = 0;
  *reserved = nullptr;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&gets_pages_late, cudaDevAttrConcurrentManagedAccess, device);
  if (error == cudaSuccess && gets_pages_late != 0) error = cudaMallocManaged(reserved, bytes);
  return own(error);
}

int torchnan_copy_if_alarmed(TorchnanScanner* scanner, const CopyTable* table, uint32_t number, void* stream) {
  scanner->words->copied_blocks[number % torchnan::cuda::kCopyLaunches] = 0;
  void* arguments[] = {const_cast<CopyTable*>(table), &scanner->state, &number};
  return own(launch(torchnan::cuda::copy_if_alarmed, torchnan::cuda::kCopyBlocks, arguments, stream));
}

int torchnan_copy_if_nonfinite(const CopyTable* table, const Numbers* numbers, void* stream) {
  void* arguments[] = {const_cast<CopyTable*>(table), const_cast<Numbers*>(numbers)};
  return own(launch(torchnan::cuda::copy_if_nonfinite, torchnan::cuda::kCopyBlocks, arguments, stream));
}

int torchnan_record_mark(TorchnanScanner*, void* stream, void** mark) {
  const CaptureModeGuard captures_go_on;
  auto* event = static_cast<cudaEvent_t>(*mark);
  if (event == nullptr) {
    const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error != cudaSuccess) return own(error);
    *mark = event;
  }
  return own(cudaEventRecord(event, static_cast<cudaStream_t>(stream)));
}

int torchnan_follow_mark(void* mark, void* stream) {
  const CaptureModeGuard captures_go_on;
  return own(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(mark), 0));
}

void* torchnan_scanner_stream(const TorchnanScanner* scanner) { return scanner->stream; }

int torchnan_scanner_clear(TorchnanScanner* scanner, uint32_t first, uint32_t count, void* stream) {
  const CaptureModeGuard captures_go_on;
  return own(cudaMemsetAsync(scanner->state.slots + first, 0, count * sizeof(Slot), static_cast<cudaStream_t>(stream)));
}

int torchnan_scanner_reset_alarm(TorchnanScanner* scanner, uint64_t handled) {
  const CaptureModeGuard captures_go_on;
  void* arguments[] = {&scanner->state, &handled};
  return own(cudaLaunchKernel(torchnan::cuda::reset_alarm, dim3(1), dim3(1), arguments, 0, scanner->stream));
}

int torchnan_scanner_read(TorchnanScanner* scanner, uint32_t first, uint32_t count, Slot* slots) {
  const CaptureModeGuard captures_go_on;
  cudaError_t error = cudaSuccess;
  if (count > 0) {
    error = cudaMemcpyAsync(slots, scanner->state.slots + first, count * sizeof(Slot), cudaMemcpyDeviceToHost,
                            scanner->stream);
  }
  return own(error == cudaSuccess ? cudaStreamSynchronize(scanner->stream) : error);
}

int torchnan_is_capturing(void* stream, int* capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  *capturing = status != cudaStreamCaptureStatusNone ? 1 : 0;
  return own(error);
}
