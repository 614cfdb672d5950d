// An optimizer step that is proved finite as a whole.
//
// Most calls of many training steps are those of the optimizer: ten for each parameter. If the bounds of a parameter,
// its gradient and its moments prove that the step cannot overflow, none of these calls is intercepted. A parameter is
// scanned afterwards if it is small, or if the history of its moments does not bound its growth.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>

#include "check/bounds/adam_step.h"
#include "detection/thread_state.h"

namespace torchnan {

// The tensors that a step reads and writes for one parameter.
struct AdamTensors {
  const at::Tensor& parameter;
  const at::Tensor& gradient;
  const at::Tensor& first_moment;
  const at::Tensor& second_moment;
  const at::Tensor* largest_second_moment;  // null without amsgrad
  const at::Tensor& steps;                  // how many there were before
};

class DeviceStep;

class TORCHNAN_API ProvedStep {
 public:
  // The step of this thread; one at a time.
  static ProvedStep& current();

  // Whether the session, and the current bounds, allow a proof. If not, nothing may be added.
  static bool is_possible(const DetectionSession& session);

  // Adds a parameter that the optimizer is about to update. Returns false if the update is not proved finite.
  // `results`: how many results the operations of the update have, for the counters.
  bool add(const AdamTensors& tensors, const AdamHyperparameters& hyperparameters, int64_t results);
  // Drops the added updates.
  void clear() noexcept { updates_.clear(); }

  // From here on this thread's calls are not intercepted. Returns false, and starts nothing, if updates share memory.
  bool try_start();
  // Makes proofs wrong, for tests: multiplies the proved bounds of parameters by this factor.
  static void falsify_for_test(double factor);
  bool is_under_way() const { return is_under_way_; }
  // Ends it: records the bounds of the parameters and moments; nothing, if the step was not completed.
  void finish(bool is_completed) noexcept;

 private:
  struct Update {
    at::Tensor parameter, gradient, first_moment, second_moment;
    at::Tensor largest_second_moment;  // undefined without amsgrad
    const c10::StorageImpl* steps;
    int64_t results;
    double parameter_before;  // its bound
    AdamBounds after;
  };

  bool has_separate_memory();
  void distrust_devices() const;
  static void record(const Update& update, ThreadState& thread, const DetectionSession& session,
                     DeviceStep& on_devices);
  static bool holds(const Update& update, Counters& counters);
  static void disprove(const DetectionSession& session);

  std::vector<Update> updates_;
  std::vector<const c10::StorageImpl*> written_;  // by the updates; kept for its memory
  uint64_t times_voided_ = 0;                     // of devices, when the first update was added
  bool is_under_way_ = false;
};

}  // namespace torchnan
