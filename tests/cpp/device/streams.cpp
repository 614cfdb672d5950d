// Streams of the lagging device: queues, capture, the guard by which PyTorch knows them.
#include <array>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "device/lagging_device.h"

namespace torchnan::lagging {
namespace {

using Work = std::function<void()>;

struct Queue {
  std::deque<Work> work;
  bool capturing = false;
  std::deque<Work> captured;
};

// By device and stream. Tests run on one thread at a time.
std::array<std::vector<std::unique_ptr<Queue>>, kDevices>& queues =
    *new std::array<std::vector<std::unique_ptr<Queue>>, kDevices>;
Counts counted;
thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_stream{};

c10::Stream stream_of(c10::Device device, c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device, id); }

Queue& queue_of(c10::DeviceIndex device, c10::StreamId stream) {
  auto& of_device = queues[device];
  while (of_device.size() <= static_cast<size_t>(stream)) of_device.push_back(std::make_unique<Queue>());
  return *of_device[stream];
}

Queue& queue_of(c10::Stream stream) { return queue_of(stream.device_index(), stream.id()); }

void run(Queue& queue, int64_t max_items) {
  for (int64_t i = 0; i < max_items && !queue.work.empty(); ++i) {
    const Work work = std::move(queue.work.front());
    queue.work.pop_front();
    work();
  }
}

struct Event {
  Queue* queue = nullptr;
  std::shared_ptr<bool> happened;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    current_device = device.index();
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return stream_of(device, current_stream[device.index()]); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &queue_of(stream); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  // An event has happened when its stream has come to it; who is blocked by it makes the other stream come there.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    auto& made = *static_cast<Event*>(*event);
    made = {&queue_of(stream), std::make_shared<bool>(false)};
    enqueue(made.queue, [happened = made.happened] { *happened = true; });
  }
  void block(void* event, const c10::Stream& stream) const override {
    enqueue(&queue_of(stream), [awaited = *static_cast<Event*>(event)] {
      while (!*awaited.happened) run(*awaited.queue, 1);
    });
  }
  bool queryEvent(void* event) const override { return *static_cast<Event*>(event)->happened; }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  bool queryStream(const c10::Stream& stream) const override { return queue_of(stream).work.empty(); }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(&queue_of(stream)); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
};
const bool is_known = [] {
  c10::register_privateuse1_backend("lagging");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

c10::Stream new_stream(int device_index) {
  const auto id = std::max<size_t>(1, queues[device_index].size());
  queue_of(static_cast<c10::DeviceIndex>(device_index), static_cast<c10::StreamId>(id));
  return stream_of(device(device_index), static_cast<c10::StreamId>(id));
}

OnStream::OnStream(c10::Stream stream) : before_(Guard().exchangeStream(stream)) {}
OnStream::~OnStream() { Guard().exchangeStream(before_); }

void* queue_of_current_stream(c10::Device device) { return &queue_of(Guard().getStream(device)); }

void enqueue(void* of_stream, Work work) {
  auto& queue = *static_cast<Queue*>(of_stream);
  (queue.capturing ? queue.captured : queue.work).push_back(std::move(work));
}

void enqueue(c10::Device device, Work work) { enqueue(queue_of_current_stream(device), std::move(work)); }

bool is_capturing(void* queue) { return static_cast<Queue*>(queue)->capturing; }

void wait_for(void* of_stream) {
  auto& queue = *static_cast<Queue*>(of_stream);
  TORCH_CHECK(!queue.capturing, "a stream is waited for while it is being captured");
  ++counted.waits;
  run(queue, kAll);
}

void run(c10::Stream stream, int64_t max_items) { run(queue_of(stream), max_items); }

void run_all() {
  for (int index = 0; index < kDevices; ++index) {
    for (size_t id = 0; id < queues[index].size(); ++id) {
      run(stream_of(device(index), static_cast<c10::StreamId>(id)));
    }
  }
}

int64_t queued(c10::Stream stream) { return static_cast<int64_t>(queue_of(stream).work.size()); }

Counts counts() { return counted; }
void forget_counts() { counted = {}; }
void note_copy_back() { ++counted.copies_back; }

void begin_capture(c10::Stream stream) {
  queue_of(stream).capturing = true;
  queue_of(stream).captured.clear();
}

Work end_capture(c10::Stream stream) {
  Queue& queue = queue_of(stream);
  queue.capturing = false;
  return
      [&queue, graph = std::move(queue.captured)] { queue.work.insert(queue.work.end(), graph.begin(), graph.end()); };
}

}  // namespace torchnan::lagging
