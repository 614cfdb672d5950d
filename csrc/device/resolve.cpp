#include "device/resolve.h"

#include <algorithm>
#include <exception>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/util/ScopeExit.h>

#include "check/scan/float_format.h"
#include "check/scan/tensor_scan.h"
#include "device/device_stats.h"
#include "device/devices.h"
#include "device/harm_recorder.h"
#include "device/window.h"
#include "origin/runtime_queries.h"
#include "origin/harm.h"
#include "origin/late_replay.h"
#include "origin/make_finding.h"
#include "origin/origin_records.h"
#include "origin/replayed_region.h"
#include "origin/unused_results.h"
#include "detection/delivery.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"
#include "base/format.h"

namespace torchnan {
namespace {

struct BadEvents {
  ForkSafeMutex mutex;
  std::unordered_map<EventNumber, BadEvent> bad;  // bad events whose values may still exist
  std::atomic<EventNumber> resolved_until{1};
  std::atomic<bool> has_bad{false};
  std::atomic<bool> is_resolving{false};
  std::atomic<int> attributions{0};  // under way; more than one while a replay resolves its own operations
};
BadEvents& known = *new BadEvents;  // never destroyed: threads may outlive static destructors

// Lets one thread resolve at a time. A replay resolves its own operations meanwhile.
class Resolving {
 public:
  Resolving() : is_mine_(!known.is_resolving.exchange(true)) {}
  ~Resolving() { end(); }
  Resolving(const Resolving&) = delete;
  Resolving& operator=(const Resolving&) = delete;

  bool has_begun() const { return is_mine_; }
  void end() {
    if (is_mine_) known.is_resolving = false;
    is_mine_ = false;
  }

 private:
  bool is_mine_;
};

using SessionFindings = std::vector<std::pair<std::shared_ptr<DetectionSession>, Finding>>;

// Returns the provenance of infinities that an event wrote on purpose, so that it raised no alarm; null if it did not.
std::shared_ptr<const Provenance> intended_provenance(EventNumber number, NonfiniteKinds kinds) {
  const auto written = Devices::Lock(devices()).copy_of(number);
  if (!written || !is_seen(&*written) || !written->intended.inf() || kinds.nan()) return nullptr;
  const auto session = written->session.lock();
  if (session == nullptr) return nullptr;
  DeviceEvidence evidence(*written, {}, *session, [](const Event&) { return std::nullopt; });
  return attribute(evidence, kinds);
}

// Attributes the bad events of a window.
class WindowAttribution {
 public:
  WindowAttribution(const Window& window, Resolving& resolving) : window_(window), resolving_(resolving) {
    for (const Event& event : window.captured) captured_.emplace(event.number, &event);
  }

  void run() {
    for (const Event& event : window_.events) attribute_event(event);
    for (const Event& event : window_.captured) attribute_captured(event);
  }

  bool has_found_something() const { return has_found_something_; }
  SessionFindings drain_findings() { return std::move(findings_); }

 private:
  using BadInputs = c10::SmallVector<BadInput, 4>;

  // Inputs from outside of the graph have been rewritten since; its outputs may already have been reported.
  void attribute_captured(const Event& event) {
    if (!visited_.insert(event.number).second) return;
    attribute_event(event);
  }

  std::optional<BadEvent> bad_input(const Event& reader, const EventInput& input) {
    EventNumber number = input.event;
    const bool reader_is_captured = reader.number >= Journal::kFirstCaptured;
    const bool input_is_captured = number >= Journal::kFirstCaptured;
    if (reader_is_captured && !input_is_captured) number = Devices::Lock(devices()).journal().last_event(input.storage);
    if (input_is_captured) {
      const auto captured = captured_.find(number);
      if (captured != captured_.end()) attribute_captured(*captured->second);
    }
    return bad_event(number, input.is_alone && number == input.event);
  }

  // Visits the inputs of an event, and of those that have more.
  template <typename Visit>
  static void for_each_input(const Event& event, Visit&& visit) {
    for (size_t i = 0; i < event.inputs; ++i) visit(event.input[i]);
    for (EventNumber number = event.more; number != 0;) {
      const auto more = Devices::Lock(devices()).copy_of(number);
      if (!more) break;
      for (size_t i = 0; i < more->inputs; ++i) visit(more->input[i]);
      number = more->more;
    }
  }

  BadInputs bad_inputs_of(const Event& event) {
    BadInputs bad_inputs;
    for_each_input(event, [&](const EventInput& input) {
      auto bad = bad_input(event, input);
      if (bad && input.is_parameter) bad = attribute_to_parameter(event, input, *bad);
      if (bad) bad_inputs.push_back({input, *bad});
    });
    return bad_inputs;
  }

  // A value that user code wrote into a parameter is attributed to the parameter, as on the host.
  BadEvent attribute_to_parameter(const Event& reader, const EventInput& input, const BadEvent& put) {
    if (put.provenance->first().origin->parameter || !is_constant_write(*put.provenance)) return put;
    const auto session = reader.session.lock();
    const auto written = Devices::Lock(devices()).copy_of(input.event);
    if (session == nullptr || !written) return put;
    BadEvent bad{put.kinds, is_border(reader) ? provenance_in_region(*written, reader, *session) : nullptr};
    if (bad.provenance == nullptr) bad.provenance = provenance_of_read(*written, reader, put, *session);
    const std::lock_guard lock(known.mutex);
    known.bad[input.event] = bad;
    return bad;
  }

  std::shared_ptr<const Provenance> provenance_of_read(const Event& written, const Event& reader, const BadEvent& put,
                                                       DetectionSession& session) {
    Event read = reader;
    read.type = EventType::kArgument;
    read.number = written.number;
    read.previous = 0;
    read.region = nullptr;
    read.tensor = written.tensor;
    read.tensor.is_parameter = true;
    const auto origin = new_origin(read, put.kinds, session);
    const OriginRecord& copied = *put.provenance->first().origin;
    origin->collective = copied.collective;
    if (copied.collective.empty()) origin->written = copied.site.live;
    return std::make_shared<Provenance>(Cause{origin, put.kinds});
  }

  void attribute_event(const Event& event) {
    const auto session = event.session.lock();
    if (session == nullptr || event.type == EventType::kContinuation) return;
    const auto bad_inputs = bad_inputs_of(event);
    record_uses(event, bad_inputs);
    const auto found = kinds_of(event, !bad_inputs.empty());
    if (event.type == EventType::kHarm) return report_harm_event(event, bad_inputs, found, *session);
    if (!found && !is_presumed_bad(event, bad_inputs)) return;
    NonfiniteKinds kinds = found.value_or(NonfiniteKinds());
    if (!found) {
      for (const BadInput& input : bad_inputs) kinds |= input.bad.kinds;
    }
    const auto before = event.type == EventType::kArgument ? provenance_before(event, kinds, *session) : nullptr;
    const bool is_presumed = !found && event.type == EventType::kResult;
    remember(event, before != nullptr ? before : provenance_of(event, bad_inputs, kinds, *session), kinds, is_presumed,
             *session);
    const DeviceScans* const scans = window_.scans_of(event);
    if (scans != nullptr && scans->is_unread_alarm(event))
      return report_unread(event, *bad_event(event.number), session);
    if (found) report_parameter(event, *bad_event(event.number)->provenance, kinds, *session);
  }

  // Returns the provenance of the values that were last seen in memory where others may have written since; null if
  // they were finite. Infinities that were written there on purpose raise no alarm.
  std::shared_ptr<const Provenance> provenance_before(const Event& event, NonfiniteKinds kinds,
                                                      DetectionSession& session) {
    if (const auto bad = bad_event(event.previous)) return bad->provenance;
    if (auto intended = intended_provenance(event.previous, kinds)) return intended;
    const bool may_be_mask = !event.tensor.is_parameter && !kinds.nan();
    if (is_lost(event) || may_be_mask) return nullptr;
    const auto reads_it = [&](const Event& reader) {
      bool is_read = false;
      if (is_border(reader) && kinds_at(reader.number).any())
        for_each_input(reader, [&](const EventInput& input) { is_read |= input.event == event.number; });
      return is_read;
    };
    const auto overwrites_it = [&](const Event& reader) {
      return reader.tensor.storage == event.tensor.storage && reads_it(reader);
    };
    const auto& events = window_.events;
    const auto reader = std::find_if(events.begin(), events.end(), reads_it);
    if (reader == events.end() || std::any_of(events.begin(), events.end(), overwrites_it)) return nullptr;
    return provenance_in_region(event, *reader, session);
  }

  // Replays a region that reads a tensor first. Returns its provenance: the operation, module and line that read it;
  // null if the replay does not show them.
  std::shared_ptr<const Provenance> provenance_in_region(const Event& read, const Event& reader,
                                                         DetectionSession& session) {
    Devices::Lock(devices()).journal().mark_stale(*read.tensor.storage);  // the replay looks at it anew
    const LateReplay replay = replay_call(reader, session);
    if (replay.provenance == nullptr) return nullptr;
    const std::string name = owner_name(read, session);
    const auto is_of_it = [&](const Cause& cause) {
      const OriginRecord& origin = *cause.origin;
      return origin.source == OriginRecord::Source::kExternal && (!origin.owner || origin.owner->name == name) &&
             (read.tensor.is_parameter ? origin.parameter : read.tensor.sizes().equals(origin.facts.shape));
    };
    const auto& causes = replay.provenance->causes();
    const auto cause = std::find_if(causes.begin(), causes.end(), is_of_it);
    return cause == causes.end() ? nullptr : std::make_shared<Provenance>(*cause);
  }

  // Whether a compiled region has made the event's values.
  static bool is_border(const Event& event) {
    return event.type == EventType::kResult && event.region != nullptr && event.region->is_border();
  }

  // Whether the event has a bad input but was not scanned: its result did not exist yet, or was proved finite before
  // the input was known to be bad, and is gone. The check of the next result reports it. A result that was proved
  // although nothing was assumed of its input is finite.
  static bool is_presumed_bad(const Event& event, c10::ArrayRef<BadInput> bad_inputs) {
    if (event.type == EventType::kPending) return !bad_inputs.empty();
    if (event.type != EventType::kResult || event.scanner != nullptr || !event.is_proved) return false;
    return std::any_of(bad_inputs.begin(), bad_inputs.end(), [](const BadInput& input) {
      Devices::Lock locked(devices());
      const Event* written = locked.journal().find(input.input.event);
      return written == nullptr || !written->expects_infinity;
    });
  }

  // An infinity is not intentional if an argument was bad.
  std::optional<NonfiniteKinds> kinds_of(const Event& event, bool is_given_bad) const {
    const DeviceScans* found = window_.scans_of(event);
    if (found == nullptr) return std::nullopt;
    return is_given_bad && found->holds_infinity(event) ? NonfiniteKinds::only_inf() : found->kinds_of(event);
  }

  static void record_uses(const Event& event, c10::ArrayRef<BadInput> bad_inputs) {
    if (event.type == EventType::kHarm) return;
    for (const BadInput& input : bad_inputs) record_use(*input.bad.provenance, *event.plan);
  }

  std::shared_ptr<const Provenance> provenance_of(const Event& event, c10::ArrayRef<BadInput> bad_inputs,
                                                  NonfiniteKinds kinds, DetectionSession& session) {
    const bool may_be_replayed = is_border(event) && !is_lost(event);
    const bool is_explained = event.given != nullptr || is_explained_by(bad_inputs, kinds);
    if (!may_be_replayed || (is_explained && !has_unused(bad_inputs, kinds)))
      return evident_provenance_of(event, bad_inputs, kinds, session);
    LateReplay replay = replay_call(event, session);
    const bool has_found = replay.provenance != nullptr && !replay.provenance->first().origin->border;
    if (replay.provenance != nullptr && (has_found || !is_explained)) return replay.provenance;
    if (replay.obstacle.empty() || is_explained) return evident_provenance_of(event, bad_inputs, kinds, session);
    Event followed = event;
    auto region = std::make_shared<ReplayedRegion>(*event.region);
    region->facts.obstacle = std::move(replay.obstacle);
    followed.region = std::move(region);
    return evident_provenance_of(followed, bad_inputs, kinds, session);
  }

  static bool is_lost(const Event& event) { return event.scanner != nullptr && event.scanner->is_lost(); }

  // Replays the call of the region that has made a result, which resolves its own operations.
  LateReplay replay_call(const Event& result, DetectionSession& session) {
    resolving_.end();
    return replay_late(session, result.number, [this](EventNumber number) { return kinds_at(number); });
  }

  // Whether what a compiled region was given explains its result. A mask explains infinities, but no NaN.
  static bool is_explained_by(c10::ArrayRef<BadInput> bad_inputs, NonfiniteKinds kinds) {
    const auto is_mask = [](const BadInput& input) {
      return input.bad.provenance->is_intentional() && !input.bad.kinds.nan();
    };
    return !bad_inputs.empty() && (!kinds.nan() || !std::all_of(bad_inputs.begin(), bad_inputs.end(), is_mask));
  }

  // Whether a region was given a NaN that no operation has been seen to use: a replay shows which one does.
  static bool has_unused(c10::ArrayRef<BadInput> bad_inputs, NonfiniteKinds kinds) {
    return kinds.nan() && std::any_of(bad_inputs.begin(), bad_inputs.end(), [](const BadInput& input) {
             const OriginRecord& origin = *input.bad.provenance->first().origin;
             return origin.source != OriginRecord::Source::kOperation && origin.entry() == nullptr;
           });
  }

  NonfiniteKinds kinds_at(EventNumber number) const {
    const auto is_before = [](const Event& event, EventNumber wanted) { return event.number < wanted; };
    const auto event = std::lower_bound(window_.events.begin(), window_.events.end(), number, is_before);
    if (event == window_.events.end() || event->number != number) return {};
    return kinds_of(*event, false).value_or(NonfiniteKinds());
  }

  std::shared_ptr<const Provenance> evident_provenance_of(const Event& event, c10::ArrayRef<BadInput> bad_inputs,
                                                          NonfiniteKinds kinds, DetectionSession& session) {
    const auto largest_word = [this](const Event& input) { return largest_word_of(input); };
    DeviceEvidence evidence(event, bad_inputs, session, largest_word);
    return attribute(evidence, kinds);
  }

  std::optional<uint64_t> largest_word_of(const Event& event) const {
    const DeviceScans* scans = window_.scans_of(event);
    return scans == nullptr || scans->is_lost ? std::nullopt : std::optional(scans->largest_word_of(event));
  }

  // The replay of a region writes copies; the region's own writes do the harm.
  static bool is_replayed(const Event& event) { return event.region != nullptr && !event.region->is_border(); }

  std::shared_ptr<OriginRecord> new_origin(const Event& event, NonfiniteKinds kinds, DetectionSession& session) {
    return device_origin(event, kinds, session, [this](const Event& input) { return largest_word_of(input); });
  }

  void remember(const Event& event, std::shared_ptr<const Provenance> provenance, NonfiniteKinds kinds,
                bool is_presumed, DetectionSession& session) {
    has_found_something_ |= kinds.nan() || !event.expects_infinity;
    const bool is_new = is_new_accident(*provenance);
    if (is_new && !event.plan->returns_info && !is_replayed(event)) record_unused(session, provenance);
    if (is_new && session.reports_origins()) report(event, *provenance, HarmKind::kOrigin, kinds, "", session);
    BadEvent bad{kinds, std::move(provenance), is_presumed, event.expects_infinity};
    const std::lock_guard lock(known.mutex);
    known.bad[event.number] = std::move(bad);
  }

  // Reports the event whose alarm was all that a lost device has left. Whether its values did harm is not known.
  void report_unread(const Event& event, const BadEvent& bad, const std::shared_ptr<DetectionSession>& session) {
    const Cause& cause = bad.provenance->first();
    if (cause.origin->reported.exchange(true)) return;
    Finding finding = make_finding(cause, Level::kWarning, Harm{}, *session);
    finding.hint = "the device failed before the values could be read: they are NaN or Inf";
    if (event.limit() < event.max_intended()) finding.hint += format_text(", or |x| is above {:.4g}", event.assumed);
    findings_.emplace_back(session, std::move(finding));
  }

  void report_parameter(const Event& event, const Provenance& provenance, NonfiniteKinds kinds,
                        DetectionSession& session) {
    if (is_replayed(event)) return;
    const bool is_written = event.type == EventType::kResult && event.tensor.is_parameter;
    if (!is_parameter_harmed(provenance, is_written, [&] { return event.site(); }, session)) return;
    report(event, provenance, HarmKind::kParameter, kinds, owner_name(event, session), session);
  }

  // Of a gradient that is presumed bad, only the parameters that were updated with it tell whether a mask has stopped
  // the values before: they still exist, and are scanned.
  void report_harm_event(const Event& event, c10::ArrayRef<BadInput> bad_inputs, std::optional<NonfiniteKinds> found,
                         DetectionSession& session) {
    if (event.scanner != nullptr && !found) return;  // a healthy part of the memory
    if (bad_inputs.empty() && !found) return;
    for (const BadInput& input : bad_inputs) {
      if (input.bad.is_presumed && !found) continue;
      report(event, *input.bad.provenance, event.harm, found.value_or(input.bad.kinds), "", session);
    }
    if (!bad_inputs.empty()) return;
    const Provenance provenance(Cause{new_origin(event, *found, session), *found});
    report(event, provenance, event.harm, *found, "", session);
  }

  void report(const Event& event, const Provenance& provenance, HarmKind harm, NonfiniteKinds kinds,
              const std::string& name, DetectionSession& session) {
    auto finding = make_harm_finding(session, provenance, harm, kinds, event.site(), [&] { return name; });
    if (finding) findings_.emplace_back(session.shared_from_this(), std::move(*finding));
  }

  const Window& window_;
  Resolving& resolving_;
  std::unordered_map<EventNumber, const Event*> captured_;
  std::set<EventNumber> visited_;
  SessionFindings findings_;
  bool has_found_something_ = false;
};

// Whether the values are infinite, and their causes have done no harm.
bool are_harmless(const BadEvent& bad) {
  const auto is_reported = [](const Cause& cause) { return cause.origin->reported.load(); };
  const auto& causes = bad.provenance->causes();
  return !bad.kinds.nan() && !bad.provenance->is_intentional() &&
         std::none_of(causes.begin(), causes.end(), is_reported);
}

// A loss scaler skips a step because of infinities that later steps do not have.
void count_harmless(const std::vector<Event>& events) {
  for (const Event& event : events) {
    const auto session = event.session.lock();
    const bool is_skipped = session == nullptr || session->is_skipped_step(event.step);
    if (!is_skipped) Devices::Lock(devices()).assumptions().count_harmless(event);
  }
}

// Forgets bad events whose values are gone or overwritten, unless an attribution that waits for a replay may need them.
// Returns whether unexpected and unintentional ones remain.
bool prune_dead() {
  std::vector<std::pair<EventNumber, bool>> numbers;
  if (known.attributions == 1) {
    const std::lock_guard lock(known.mutex);
    for (const auto& [number, bad] : known.bad) numbers.emplace_back(number, are_harmless(bad));
  }
  std::vector<EventNumber> gone;
  std::vector<Event> harmless;
  {
    Devices::Lock locked(devices());
    for (const auto& [number, is_harmless] : numbers) {
      const Event* event = locked.journal().find(number);
      if (event != nullptr && locked.journal().is_live(*event)) continue;
      gone.push_back(number);
      if (event != nullptr && is_harmless) harmless.push_back(*event);
    }
  }
  count_harmless(harmless);
  bool is_bad = false;
  std::vector<BadEvent> released;
  const std::lock_guard lock(known.mutex);
  for (const EventNumber number : gone) {
    const auto entry = known.bad.find(number);
    if (entry == known.bad.end()) continue;
    released.push_back(std::move(entry->second));
    known.bad.erase(entry);
  }
  for (const auto& [number, bad] : known.bad) is_bad |= !bad.expects_infinity && !bad.provenance->is_intentional();
  return is_bad;
}

void deliver_findings(SessionFindings findings, Delivery delivery) {
  while (!findings.empty()) {
    const auto session = findings.front().first;
    std::vector<Finding> its;
    for (auto& [whose, finding] : findings) {
      if (whose == session) its.push_back(std::move(finding));
    }
    std::erase_if(findings, [&](const auto& one) { return one.first == session; });
    if (delivery == Delivery::kNow) {
      deliver_all(*session, std::move(its));
    } else {
      deliver_deferred(*session, std::move(its));
    }
  }
}

}  // namespace

std::optional<BadEvent> bad_event(EventNumber number, bool alone) {
  std::vector<EventNumber> chain;  // whatever its memory may still hold
  {
    Devices::Lock locked(devices());
    for (EventNumber n = number; n != 0 && chain.size() < Journal::kMaxParts;) {
      chain.push_back(n);
      const Event* event = locked.journal().find(n);
      if (alone && event != nullptr && (event->type != EventType::kArgument || event->scanner != nullptr)) break;
      n = event == nullptr ? 0 : event->previous;
    }
  }
  const std::lock_guard lock(known.mutex);
  for (const EventNumber n : chain) {
    const auto found = known.bad.find(n);
    if (found != known.bad.end()) return found->second;
  }
  return std::nullopt;
}

bool has_known_bad() { return known.has_bad.load(std::memory_order_relaxed); }

bool is_resolved(EventNumber number) { return number < known.resolved_until; }

void resolve(Delivery delivery) {
  if (!devices().in_use() || devices().is_capturing()) return;
  SessionFindings findings;
  std::exception_ptr refused;  // a reset: the alarm is handled again later, and what was found is reported now
  {
    Resolving resolving;
    if (!resolving.has_begun()) return;  // another thread is resolving, or a caller further up in this one
    ThreadState::current().count(&Counters::device_resolves);
    ++known.attributions;
    const auto end = c10::make_scope_exit([] { --known.attributions; });
    const EventNumber first = known.resolved_until;
    const Window window = read_window(first);
    WindowAttribution attribution(window, resolving);
    known.resolved_until = window.end;  // what a replay resolves comes after that
    auto again = c10::make_scope_exit([first] { known.resolved_until = first; });
    attribution.run();
    again.release();
    for (const DeviceScans& found : window.found) {
      try {
        found.reset(!window.captured.empty());
      } catch (const std::exception&) {
        refused = std::current_exception();
      }
    }
    const bool is_bad = prune_dead();
    known.has_bad = is_bad || attribution.has_found_something();  // then the next read scans it once more
    findings = attribution.drain_findings();
  }
  deliver_findings(std::move(findings), delivery);
  if (refused != nullptr) std::rethrow_exception(refused);
}

void heed_alarm(DetectionSession& session, bool is_read) {
  if (session.reports_origins()) {
    devices().launch_all();
    return resolve(Delivery::kNow);
  }
  const bool is_replay = replayed_region() != nullptr;  // rare: its values are counted while they exist
  if (is_replay) {
    devices().launch_all();
    devices().wait_for_all();
  }
  const bool is_harm = is_read && has_known_bad();
  const bool is_new = devices().is_alarmed() && (is_replay || !has_known_bad());
  if (is_harm || is_new) resolve(is_read ? Delivery::kNow : Delivery::kDeferred);
  if (is_read) raise_deferred(session);
}

void report_on_devices(DetectionSession& session, HarmKind harm, const OpPlan& reader,
                       c10::ArrayRef<at::Tensor> tensors) {
  if (!devices().in_use()) return;
  const EventContext context(reader, session, ThreadState::current().id());
  HarmRecorder recorder(harm, context, session);
  for (const at::Tensor& tensor : tensors) recorder.add(tensor);
  recorder.finish();
  devices().launch_all();                                 // a step is about to end, or its backward pass to begin
  if (harm == HarmKind::kRead) devices().wait_for_all();  // as the read will do anyway
  if (devices().is_alarmed() || has_known_bad() || session.reports_origins()) {
    resolve(Delivery::kNow);
  }
  raise_deferred(session);
}

namespace {

const OpPlan& no_operation = *new OpPlan;

// Returns the context of an event that no operation caused. It belongs to no session, so it is not attributed.
EventContext context_without_operation() {
  EventContext context;
  context.plan = &no_operation;
  return context;
}

// Returns the current magnitudes of tensors, by scans that raise no alarm; nothing for a tensor that is undefined or
// cannot be scanned. Waits for the devices.
std::vector<std::optional<uint64_t>> scan_again(c10::ArrayRef<at::Tensor> tensors) {
  const EventContext context = context_without_operation();
  std::vector<std::pair<EventNumber, Scanner*>> scanned;
  for (const at::Tensor& tensor : tensors) {
    scanned.emplace_back(0, nullptr);
    if (!tensor.defined()) continue;
    Scanner* const scanner = Scanner::of(tensor.device());
    const CurrentStream stream = scanner->current_stream();
    ScanList scans;
    scanned.back().second = scanner;
    {
      Devices::Lock locked(devices());
      const Event* const event = locked.add(EventType::kContinuation, tensor, context, stream);
      if (event == nullptr || !scans.add(tensor, event->number, cuda::kNoAlarm)) continue;
      scanned.back().first = event->number;
    }
    devices().launch(scans, stream);
  }
  std::vector<std::optional<uint64_t>> words(tensors.size());
  for (DeviceState* state : devices().states()) {
    DeviceScans found{state};
    found.read();
    for (size_t i = 0; i < scanned.size(); ++i) {
      const auto [number, scanner] = scanned[i];
      if (number != 0 && scanner == &state->scanner) words[i] = found.slots[number % cuda::kSlots].max_magnitude;
    }
  }
  return words;
}

bool is_finite(const at::Tensor& tensor, std::optional<uint64_t> largest_word) {
  return largest_word && *largest_word < float_format(tensor.scalar_type())->infinity;
}

}  // namespace

std::vector<NonfiniteKinds> kinds_on_devices(c10::ArrayRef<at::Tensor> tensors) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& tensor : tensors) values.push_back(*scannable(tensor));
  const auto words = scan_again(values);
  std::vector<NonfiniteKinds> kinds(tensors.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const bool is_bad = values[i].defined() && !is_finite(values[i], words[i]);
    if (is_bad) kinds[i] = compute_stats_on_device(values[i]).kinds();
  }
  return kinds;
}

bool may_be_bad(const at::Tensor& tensor) {
  const auto values = scannable(tensor);
  return values->defined() && (devices().is_capturing() || !is_finite(*values, scan_again({*values}).front()));
}

std::shared_ptr<const Provenance> provenance_of_last_write(const at::Tensor& tensor) {
  const auto values = scannable(tensor);
  if (!values->defined()) return nullptr;
  resolve(Delivery::kDeferred);
  const EventNumber last = Devices::Lock(devices()).journal().last_event(*values);
  if (const auto bad = bad_event(last)) return bad->provenance;
  const NonfiniteKinds kinds = kinds_on_devices(tensor).front();
  return kinds.any() ? intended_provenance(last, kinds) : nullptr;
}

void record_bad_write(const at::Tensor& tensor, std::shared_ptr<const Provenance> provenance) {
  const auto values = scannable(tensor);
  if (!values->defined()) return;
  const CurrentStream stream = Scanner::of(values->device())->current_stream();
  const EventContext context = context_without_operation();
  EventNumber number = 0;
  {
    Devices::Lock locked(devices());
    const Event* const event = locked.add(EventType::kResult, *values, context, stream);
    if (event == nullptr) return;
    number = event->number;
    locked.journal().set_last_event(*values, number);
  }
  BadEvent bad;
  for (const Cause& cause : provenance->causes()) bad.kinds |= cause.kinds;
  bad.provenance = std::move(provenance);
  const std::lock_guard lock(known.mutex);
  known.bad[number] = std::move(bad);
  known.has_bad = true;
}

std::vector<LiveBadTensor> live_bad_tensors() {
  std::vector<std::pair<EventNumber, BadEvent>> bad;
  {
    const std::lock_guard lock(known.mutex);
    bad.assign(known.bad.begin(), known.bad.end());
  }
  std::vector<WeakTensor> tensors;
  {
    Devices::Lock locked(devices());
    for (const auto& [number, event] : bad) {
      const Event* found = locked.journal().find(number);
      tensors.push_back(found == nullptr ? WeakTensor() : locked.journal().find_tensor(*found));
    }
  }
  std::vector<LiveBadTensor> alive;
  for (size_t i = 0; i < bad.size(); ++i) {
    at::Tensor tensor = tensors[i].lock();
    if (tensor.defined()) alive.push_back({std::move(tensor), std::move(bad[i].second)});
  }
  if (alive.empty() || devices().is_capturing()) return alive;
  std::vector<at::Tensor> values;
  for (const LiveBadTensor& one : alive) values.push_back(one.tensor);
  const auto words = scan_again(values);
  std::vector<LiveBadTensor> still_bad;
  for (size_t i = 0; i < alive.size(); ++i) {
    if (!is_finite(values[i], words[i])) still_bad.push_back(std::move(alive[i]));
  }
  return still_bad;
}

void forget_all_events(const DetectionSession& session) {
  if (!devices().in_use()) return;
  std::unordered_map<EventNumber, BadEvent> released;
  {
    const std::lock_guard lock(known.mutex);
    released.swap(known.bad);
    known.has_bad = false;
  }
  run_contained(session, "launching pending scans", [] { devices().launch_all(); });
  Devices::Lock locked(devices());
  locked.journal().forget_all();
  known.resolved_until = locked.journal().next();
}

}  // namespace torchnan
