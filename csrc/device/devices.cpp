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

Devices::Turn::Turn(Devices& devices) : devices_(devices) {
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
Devices::Turn::~Turn() {
  devices_.mutex_.unlock();
  if (to_be_released.empty()) return;
  Batch::Kept released;
  released.swap(to_be_released);
  released.clear();
  if (to_be_released.capacity() < released.capacity()) to_be_released.swap(released);
}

StreamQueue& Devices::Turn::lane_of(Scanner& scanner) {
  void* const stream = scanner.current_stream();
  for (auto& lane : devices_.lanes_) {
    if (&lane->scanner != &scanner) continue;
    if (lane->batch.stream() != stream) {
      launch(*lane);
      lane->continue_on(stream);
    }
    return *lane;
  }
  devices_.lanes_.push_back(std::make_unique<StreamQueue>(scanner, stream));
  return *devices_.lanes_.back();
}

// As current_call_site() does, but for every operation: nothing is allocated.
Event& Devices::Turn::add(Event::What what, const at::Tensor& tensor, const OpPlan& plan, DetectionSession& session,
                          uint64_t thread) {
  Scanner& scanner = *Scanner::of(tensor.device());
  StreamQueue& lane = lane_of(scanner);
  Event* captured = scanner.is_capturing(lane.batch.stream()) ? journal().add_captured() : nullptr;
  Event& event = captured != nullptr ? *captured : journal().add();
  if (captured == nullptr) devices_.clear_slots_after(event.number);
  event.what = what;
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
  if (!event.covers) event.carried = journal().last_event(tensor);
  return event;
}

void Devices::Turn::scan(Event& event, const at::Tensor& tensor) {
  StreamQueue& lane = lane_of(*Scanner::of(tensor.device()));
  if (!lane.batch.add(tensor, event.number, event.limit(), false)) return;
  event.scanner = &lane.scanner;
  if (lane.batch.is_full() || event.number >= Journal::kFirstCaptured) launch(lane);
}

void Devices::Turn::note_harm(HarmKind harm, const at::Tensor& tensor, const OpPlan& reader, DetectionSession& session,
                              uint64_t thread) {
  const EventNumber last = journal().last_event(tensor);
  Event& event = add(Event::What::kHarm, tensor, reader, session, thread);
  event.harm = harm;
  event.input[event.inputs++] = {last, tensor.storage().unsafeGetStorageImpl()};
  const Event* written = journal().find(last);
  // A part of its memory may hold something else than the rest; and what was proved may have been so from something
  // that nobody knew to be bad.
  if (!is_seen(written) || !written->covers || written->scanner == nullptr) scan(event, tensor);
}

void Devices::Turn::launch_scans_of(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  for (auto& lane : devices_.lanes_) {
    if (lane->batch.holds(storage)) launch(*lane);
  }
}

void Devices::Turn::launch(StreamQueue& lane) { lane.batch.launch(to_be_released); }

void Devices::Turn::launch_all() {
  for (auto& lane : devices_.lanes_) launch(*lane);
}

void Devices::Turn::wait_for_all() {
  if (is_capturing()) return;
  for (const auto& lane : devices_.lanes_) {
    for (void* stream : lane->streams) lane->scanner.read(0, 0, nullptr, stream);
  }
}

bool Devices::Turn::is_alarmed() const {
  for (const auto& lane : devices_.lanes_) {
    if (lane->scanner.alarm() != cuda::kNoAlarm) return true;
  }
  return false;
}

bool Devices::Turn::is_capturing() const {
  for (const auto& lane : devices_.lanes_) {
    if (lane->scanner.is_capturing(lane->scanner.current_stream())) return true;
  }
  return false;
}

// Two parts ahead: scans of other streams that are still to come write nowhere near.
void Devices::clear_slots_after(EventNumber number) {
  const uint64_t slot = number % cuda::kSlots;
  if (slot % kSlotsAtOnce != 0) return;
  const uint64_t part = (slot / kSlotsAtOnce + 2) % kParts;
  for (auto& lane : lanes_) {
    lane->scanner.clear(static_cast<uint32_t>(part * kSlotsAtOnce), kSlotsAtOnce, lane->batch.stream());
  }
}

}  // namespace torchnan
