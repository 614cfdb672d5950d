// One call of a compiled region: records everything that its replay needs, and checks its results.
#pragma once

#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>

#include "intercept/region_border.h"
#include "origin/current_call_site.h"
#include "detection/session.h"
#include "detection/thread_state.h"
#include "device/device_check.h"
#include "device/region_mark.h"
#include "intercept/received_values.h"
#include "origin/late_replay.h"
#include "origin/nonfinite_registry.h"
#include "origin/replayed_region.h"
#include "python/kept_inputs.h"

namespace torchnan {

// Keeps the provenance of a value alive: the value may be gone by the time another is found to have the same
// provenance.
struct ProvenanceHandle {
  NonfiniteRegistry::ProvenancePtr provenance;
};

// Returns the provenance of a tensor's non-finite values; nothing if none is known.
std::optional<ProvenanceHandle> provenance_of(const at::Tensor& tensor);

// Whether this thread runs the generated code of a region on a device. It passes addresses to kernels whose results are
// checked at the border.
bool is_running_region_on_device() noexcept;

// The index of a non-finite value among the checked ones, and the bits of its kinds.
using BadValues = std::vector<std::pair<size_t, int>>;

// The facts about a region that are the same for every call.
struct RegionBorder {
  std::vector<size_t> mutated;        // indices of the arguments that a call overwrites, ascending
  std::vector<size_t> unread;         // those among them of whose previous values no other result depends
  pybind11::tuple own;                // the graph's own tensors, which precede the arguments; none once it is discarded
  CompiledRegion facts;               // the compiled function, and why no call can be replayed, if so
  pybind11::function parts;           // returns the plain tensors that a wrapper subclass consists of
  pybind11::function is_distributed;  // returns whether a tensor is distributed
  std::optional<c10::Device> device;  // of the results, if that is not the host
  bool has_collectives = false;       // whether the graph has collectives; a distributed argument brings others
  std::vector<size_t> compared;       // indices of the arguments that comparisons depend on
  std::vector<size_t> unwritten;      // indices of the results that are uninitialized memory
  // records which results of a call are uninitialized, and where they were allocated
  pybind11::function note_unwritten;
  pybind11::function watch_backward;  // lets the class of a backward node check the results of its nodes
  // returns the provenances, by index, of results that a device has found to be non-finite after the call
  pybind11::function explain_late;
  std::optional<bool> is_random;    // not known before the first call
  PyTypeObject* watched = nullptr;  // the class that `watch_backward` was called with last
  int64_t finite_calls = 0;         // calls with finite results
  int64_t finite_passes = 0;        // backward passes with finite gradients

  // Takes the facts by their names above, those of the compiled function as `region`, `file`, `line` and `obstacle`.
  // Throws KeyError if one is missing.
  explicit RegionBorder(const pybind11::kwargs& given);

  // Returns the region as the report names it when a device finds a result that is not finite, and nothing replays the
  // call. `may_be_held`: the next call may hold its inputs and wait.
  std::shared_ptr<const ReplayedRegion> on_device(std::string_view obstacle, bool may_be_held);

  const std::shared_ptr<RegionMark> mark = std::make_shared<RegionMark>();  // of calls on devices

 private:
  std::shared_ptr<const ReplayedRegion> on_device_;  // the last one
};

// The modes of a thread that change what operations do.
struct Modes {
  bool grad = c10::GradMode::is_enabled();
  bool inference = c10::InferenceMode::is_enabled();
  bool packs_saved = at::SavedTensorDefaultHooks::get_hooks().has_value();  // by hooks of the program
  std::vector<std::pair<std::string, at::ScalarType>> autocast;

  Modes();
};

// Keeps everything that the replay of a call needs until its results, or those of its backward pass, have been checked.
// Its constructor chooses a state (choose_state()); later:
//   kHeld -> kLost      after its backward pass (release()), or if that finds other values in the inputs
//   kHeld -> kRefused   if its collectives bring too many bytes (run_receiving())
//   kKept -> kHeld      if a result on the host is not finite
//   kKept -> kLost      when kept_calls.h drops it, or if a gradient on the host is not finite (forget())
class RegionCall : public std::enable_shared_from_this<RegionCall> {
 public:
  RegionCall(std::shared_ptr<RegionBorder> border, const pybind11::tuple& args, DetectionSession& session);

  // Calls a function of generated code. Kernels that it calls through the dispatcher are part of the region and are not
  // checked: they work on memory of fused kernels, which was not observed. The values that collectives bring are kept,
  // because a replay on this rank alone cannot receive them again.
  pybind11::object run(const pybind11::handle& function, const pybind11::tuple& args);

  // Records the gradients of the results that the region's backward pass is given. The pass itself is run() then.
  void begin_backward(const pybind11::tuple& gradients);

  // Checks the results of the region, followed by the arguments that it wrote. Those on devices are scanned later,
  // unless the call is held.
  BadValues check_results(const pybind11::handle& results);

  // Records the results that its backward pass may read on devices. Called after check_results(), and after bad results
  // have got their provenance.
  void record_read_by_backward(const pybind11::handle& results);

  // Records the stack on which the region is called.
  void note_stack();

  // Releases everything that the replay of a backward pass does not need.
  void end_forward();

  // Checks the results of the region's backward pass.
  BadValues check_gradients(const pybind11::handle& gradients);

  // Releases everything that only a replay needs, unless the call is kept.
  void release();

  // The same for a kept call, which cannot be replayed any more.
  void forget();

  // Whether the call or its backward pass has a result with this event.
  bool has_result(uint64_t event) const;

  // Releases the memory that a kept call holds. It can still be replayed if the program keeps its inputs.
  void release_memory() { kept_.inputs.release_memory(); }

  // Returns the bytes that are kept alive after the call.
  int64_t bytes_kept() const { return kept_.inputs.bytes(); }

  // Finds the provenance of a result of a kept call.
  LateReplay replay_late(uint64_t event, KindsOfEvent kinds_of);

  // Sets the node that made the call as the current node of this thread, for finding origins.
  void enter_node() const { set_replayed_node(inside_); }
  bool is_inside_node() const { return inside_.has_value(); }

  pybind11::list arguments() const;
  pybind11::list written() const;
  pybind11::object received() const;     // operator, group, value (or None) of all received; None without collectives
  pybind11::dict random_states() const;  // of generators before the call, by device; empty if it draws nothing
  pybind11::dict device_random_states_after() const;  // those of devices after it; empty if it draws nothing
  const std::vector<size_t>& copied_indices() const { return held_.copied_indices; }
  const std::vector<std::pair<size_t, int64_t>>& outputs() const { return outputs_; }
  std::vector<uintptr_t> ids() const;  // of the arguments, as Python's id()
  std::string device() const { return device_ ? device_->str() : ""; }
  std::string_view obstacle() const { return state_ == State::kRefused ? std::string_view(refusal_) : loss_; }
  const Modes& modes() const { return modes_; }
  size_t boxed() const { return boxed_; }
  SiteId stack() const { return stack_; }
  // Of a call that is replayed later: the stack of its backward pass, and its step; else 0.
  SiteId stack_of_pass() const { return kept_.backward.stack; }
  int64_t step() const { return kept_.step; }
  const pybind11::object& given() const { return given_; }
  const pybind11::object& provenances() const { return provenances_; }
  void set_provenances(pybind11::object found) { provenances_ = std::move(found); }

 private:
  using Objects = c10::SmallVector<pybind11::object, 16>;

  // What becomes of a result that is not finite.
  enum class State {
    kHeld,     // the call holds its inputs, and is replayed at once; on a device it waits for the results
    kKept,     // a device reports the result later, and the call is replayed then, if its inputs still exist
    kLost,     // the inputs are gone: a new origin
    kRefused,  // the same, and every such call is refused
  };

  // An argument that a call overwrites without reading it: a replay gets zeros.
  struct Unread {
    size_t index;
    std::vector<int64_t> sizes;
    at::TensorOptions options;
  };

  // What a kept call, or its backward pass, has returned.
  struct LateResults {
    std::vector<std::pair<size_t, uint64_t>> events;  // indices of the results, and the events that recorded them
    std::optional<std::map<size_t, std::shared_ptr<const Provenance>>> found;  // once they have been replayed
    SiteId stack = 0;

    void record(const std::vector<RegionResult>& parts);
    bool has(uint64_t event) const;
  };

  // What only a replay needs.
  struct Held {
    std::vector<pybind11::object> arguments;  // the region's own tensors and its arguments
    std::vector<int64_t> versions;            // versions of the arguments at the end of the call
    std::vector<size_t> copied_indices;       // indices of overwritten arguments, which a replay gets copies of
    std::vector<Unread> unread;               // those of them that were not copied
    at::Tensor random_state;                  // of the host's generator
    at::Tensor device_random_state;           // of that of device_
    at::Tensor device_random_state_after;     // the same after the call
  };

  // What a kept call needs beside it, in place of the arguments.
  struct Kept {
    KeptInputs inputs;
    std::vector<uintptr_t> ids;  // as ids()
    int64_t step = 0;
    LateResults forward;
    LateResults backward;
  };

  static Objects items_of(const pybind11::handle& results);
  static bool is_differentiable(const Objects& outputs);

  bool can_be_replayed() const { return state_ == State::kHeld || state_ == State::kKept; }
  void refuse(std::string why);
  void lose(const char* why);
  void drop_inputs();

  void record(const pybind11::tuple& args, DetectionSession& session);
  void hold(const pybind11::tuple& args);
  void choose_state(DetectionSession& session, int64_t bytes_to_copy);
  bool has_to_be_held(DetectionSession& session) const;
  bool may_be_kept(int64_t bytes_to_copy) const;
  void record_argument(size_t index);
  int64_t record_mutated();
  void prepare_writes() const;
  bool has_to_be_copied(size_t index, const at::Tensor& tensor) const;
  void keep_mutated();
  template <typename Values>
  void record_on_devices(const Values& values, DeviceCheck::Arguments& recorded, DetectionSession& session) const;
  template <typename Visit>
  void visit_parts(const pybind11::handle& value, Visit&& visit) const;
  template <typename Values>
  std::vector<at::Tensor> parts_of(const Values& values) const;
  void record_compared(DetectionSession& session) const;
  void record_given();
  void note_given();
  pybind11::object run_receiving(const pybind11::handle& function, const pybind11::tuple& args);
  void resolve_earlier_alarm() const;
  bool find_late(LateResults& results, KindsOfEvent kinds_of);
  void note_randomness();
  BadValues check_all(const Objects& values, DetectionSession& session, const DeviceCheck::Arguments& arguments,
                      const std::vector<size_t>& unwritten, LateResults& late);
  void heed_devices(DetectionSession& session) const;
  void attach_to_node(const Objects& outputs);
  bool is_untouched() const;

  std::shared_ptr<RegionBorder> border_;
  Held held_;
  Kept kept_;
  std::vector<pybind11::object> written_;            // the tensors themselves
  std::vector<std::pair<size_t, int64_t>> outputs_;  // index of a result, and its index among the node's results
  Modes modes_;
  std::optional<NodeSite> inside_ = current_node_site();  // the node whose hook or function makes the call
  State state_ = State::kHeld;
  std::string refusal_;    // why it is refused
  const char* loss_ = "";  // why it is lost
  // provenance of a non-finite argument that is overwritten and was not copied
  pybind11::object given_ = pybind11::none();
  pybind11::object provenances_ = pybind11::tuple();  // of the region's results, once they have been found
  SiteId stack_ = 0;
  size_t boxed_ = 0;         // number of arguments in a list, which the call empties
  ReceivedValues received_;  // by the collectives of the call, and then of its backward pass
  bool has_collectives_ = false;
  std::optional<c10::Device> device_;      // of the first argument that is not on the host, or of the results
  DeviceCheck::Arguments on_devices_;      // what the backward pass may read on devices: arguments and results
  DeviceCheck::Arguments given_backward_;  // what the last backward pass read there
};

}  // namespace torchnan
