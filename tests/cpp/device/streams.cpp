// Streams of the lagging device: queues, events, capture, the guard by which PyTorch knows them.
#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/version.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/Exception.h>

#include "device/lagging_device.h"

namespace torchnan::lagging {
namespace {

using Work = std::function<void()>;

struct Queue {
  std::deque<Work> work;
  bool capturing = false;
  std::deque<Work> captured;
  std::thread::id runner;  // the thread that runs its work, if any
  int depth = 0;
};

// Held while queues change, never while work runs: that may need the GIL.
std::mutex& mutex = *new std::mutex;
std::condition_variable& idle = *new std::condition_variable;

// By device and stream.
std::array<std::vector<std::unique_ptr<Queue>>, kDevices>& queues =
    *new std::array<std::vector<std::unique_ptr<Queue>>, kDevices>;
std::vector<std::unique_ptr<Queue>>& own_queues = *new std::vector<std::unique_ptr<Queue>>;
Counts& counted = *new Counts;
thread_local c10::DeviceIndex current_index = 0;
thread_local std::array<c10::StreamId, kDevices> current_stream{};

c10::Stream stream_of(c10::Device device, c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device, id); }

Queue& queue_of(c10::DeviceIndex device, c10::StreamId stream) {
  const std::lock_guard lock(mutex);
  auto& of_device = queues[device];
  while (of_device.size() <= static_cast<size_t>(stream)) of_device.push_back(std::make_unique<Queue>());
  return *of_device[stream];
}

Queue& queue_of(c10::Stream stream) { return queue_of(stream.device_index(), stream.id()); }

// Runs the first operation. Returns false if there is none.
bool run_first(Queue& queue) {
  Work work;
  {
    std::unique_lock lock(mutex);
    const auto here = std::this_thread::get_id();
    idle.wait(lock, [&] { return queue.depth == 0 || queue.runner == here; });
    if (queue.work.empty()) return false;
    work = std::move(queue.work.front());
    queue.work.pop_front();
    queue.runner = here;
    ++queue.depth;
  }
  const auto finish = c10::make_scope_exit([&] {
    const std::lock_guard lock(mutex);
    --queue.depth;
    idle.notify_all();
  });
  work();
  return true;
}

void run(Queue& queue, int64_t max_items) {
  for (int64_t i = 0; i < max_items && run_first(queue); ++i) {
  }
}

struct Event {
  Queue* queue = nullptr;
  std::shared_ptr<std::atomic<bool>> has_happened;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    current_index = device.index();
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_index}; }
  void setDevice(c10::Device device) const override { current_index = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_index = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return stream_of(device, current_stream[device.index()]); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override { return new_stream(device.index()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return new_stream(device.index()); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &queue_of(stream); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  // An event has happened when its stream has reached it; a thread that waits for it makes the other stream run up to
  // it.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    Queue& queue = queue_of(stream);
    *static_cast<Event*>(*event) = {&queue, record_event(&queue)};
  }
  void block(void* event, const c10::Stream& stream) const override {
    const Event& awaited = *static_cast<Event*>(event);
    wait_for_event(&queue_of(stream), awaited.queue, awaited.has_happened);
  }
  bool queryEvent(void* event) const override { return *static_cast<Event*>(event)->has_happened; }
  void synchronizeEvent(void* event) const override {
    const Event& awaited = *static_cast<Event*>(event);
    ++counted.waits;
    while (!*awaited.has_happened && run_first(*awaited.queue)) {
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  bool queryStream(const c10::Stream& stream) const override { return queued(stream) == 0; }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(&queue_of(stream)); }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  bool isStreamCapturing(const c10::Stream& stream) const override { return is_capturing(&queue_of(stream)); }
#endif
  void synchronizeDevice(c10::DeviceIndex) const override {
    ++counted.waits;
    run_all();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_index; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_index = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_index, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  // The device draws from the host's generator, see backend.cpp.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override { resize(storage, bytes); }
};
const bool is_known = [] {
  c10::register_privateuse1_backend("lagging");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

c10::Device current_device() { return {kType, current_index}; }

c10::Stream new_stream(int device_index) {
  const std::lock_guard lock(mutex);
  auto& of_device = queues[device_index];
  while (of_device.size() < 2) of_device.push_back(std::make_unique<Queue>());  // the default one, and this
  of_device.push_back(std::make_unique<Queue>());
  return stream_of(device(device_index), static_cast<c10::StreamId>(of_device.size() - 1));
}

OnStream::OnStream(c10::Stream stream) : before_(Guard().exchangeStream(stream)) {}
OnStream::~OnStream() { Guard().exchangeStream(before_); }

void* queue_of_current_stream(c10::Device device) { return &queue_of(Guard().getStream(device)); }

void* queue_of_stream(c10::Stream stream) { return &queue_of(stream); }

void* new_queue() {
  const std::lock_guard lock(mutex);
  own_queues.push_back(std::make_unique<Queue>());
  return own_queues.back().get();
}

void enqueue(void* of_stream, Work work) {
  auto& queue = *static_cast<Queue*>(of_stream);
  const std::lock_guard lock(mutex);
  (queue.capturing ? queue.captured : queue.work).push_back(std::move(work));
}

void enqueue(c10::Device device, Work work) { enqueue(queue_of_current_stream(device), std::move(work)); }

void enqueue_outside_graphs(void* queue, Work work) {
  const std::lock_guard lock(mutex);
  static_cast<Queue*>(queue)->work.push_back(std::move(work));
}

std::shared_ptr<std::atomic<bool>> record_event(void* queue) {
  const auto event = std::make_shared<std::atomic<bool>>(false);
  enqueue(queue, [event] { *event = true; });
  return event;
}

void wait_for_event(void* queue, void* awaited_queue, std::shared_ptr<std::atomic<bool>> event) {
  enqueue(queue, [awaited_queue, event = std::move(event)] {
    while (!*event && run_first(*static_cast<Queue*>(awaited_queue))) {
    }
  });
}

bool is_capturing(void* queue) {
  const std::lock_guard lock(mutex);
  return static_cast<Queue*>(queue)->capturing;
}

void wait_for(void* queue) {
  TORCH_CHECK(!is_capturing(queue), "a stream is waited for while it is being captured");
  ++counted.waits;
  run(*static_cast<Queue*>(queue), kAll);
}

void run(c10::Stream stream, int64_t max_items) { run(queue_of(stream), max_items); }

void run_all() {
  for (int index = 0; index < kDevices; ++index) {
    for (size_t id = 0; id < queues[index].size(); ++id) {
      run(stream_of(device(index), static_cast<c10::StreamId>(id)));
    }
  }
  for (size_t i = 0; i < own_queues.size(); ++i) run(*own_queues[i], kAll);
}

int64_t queued(c10::Stream stream) {
  Queue& queue = queue_of(stream);
  const std::lock_guard lock(mutex);
  return static_cast<int64_t>(queue.work.size());
}

Counts& counts() { return counted; }

void reset_counts() {
  counted.waits = 0;
  counted.copies_back = 0;
  counted.bytes_back = 0;
  counted.stale_reads = 0;
  counted.scan_launches = 0;
  counted.copy_launches = 0;
}

void begin_capture(c10::Stream stream) {
  Queue& queue = queue_of(stream);
  const std::lock_guard lock(mutex);
  queue.capturing = true;
  queue.captured.clear();
}

Work end_capture(c10::Stream stream) {
  Queue& queue = queue_of(stream);
  const std::lock_guard lock(mutex);
  queue.capturing = false;
  return [&queue, graph = std::move(queue.captured)] {
    const std::lock_guard replay_lock(mutex);
    queue.work.insert(queue.work.end(), graph.begin(), graph.end());
  };
}

}  // namespace torchnan::lagging
