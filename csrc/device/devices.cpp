#include "device/devices.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>

#include "call_sites/call_site_ring.h"
#include "bounds/bound_cache.h"
#include "scan/float_format.h"
#include "scan/tensor_scan.h"
#include "call_sites/current_call_site.h"
#include "detection/session.h"

namespace torchnan {
namespace {

constexpr uint64_t kSlotsAtOnce = 8192;  // are cleared
constexpr uint64_t kParts = Journal::kRotatingSlots / kSlotsAtOnce;

Devices& of_process = *new Devices;  // never destroyed: threads may outlive static destructors

// What waits to be released by this thread. Keeps its memory, so that nothing is allocated in the long run.
thread_local Batch::Kept to_be_released;

}  // namespace

StreamQueue::StreamQueue(Scanner& of, void* stream) : scanner(of), batch(of, stream), streams{stream} {}

void StreamQueue::continue_on(void* stream) {
  batch.continue_on(stream);
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

Devices& devices() { return of_process; }

at::Tensor scannable(const at::Tensor& tensor) {
  const at::Tensor values = readable_on_device(tensor);
  return values.defined() && Scanner::of(values.device()) != nullptr ? values : at::Tensor();
}

Devices::Lock::Lock(Devices& devices) : devices_(devices) {
  devices_.mutex_.lock();
  try {
    if (devices_.journal_ == nullptr) devices_.journal_ = std::make_unique<Journal>();
    devices_.in_use_ = true;
  } catch (...) {
    devices_.mutex_.unlock();
    throw;
  }
}

// What a tensor's end runs may come here again.
Devices::Lock::~Lock() {
  devices_.mutex_.unlock();
  if (to_be_released.empty()) return;
  Batch::Kept released;
  released.swap(to_be_released);
  released.clear();
  if (to_be_released.capacity() < released.capacity()) to_be_released.swap(released);
}

StreamQueue& Devices::Lock::queue_of(Scanner& scanner) {
  void* const stream = scanner.current_stream();
  for (auto& queue : devices_.queues_) {
    if (&queue->scanner != &scanner) continue;
    if (queue->batch.stream() != stream) {
      launch(*queue);
      queue->continue_on(stream);
    }
    return *queue;
  }
  devices_.queues_.push_back(std::make_unique<StreamQueue>(scanner, stream));
  return *devices_.queues_.back();
}

// As current_call_site() does, but for every operation: nothing is allocated.
Event& Devices::Lock::add(EventType type, const at::Tensor& tensor, const OpPlan& plan, DetectionSession& session,
                          uint64_t thread) {
  Scanner& scanner = *Scanner::of(tensor.device());
  StreamQueue& queue = queue_of(scanner);
  Event* captured = scanner.is_capturing(queue.batch.stream()) ? journal().add_captured() : nullptr;
  Event& event = captured != nullptr ? *captured : journal().add();
  if (captured == nullptr) devices_.clear_slots_after(event.number);
  event.type = type;
  event.plan = &plan;
  event.session = session.weak_from_this();
  event.tensor = TensorSnapshot(tensor);
  event.live = host_runtime().current_stack_id();
  event.grad_mode = c10::GradMode::is_enabled();
  event.thread = thread;
  event.step = session.step();
  if (const auto node = torch::autograd::get_current_node()) {
    event.node = devices_.node_names_.of(*node);
    event.node_execution_id = execution_id(*node);
    event.forward = CallSiteRing::find(*node);
  }
  event.covers = covers_whole_storage(tensor, *event.tensor.storage);
  if (!event.covers) event.previous = journal().last_event(tensor);
  return event;
}

void Devices::Lock::scan(Event& event, const at::Tensor& tensor) {
  StreamQueue& queue = queue_of(*Scanner::of(tensor.device()));
  if (!queue.batch.add(tensor, event.number, event.limit(), false)) return;
  event.scanner = &queue.scanner;
  if (queue.batch.is_full() || event.number >= Journal::kFirstCaptured) launch(queue);
}

void Devices::Lock::record_harm(HarmKind harm, const at::Tensor& tensor, const OpPlan& reader,
                                DetectionSession& session, uint64_t thread) {
  const EventNumber last = journal().last_event(tensor);
  Event& event = add(EventType::kHarm, tensor, reader, session, thread);
  event.harm = harm;
  event.input[event.inputs++] = {last, tensor.storage().unsafeGetStorageImpl()};
  const Event* written = journal().find(last);
  // A part of its memory may hold something else than the rest; and what was proved may have been so from something
  // that nobody knew to be bad.
  if (!is_seen(written) || !written->covers || written->scanner == nullptr) scan(event, tensor);
}

void Devices::Lock::launch_scans_of(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  for (auto& queue : devices_.queues_) {
    if (queue->batch.holds(storage)) launch(*queue);
  }
}

void Devices::Lock::launch(StreamQueue& queue) { queue.batch.launch(to_be_released); }

void Devices::Lock::launch_all() {
  for (auto& queue : devices_.queues_) launch(*queue);
}

void Devices::Lock::wait_for_all() {
  if (is_capturing()) return;
  for (const auto& queue : devices_.queues_) {
    for (void* stream : queue->streams) queue->scanner.read(0, 0, nullptr, stream);
  }
}

bool Devices::Lock::is_alarmed() const {
  for (const auto& queue : devices_.queues_) {
    if (queue->scanner.alarm() != cuda::kNoAlarm) return true;
  }
  return false;
}

bool Devices::Lock::is_capturing() const {
  for (const auto& queue : devices_.queues_) {
    if (queue->scanner.is_capturing(queue->scanner.current_stream())) return true;
  }
  return false;
}

// Two parts ahead: scans of other streams that are still to come write nowhere near.
void Devices::clear_slots_after(EventNumber number) {
  const uint64_t slot = number % cuda::kSlots;
  if (slot % kSlotsAtOnce != 0) return;
  const uint64_t part = (slot / kSlotsAtOnce + 2) % kParts;
  for (auto& queue : queues_) {
    queue->scanner.clear(static_cast<uint32_t>(part * kSlotsAtOnce), kSlotsAtOnce, queue->batch.stream());
  }
}

}  // namespace torchnan
