#include "intercept/device_step.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "device/resolve.h"
#include "origin/arguments.h"
#include "check/scan/storage_of.h"

namespace torchnan {
namespace {

EventContext context_of(const char* operation, ThreadState& thread, DetectionSession& session) {
  const OpPlan& plan = plan_of(c10::Dispatcher::singleton().findSchemaOrThrow(operation, "Scalar"));
  return {plan, session, thread.id()};
}

}  // namespace

DeviceStep::DeviceStep(ThreadState& thread, DetectionSession& session, uint64_t times_voided)
    : thread_(thread),
      session_(session),
      is_proof_void_(devices().times_voided() != times_voided),
      average_(context_of("aten::_foreach_lerp_", thread, session)),
      square_(context_of("aten::_foreach_addcmul_", thread, session)),
      update_(context_of("aten::_foreach_addcdiv_", thread, session)),
      scans_(thread, session) {}

// The history of two moments is identified by the write to the first one, which comes before.
void DeviceStep::add(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& first_moment,
                     const at::Tensor& second_moment, const AdamBounds& after, bool is_parameter_proved,
                     bool has_history) {
  scans_.choose(parameter.device());
  Devices::Lock locked(devices());
  bool is_void = is_proof_void_;
  for (const at::Tensor* tensor : {&parameter, &gradient, &first_moment, &second_moment}) {
    is_void |= !locked.journal().look_up(*tensor).is_reported;  // others may have written there since the proof
  }
  const auto predicted = [is_void](const Bound& bound, bool is_proved, const Moments::Claim* claim) {
    return is_void ? Prediction{.bound = {}, .claim = claim}
                   : Prediction{.bound = bound, .is_proved = is_proved, .claim = claim};
  };
  const auto read = [&](const at::Tensor& tensor, uint16_t argument) {
    return EventInput{
        locked.journal().last_event(tensor), storage_of(tensor), index_, argument, argument == 0, is_parameter(tensor)};
  };
  const Moments::Claim mean = Moments::claim_of_mean();
  record(locked, average_, first_moment, {read(first_moment, 0), read(gradient, 1)},
         predicted({after.first_moment}, true, &mean));
  const uint64_t write = locked.journal().look_up(first_moment).write_number();
  const Moments::Claim squares =
      Moments::claim_of_squares(write, has_history && !is_void ? after.history : MomentHistory());
  record(locked, square_, second_moment, {read(second_moment, 0), read(gradient, 1), read(gradient, 2)},
         predicted({after.second_moment, true}, true, &squares));
  record(locked, update_, parameter, {read(parameter, 0), read(first_moment, 1), read(second_moment, 2)},
         predicted({after.parameter}, is_parameter_proved, nullptr));
  ++index_;
}

void DeviceStep::record(Devices::Lock& locked, const EventContext& operation, const at::Tensor& written,
                        std::initializer_list<EventInput> read, const Prediction& predicted) {
  scans_.make_room(locked);
  Event* const event = locked.add_reader(EventType::kResult, written, operation, scans_.stream(), read);
  if (event == nullptr) return locked.journal().forget(written);
  event->output = index_;
  locked.journal().set_last_event(written, event->number);
  thread_.counters().checked.add(1);
  scans_.fill_bound(locked, *event, written, predicted);
  if (!event->is_proved) scans_.add(locked, *event, written, /*may_wait=*/false);
  if (predicted.claim != nullptr)
    thread_.moments().record(written, *predicted.claim, locked.journal().look_up(written).write_number());
}

void DeviceStep::finish() {
  if (index_ == 0) return;
  scans_.finish();
  heed_alarm(session_, /*is_read=*/false);
}

}  // namespace torchnan
