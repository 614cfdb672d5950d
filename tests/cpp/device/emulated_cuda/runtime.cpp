#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace torchnan::emulated {

Index thread_index{};
Index block_index{};
Index grid_size{};
Counts counts{};
int refused_launches = 0;
cudaError_t last_error = cudaSuccess;

namespace {

constexpr uint32_t kWarp = 32;
constexpr size_t kStack = 1 << 16;

enum class Point { kStart, kBarrier, kShuffle, kEnd };

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStack);
  Point point = Point::kStart;
  std::array<uint64_t, 2> offered{};  // for the last two shuffles
  uint32_t shuffles = 0;
};

std::vector<Thread>& threads = *new std::vector<Thread>;
ucontext_t scheduler;
void (*thread_body)(void*) = nullptr;
void* thread_kernel = nullptr;

void stop_at(Point point) {
  Thread& thread = threads[thread_index.x];
  thread.point = point;
  swapcontext(&thread.context, &scheduler);
}

void begin_thread() {
  thread_body(thread_kernel);
  stop_at(Point::kEnd);
}

bool all_wait_at_barrier() {
  return std::all_of(threads.begin(), threads.end(),
                     [](const Thread& t) { return t.point == Point::kBarrier || t.point == Point::kEnd; });
}

void require_whole_warps() {
  for (size_t i = 0; i < threads.size(); ++i) {
    if (threads[i].shuffles == threads[i / kWarp * kWarp].shuffles) continue;
    fputs("emulated CUDA: a part of a warp shuffles\n", stderr);
    abort();
  }
}

void run_block(uint32_t count) {
  threads.resize(count);
  for (Thread& thread : threads) {
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, &begin_thread, 0);
    thread.point = Point::kStart;
    thread.shuffles = 0;
  }
  for (uint32_t running = count; running > 0;) {
    running = 0;
    const bool is_barrier_open = all_wait_at_barrier();
    for (uint32_t i = 0; i < count; ++i) {
      if (threads[i].point == Point::kEnd) continue;
      if (threads[i].point == Point::kBarrier && !is_barrier_open) {
        ++running;
        continue;
      }
      thread_index.x = i;
      swapcontext(&scheduler, &threads[i].context);
      if (threads[i].point != Point::kEnd) ++running;
    }
    require_whole_warps();
  }
}

}  // namespace

void wait_for_block() { stop_at(Point::kBarrier); }

uint64_t exchange(uint64_t value, uint32_t lanes) {
  const uint32_t me = thread_index.x;
  Thread& thread = threads[me];
  const uint32_t turn = thread.shuffles++ % 2;
  thread.offered[turn] = value;
  stop_at(Point::kShuffle);
  return threads[me ^ lanes].offered[turn];
}

void run_grid(uint32_t blocks, uint32_t threads_of_block, void (*body)(void*), void* kernel) {
  thread_body = body;
  thread_kernel = kernel;
  grid_size.x = blocks;
  for (block_index.x = 0; block_index.x < blocks; ++block_index.x) run_block(threads_of_block);
}

}  // namespace torchnan::emulated

using torchnan::emulated::counts;

namespace {

cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

cudaError_t allocate(void** memory, size_t bytes) {
  *memory = malloc(bytes);
  memset(*memory, 0x5a, bytes);  // memory of a device is not cleared
  ++counts.allocations;
  return cudaSuccess;
}

cudaError_t release(void* memory) {
  if (memory != nullptr) --counts.allocations;
  free(memory);
  return cudaSuccess;
}

}  // namespace

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchOutOfResources ? "too many resources requested for launch" : "an error";
}
cudaError_t cudaGetLastError() { return std::exchange(torchnan::emulated::last_error, cudaSuccess); }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(capture_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return allocate(reinterpret_cast<void**>(stream), 1);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return release(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return allocate(reinterpret_cast<void**>(event), 1);
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) { return allocate(memory, bytes); }
cudaError_t cudaHostGetDevicePointer(void** on_device, void* on_host, unsigned) {
  *on_device = on_host;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) { return release(memory); }
cudaError_t emulated_malloc(void** memory, size_t bytes) { return allocate(memory, bytes); }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}
cudaError_t cudaMallocManaged(void** memory, size_t bytes) { return allocate(memory, bytes); }
cudaError_t cudaFree(void* memory) { return release(memory); }
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t) {
  memset(memory, byte, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  memcpy(to, from, bytes);
  return cudaSuccess;
}
