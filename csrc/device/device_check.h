// Records the tensors that one call reads and writes on devices, and hands them to the scan. Never waits for the
// device.
#pragma once

#include <forward_list>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include "check/bounds/bound_source.h"
#include "check/bounds/operand.h"
#include "check/bounds/prediction.h"
#include "device/devices.h"
#include "device/stream_scans.h"
#include "check/operators/op_plan.h"
#include "origin/attribution.h"
#include "detection/thread_state.h"

namespace torchnan {

// Lives on the stack of the call. In a healthy call it allocates nothing, and takes the lock of the journal once for
// all arguments and once for all results.
//
// Scans are launched before user code regains control, so every event that user code records comes after them: memory
// that it then frees or hands to another stream has been read. Only new results on the default stream of a device wait
// to be launched together, and none of a backward pass: autograd adds to a gradient in place only if nothing else holds
// its storage.
class DeviceCheck final : public ExternalBounds {
 public:
  // Whether a tensor of a call with these keys may be on a device that can have a scanner. A process without such a
  // device pays only for this test.
  static bool concerns(c10::DispatchKeySet keys) { return keys.has_any(kScannedBackends); }

  // `site` is the call site, 0 if it was not looked up.
  DeviceCheck(const OpPlan& plan, ThreadState& thread, DetectionSession& session, SiteId site = 0)
      : plan_(plan), thread_(thread), session_(session), site_(site), scans_(thread, session) {}

  // The arguments of a call, as they were recorded.
  struct Arguments {
    std::vector<EventInput> read;
    NonfiniteKinds intended;
    std::shared_ptr<const Provenance> given;  // causes on the host
  };
  Arguments arguments() const;

  // Begins the check of what a compiled region has returned or written. Its arguments were recorded by another check.
  void begin_results(const Arguments& arguments, std::shared_ptr<const ReplayedRegion> region);

  // Records the arguments as they were passed: scans those whose last write was not observed, and launches the scans of
  // those that the call is about to overwrite.
  void record_arguments(c10::ArrayRef<Operand> arguments);

  // For arguments.
  Bound bound_of(const at::Tensor& tensor) const override;
  bool is_made_by(const at::Tensor& tensor, std::string_view op) const override {
    return known_of(tensor).is_made_by(op);
  }
  uint64_t write_of(const at::Tensor& tensor) const override { return known_of(tensor).write_number(); }

  // Whether an argument is on a device. A copy from there to the host must be scanned on the host, because its bound
  // may be only assumed.
  bool reads_devices() const { return !read_.empty(); }

  // Adds a tensor that the call has written. It is recorded when the call ends, and scanned unless it is proved finite.
  // The tensor and the data of its prediction must live until then. Returns false if it is not on a device with a
  // scanner.
  bool add_result(const at::Tensor& result, int64_t output, const Prediction& known);

  // Forgets a tensor that a failed call may have written.
  void forget(const at::Tensor& written);

  // Ends the call: records its results, and launches their scans.
  void record();
  // The same. If devices have raised the alarm, also reports why. Throws if a session demands that and the call reads a
  // value.
  void finish();

  // Adds the arguments on devices that may explain a non-finite result on the host; `tensor_at` returns an argument by
  // its index in the schema and in its list. Waits for the devices.
  using TensorAt = c10::function_ref<at::Tensor(size_t argument, int64_t element)>;
  void find_bad_arguments(TensorAt tensor_at, c10::SmallVectorImpl<BadArgument>& bad_arguments);

  // Whether results on the host may not have been written yet.
  bool is_copying_in_background() const { return non_blocking_ && !read_.empty(); }

 private:
  // An argument or a result that can be scanned. `values` is the tensor itself, or one of containers_.
  struct Input {
    Journal::RecordedKnowledge known;
    const at::Tensor* tensor = nullptr;
    const at::Tensor* values = nullptr;
  };
  struct Result {
    const at::Tensor* values;
    int64_t output;
    Prediction predicted;
  };
  static constexpr int64_t kAll = -1;
  static constexpr size_t kMaxSearched = 16;

  const at::Tensor* values_of(const at::Tensor& tensor);
  // Calls visit(first, last) for each sequence on the same device, after choosing the device.
  template <typename Given, typename Visit>
  void for_each_run(Given& given, Visit&& visit);
  const Input* find_input(const at::Tensor& tensor) const;  // null if there is none
  Journal::RecordedKnowledge known_of(const at::Tensor& tensor) const;
  void collect_inputs(c10::ArrayRef<Operand> arguments);
  // Returns where the inputs at an index of the schema end.
  size_t end_of_inputs(size_t index) const;
  void add_argument(const at::Tensor& argument, uint16_t index, int32_t element, bool is_mutated);
  void record_argument(Devices::Lock& locked, Input& argument, EventInput& read);
  EventNumber record_unknown_argument(Devices::Lock& locked, const Input& argument, const EventInput& read);
  void record_pending(const Operand& argument);
  void record_read(c10::ArrayRef<Operand> arguments);
  void prepare_writes(c10::ArrayRef<Operand> arguments) const;
  void record_number(double number);
  EventType type_of_result(int64_t output) const;
  bool may_wait(const Result& result) const;
  void record_results();
  // `region`: the compiled region that made the result; null outside of regions.
  void record_result(Devices::Lock& locked, const Result& result, const std::shared_ptr<const ReplayedRegion>& region);
  void prove_nonnegative_argument(Devices::Lock& locked, int64_t output) const;
  c10::SmallVector<EventInput, Event::kMaxInputs> read_by_element(int64_t element) const;
  // Adds an event with the inputs of one output of this call, or of all. Returns null like Devices::Lock::add().
  template <typename Tensor>
  Event* add_reader(Devices::Lock& locked, EventType type, const Tensor& tensor, int64_t output);
  void record_use();

  const OpPlan& plan_;
  ThreadState& thread_;
  DetectionSession& session_;
  const SiteId site_;
  EventContext context_;
  StreamScans scans_;                                     // launched before the call ends
  c10::SmallVector<EventInput, Event::kMaxInputs> read_;  // the inputs, as events have them
  c10::SmallVector<Input, Event::kMaxInputs> inputs_;     // the same tensors; none for the border of a region
  c10::SmallVector<size_t, 16> first_inputs_;             // by index in the schema
  c10::SmallVector<Result, 2> results_;
  std::forward_list<at::Tensor> containers_;  // the values of sparse and nested arguments and results
  int64_t list_size_ = 1;
  std::shared_ptr<const Provenance> given_;
  std::shared_ptr<const ReplayedRegion> region_;  // whose border this is; null for an operation
  EventNumber reader_of_all_ = 0;                 // the first event with all inputs, which later ones share
  NonfiniteKinds numbers_;
  NonfiniteKinds intended_;  // for the inputs
  bool non_blocking_ = false;
  bool is_recorded_ = false;  // whether an event recorded it
};

}  // namespace torchnan
