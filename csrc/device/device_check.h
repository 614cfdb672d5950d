// What one call reads and writes on devices: noted, and given to be scanned. Nothing waits for the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "bounds/bound_source.h"
#include "bounds/operand.h"
#include "device/devices.h"
#include "operators/op_plan.h"
#include "origin/attribution.h"
#include "detection/thread_state.h"

namespace torchnan {

// Lives on the stack of the call. In a healthy call it allocates nothing, and takes one lock a few times.
class DeviceCheck final : public ExternalBounds {
 public:
  // Whether a tensor of a call with these keys may be on a device that can have a scanner. All that a program without
  // one pays.
  static bool concerns(c10::DispatchKeySet keys) {
    constexpr c10::DispatchKeySet kBackends({c10::BackendComponent::CUDABit, c10::BackendComponent::PrivateUse1Bit});
    return keys.has_any(kBackends);
  }

  DeviceCheck(const OpPlan& plan, ThreadState& thread, DetectionSession& session)
      : plan_(plan), thread_(thread), session_(session) {}

  // While the arguments are as they are passed: what nobody has seen is scanned, and so is, at last, what the call is
  // about to overwrite.
  void before(c10::ArrayRef<Operand> arguments);

  // Of an argument.
  Bound bound_of(const at::Tensor& tensor) const override;

  // Whether an argument is on a device. What comes to the host from there is looked at here: what is known of it may
  // be no more than assumed.
  bool reads_devices() const { return !inputs_.empty(); }

  // A tensor that the call has written, and what is known of it without looking. False if it is none of a device.
  bool after(const at::Tensor& result, int64_t output, const std::optional<Bound>& proof);

  // The call has failed: what it was to write is not known.
  void forget(const at::Tensor& written);

  // All results have been told. If devices have raised the alarm, says why; throws if a session wants that.
  void finish();

  // The call has brought something to the host that is not finite: of the arguments on devices, those that it may have
  // come from. Waits for the devices.
  void find_bad_arguments(c10::SmallVectorImpl<BadArgument>& bad_arguments);

  // Whether what is on the host now may not be there yet.
  bool is_copying_in_background() const { return non_blocking_ && !inputs_.empty(); }

 private:
  struct Input {
    at::Tensor tensor;
    EventInput seen;
  };
  static constexpr int64_t kAll = -1;

  void launch_what_is_overwritten(Devices::Turn& turn, c10::ArrayRef<Operand> arguments) const;
  void look_at(Devices::Turn& turn, const at::Tensor& argument, uint16_t place, int32_t element);
  EventNumber event_of(Devices::Turn& turn, const at::Tensor& tensor);
  void look_at_number(double number);
  c10::SmallVector<EventInput, Event::kMostInputs> inputs_of(int64_t output) const;
  // Adds an event that has read what this call reads for one of its outputs, or for all.
  Event& add_reader(Devices::Turn& turn, Event::What what, const at::Tensor& tensor, int64_t output);
  void judge(Devices::Turn& turn, Event& event, const at::Tensor& tensor, const std::optional<Bound>& proof);
  void note_use(Devices::Turn& turn);

  const OpPlan& plan_;
  ThreadState& thread_;
  DetectionSession& session_;
  c10::SmallVector<Input, Event::kMostInputs> inputs_;
  c10::SmallVector<size_t, 16> first_inputs_;  // by place in the schema
  int64_t list_size_ = 1;
  std::shared_ptr<const Provenance> given_;
  NonfiniteKinds numbers_;
  NonfiniteKinds meant_;  // of inputs
  bool non_blocking_ = false;
  bool is_noted_ = false;  // as an event
};

}  // namespace torchnan
