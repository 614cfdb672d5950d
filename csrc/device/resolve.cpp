#include "device/resolve.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scan/tensor_scan.h"
#include "device/device_roots.h"
#include "device/devices.h"
#include "device/window.h"
#include "origin/host_queries.h"
#include "origin/harm.h"
#include "origin/make_finding.h"
#include "origin/origin_records.h"
#include "origin/unused_results.h"
#include "detection/delivery.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"

namespace torchnan {
namespace {

struct Known {
  ForkSafeMutex mutex;
  std::unordered_map<EventNumber, BadEvent> bad;  // of what may still be there
  std::atomic<EventNumber> resolved_until{1};
  std::atomic<bool> in_trouble{false};
  std::atomic<bool> is_resolving{false};
};
Known& known = *new Known;  // never destroyed: threads may outlive static destructors

// Why the events of a window are bad.
class Reading {
 public:
  explicit Reading(const Window& window) : window_(window) {
    for (const Event& event : window.captured) captured_.emplace(event.number, &event);
  }

  void run() {
    for (const Event& event : window_.events) take(event);
    for (const Event& event : window_.captured) take_captured(event);
  }

  bool has_found_something() const { return has_found_something_; }
  std::vector<std::pair<std::shared_ptr<DetectionSession>, Finding>> take_findings() { return std::move(findings_); }

 private:
  struct BadInput {
    EventInput input;
    BadEvent bad;
  };
  using BadInputs = c10::SmallVector<BadInput, 4>;

  // What it reads from outside of the graph was written again since; what it writes, others may have asked for already.
  void take_captured(const Event& event) {
    if (!taken_.insert(event.number).second) return;
    take(event);
  }

  std::optional<BadEvent> bad_input(const Event& reader, const EventInput& input) {
    EventNumber number = input.event;
    const bool reader_is_captured = reader.number >= Journal::kFirstCaptured;
    const bool input_is_captured = number >= Journal::kFirstCaptured;
    if (reader_is_captured && !input_is_captured) number = Devices::Turn(devices()).journal().last_event(input.storage);
    if (input_is_captured) {
      const auto captured = captured_.find(number);
      if (captured != captured_.end()) take_captured(*captured->second);
    }
    return bad_event(number);
  }

  BadInputs bad_inputs_of(const Event& event) {
    BadInputs bad_inputs;
    const auto add = [&](const Event& one) {
      for (size_t i = 0; i < one.inputs; ++i) {
        auto bad = bad_input(event, one.input[i]);
        if (bad && one.input[i].is_parameter) bad = of_parameter(event, one.input[i], *bad);
        if (bad) bad_inputs.push_back({one.input[i], *bad});
      }
    };
    add(event);
    for (EventNumber number = event.more; number != 0;) {
      const auto more = Devices::Turn(devices()).copy_of(number);
      if (!more) break;
      add(*more);
      number = more->more;
    }
    return bad_inputs;
  }

  // As record_of_argument() has it: what a program has put into a parameter is the parameter's.
  BadEvent of_parameter(const Event& reader, const EventInput& input, const BadEvent& put) {
    if (put.record->first().root->parameter || !is_constant_write(*put.record)) return put;
    const auto session = reader.session.lock();
    const auto written = Devices::Turn(devices()).copy_of(input.event);
    if (session == nullptr || !written) return put;
    Event read = reader;
    read.what = Event::What::kArgument;
    read.number = input.event;
    read.carried = 0;
    read.tensor = written->tensor;
    read.tensor.is_parameter = true;
    BadEvent bad{put.kinds, std::make_shared<Provenance>(Cause{own_root(read, put.kinds, *session), put.kinds})};
    const std::lock_guard lock(known.mutex);
    known.bad[input.event] = bad;
    return bad;
  }

  void take(const Event& event) {
    const auto session = event.session.lock();
    if (session == nullptr || event.what == Event::What::kContinuation) return;
    const auto bad_inputs = bad_inputs_of(event);
    note_use(event, bad_inputs);
    const auto found = kinds_of(event, !bad_inputs.empty());
    if (event.what == Event::What::kHarm) return judge_harm(event, bad_inputs, found, *session);
    if (!found && !is_expected(event, bad_inputs)) return;
    NonfiniteKinds kinds = found.value_or(NonfiniteKinds());
    if (!found) {
      for (const BadInput& input : bad_inputs) kinds |= input.bad.kinds;
    }
    const auto before = event.what == Event::What::kArgument ? bad_event(event.carried) : std::nullopt;
    remember(event, before ? before->record : record_of(event, bad_inputs, kinds, *session), kinds, *session);
    if (found) judge_parameter(event, *bad_event(event.number)->record, kinds, *session);
  }

  // Nobody has looked at what came of something bad: it was not there yet, or was proved finite when that was not known
  // to be bad, and is gone. Who looks at what comes of it will tell.
  static bool is_expected(const Event& event, c10::ArrayRef<BadInput> bad_inputs) {
    const bool was_proved = event.what == Event::What::kResult && event.scanner == nullptr;
    return (was_proved || event.what == Event::What::kAwaited) && !bad_inputs.empty();
  }

  // An infinity that may be meant is none where something bad was given.
  std::optional<NonfiniteKinds> kinds_of(const Event& event, bool is_given_bad) const {
    const Found* found = window_.found_of(event);
    if (found == nullptr) return std::nullopt;
    return is_given_bad && found->holds_infinity(event) ? NonfiniteKinds::of_inf() : found->kinds_of(event);
  }

  // As report_before() has it.
  static void note_use(const Event& event, c10::ArrayRef<BadInput> bad_inputs) {
    if (event.what == Event::What::kHarm) return;
    for (const BadInput& input : bad_inputs) {
      for (const Cause& cause : input.bad.record->causes()) {
        cause.root->used = true;
        if (event.plan->is_grad_scaler_check) cause.root->scaled = true;
        if (event.plan->is_comparison) cause.root->compared = true;
        if (!event.plan->is_comparison && !event.plan->is_data_movement) cause.root->computed = true;
      }
    }
  }

  std::shared_ptr<const Provenance> record_of(const Event& event, c10::ArrayRef<BadInput> bad_inputs,
                                              NonfiniteKinds kinds, DetectionSession& session) {
    std::vector<Cause> causes;
    NonfiniteKinds given = event.meant;
    for (const BadInput& input : bad_inputs) {
      given |= input.bad.kinds;
      for (const Cause& cause : input.bad.record->causes())
        causes.push_back(extended(cause, event, &input.input, kinds));
    }
    if (event.given != nullptr) {
      for (const Cause& cause : event.given->causes()) {
        given |= cause.kinds;
        causes.push_back(extended(cause, event, nullptr, kinds));
      }
    }
    if (causes.empty()) return std::make_shared<Provenance>(Cause{own_root(event, kinds, session), kinds});
    auto record = std::make_shared<Provenance>(std::move(causes));
    const bool is_explained = !kinds.nan() || given.nan();
    if (!record->is_intentional() || is_explained) return record;
    return std::make_shared<Provenance>(Cause{own_root(event, kinds, session), kinds});
  }

  // `input` is null for what came from the host.
  static Cause extended(const Cause& cause, const Event& event, const EventInput* input, NonfiniteKinds kinds) {
    OriginRecord& root = *cause.root;
    mark_factor(root, event.node_execution_id, *event.plan, kinds);
    if (!event.plan->is_data_movement && kinds.nan()) root.spread = true;
    if (root.source != OriginRecord::Source::kOperation && !cause.first_computation)
      record_first_use(event, input, root);
    return cause.extended({event.plan, event.live}, event.plan->is_data_movement, kinds);
  }

  std::shared_ptr<OriginRecord> own_root(const Event& event, NonfiniteKinds kinds, DetectionSession& session) {
    const auto most_of = [this](const Event& input) -> std::optional<uint64_t> {
      const Found* found = window_.found_of(input);
      return found == nullptr ? std::nullopt : std::optional(found->most_of(input));
    };
    return device_root(event, kinds, session, most_of);
  }

  void remember(const Event& event, std::shared_ptr<const Provenance> record, NonfiniteKinds kinds,
                DetectionSession& session) {
    has_found_something_ = true;
    const bool is_new = record->first().steps.empty() && !record->is_intentional();
    if (is_new) record_unused(session, record);
    if (is_new && session.options().when == When::kOrigin) tell(event, *record, HarmKind::kOrigin, kinds, "", session);
    BadEvent bad{kinds, std::move(record)};
    const std::lock_guard lock(known.mutex);
    known.bad[event.number] = std::move(bad);
  }

  // As report_result() has it.
  void judge_parameter(const Event& event, const Provenance& record, NonfiniteKinds kinds, DetectionSession& session) {
    if (event.what != Event::What::kResult || !event.tensor.is_parameter || record.first().root->reported) return;
    if (query_site(event.site(), session).phase != Phase::kOptimizer) return;
    tell(event, record, HarmKind::kParameter, kinds, owner_name(event, session), session);
  }

  void judge_harm(const Event& event, c10::ArrayRef<BadInput> bad_inputs, std::optional<NonfiniteKinds> found,
                  DetectionSession& session) {
    if (event.scanner != nullptr && !found) return;  // a part of the memory that is all right
    if (bad_inputs.empty() && !found) return;
    if (!bad_inputs.empty()) {
      const BadEvent& bad = bad_inputs[0].bad;
      return tell(event, *bad.record, event.harm, found.value_or(bad.kinds), "", session);
    }
    const Provenance record(Cause{own_root(event, *found, session), *found});
    tell(event, record, event.harm, *found, "", session);
  }

  void tell(const Event& event, const Provenance& record, HarmKind harm, NonfiniteKinds kinds, const std::string& name,
            DetectionSession& session) {
    auto finding = make_harm_finding(session, record, harm, kinds, event.site(), [&] { return name; });
    if (finding) findings_.emplace_back(session.shared_from_this(), std::move(*finding));
  }

  const Window& window_;
  std::unordered_map<EventNumber, const Event*> captured_;
  std::set<EventNumber> taken_;
  std::vector<std::pair<std::shared_ptr<DetectionSession>, Finding>> findings_;
  bool has_found_something_ = false;
};

// What has been overwritten, or is gone, is no trouble any more.
bool prune_dead() {
  std::vector<EventNumber> numbers;
  {
    const std::lock_guard lock(known.mutex);
    for (const auto& [number, bad] : known.bad) numbers.push_back(number);
  }
  std::vector<EventNumber> gone;
  {
    Devices::Turn turn(devices());
    for (const EventNumber number : numbers) {
      const Event* event = turn.journal().find(number);
      if (event == nullptr || !turn.journal().is_there(*event)) gone.push_back(number);
    }
  }
  bool is_trouble = false;
  std::vector<BadEvent> released;
  const std::lock_guard lock(known.mutex);
  for (const EventNumber number : gone) {
    const auto entry = known.bad.find(number);
    if (entry == known.bad.end()) continue;
    released.push_back(std::move(entry->second));
    known.bad.erase(entry);
  }
  for (const auto& [number, bad] : known.bad) is_trouble |= !bad.record->is_intentional();
  return is_trouble;
}

void deliver_findings(std::vector<std::pair<std::shared_ptr<DetectionSession>, Finding>> findings) {
  while (!findings.empty()) {
    const auto session = findings.front().first;
    std::vector<Finding> its;
    for (auto& [whose, finding] : findings) {
      if (whose == session) its.push_back(std::move(finding));
    }
    std::erase_if(findings, [&](const auto& one) { return one.first == session; });
    deliver_all(*session, std::move(its));
  }
}

}  // namespace

std::optional<BadEvent> bad_event(EventNumber number) {
  std::vector<EventNumber> chain;  // whatever its memory may still hold
  {
    Devices::Turn turn(devices());
    for (EventNumber n = number; n != 0 && chain.size() < Event::kMostInputs;) {
      chain.push_back(n);
      const Event* event = turn.journal().find(n);
      n = event == nullptr ? 0 : event->carried;
    }
  }
  const std::lock_guard lock(known.mutex);
  for (const EventNumber n : chain) {
    const auto found = known.bad.find(n);
    if (found != known.bad.end()) return found->second;
  }
  return std::nullopt;
}

bool has_known_bad() { return known.in_trouble.load(std::memory_order_relaxed); }

void resolve() {
  if (!devices().in_use() || Devices::Turn(devices()).is_capturing()) return;
  if (known.is_resolving.exchange(true)) return;  // another thread is at it, or this one further out
  struct EndAtLast {
    ~EndAtLast() { known.is_resolving = false; }
  };
  std::vector<std::pair<std::shared_ptr<DetectionSession>, Finding>> findings;
  {
    const EndAtLast end_at_last;
    const Window window = read_window(known.resolved_until);
    Reading reading(window);
    reading.run();
    known.resolved_until = window.end;
    for (const Found& found : window.found) found.reset(!window.captured.empty());
    const bool is_trouble = prune_dead();
    known.in_trouble = is_trouble || reading.has_found_something();  // then what comes next is read once more
    findings = reading.take_findings();
  }
  deliver_findings(std::move(findings));
}

void report_on_devices(DetectionSession& session, HarmKind harm, const OpPlan& reader,
                       c10::ArrayRef<at::Tensor> tensors) {
  if (!devices().in_use()) return;
  bool is_alarmed = false;
  {
    Devices::Turn turn(devices());
    for (const at::Tensor& given : tensors) {
      const at::Tensor tensor = given.defined() ? scannable(given) : at::Tensor();
      if (tensor.defined()) turn.note_harm(harm, tensor, reader, session, ThreadState::current().id());
    }
    turn.launch_all();                                 // a step is about to end, or its backward pass to begin
    if (harm == HarmKind::kRead) turn.wait_for_all();  // as the reader will
    is_alarmed = turn.is_alarmed();
  }
  if (is_alarmed || has_known_bad() || session.options().when == When::kOrigin) resolve();
}

namespace {

// As report_live_tensors() has it.
std::vector<Finding> report_live_tensors(DetectionSession& session) {
  std::unordered_map<const c10::StorageImpl*, BadEvent> by_storage;
  std::vector<at::Tensor> alive;
  {
    Devices::Turn turn(devices());
    const std::lock_guard lock(known.mutex);
    for (const auto& [number, bad] : known.bad) {
      const Event* event = turn.journal().find(number);
      at::Tensor tensor = event == nullptr ? at::Tensor() : turn.journal().tensor_of(*event);
      if (!tensor.defined()) continue;
      by_storage.emplace(event->tensor.storage, bad);
      alive.push_back(std::move(tensor));
    }
  }
  std::vector<Finding> findings;
  for (const ReachableTensor& held : query_reachable_tensors(alive, session)) {
    const at::Tensor tensor = scannable(held.tensor);
    const auto found = tensor.defined() ? by_storage.find(tensor.storage().unsafeGetStorageImpl()) : by_storage.end();
    if (found == by_storage.end()) continue;
    const OriginRecord& root = *found->second.record->first().root;
    if (root.session.lock().get() != &session || (held.as_gradient && root.compared)) continue;
    const HarmKind kind = is_parameter(held.tensor) ? HarmKind::kParameter : HarmKind::kAlive;
    Site here;
    here.live = host_runtime().current_stack_id();
    auto finding = make_harm_finding(session, *found->second.record, kind, found->second.kinds, here,
                                     [&] { return parameter_name(session, tensor); });
    if (finding) findings.push_back(std::move(*finding));
  }
  return findings;
}

}  // namespace

void end_on_devices(DetectionSession& session, bool report_pending) {
  if (!devices().in_use()) return;
  if (report_pending) {
    contain(session, "resolving what is under way on devices", [] { resolve(); });
    std::vector<Finding> findings;
    contain(session, "judging what is still held on devices", [&] { findings = report_live_tensors(session); });
    contain(session, "telling of findings", [&] { deliver_all(session, std::move(findings)); });
  }
  if (open_scopes() > 0) return;
  std::unordered_map<EventNumber, BadEvent> released;
  {
    const std::lock_guard lock(known.mutex);
    released.swap(known.bad);
    known.in_trouble = false;
  }
  Devices::Turn turn(devices());
  turn.launch_all();
  turn.journal().forget_all();
  known.resolved_until = turn.journal().next();
}

}  // namespace torchnan
