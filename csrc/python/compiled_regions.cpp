#include <torch/csrc/utils/pybind.h>  // first: tensors to and from Python

#include "python/compiled_regions.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/PyInterpreter.h>

#include "api/region_border.h"
#include "call_sites/current_call_site.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"
#include "intercept/op_entry.h"
#include "operators/dispatch_key.h"
#include "operators/op_traits.h"
#include "origin/nonfinite_registry.h"
#include "origin/replayed_region.h"
#include "python/convert.h"
#include "python/python_runtime.h"
#include "python/stack_table.h"
#include "report/enum_names.h"
#include "scan/tensor_scan.h"

namespace py = pybind11;

namespace torchnan {
namespace {

thread_local bool replays = false;

// Holds the provenance of a value that may be gone by the time another is found to have the same.
struct ProvenanceHandle {
  NonfiniteRegistry::ProvenancePtr provenance;
};

std::optional<ProvenanceHandle> provenance_of(const at::Tensor& tensor) {
  const at::Tensor values = scannable_values(tensor);
  if (!values.defined()) return std::nullopt;
  auto provenance = nonfinite_registry().find(values);
  if (provenance == nullptr) return std::nullopt;
  return ProvenanceHandle{std::move(provenance)};
}

ProvenanceHandle with_origins_found_before(const ProvenanceHandle& gradient, const ProvenanceHandle& forward) {
  return {with_origins_of_forward_pass(gradient.provenance, forward.provenance)};
}

void set_provenance(const at::Tensor& tensor, const ProvenanceHandle& handle) {
  if (const auto session = ThreadState::current().shared_session()) {
    set_region_provenance(*session, tensor, handle.provenance);
  }
}

const at::Tensor* tensor_in(const py::handle& value) {
  return THPVariable_Check(value.ptr()) ? &THPVariable_Unpack(value.ptr()) : nullptr;
}

bool is_subclass(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
}

at::Tensor random_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

bool has_drawn_since(const at::Tensor& before) {
  const at::Tensor now = random_state();
  return std::memcmp(now.const_data_ptr(), before.const_data_ptr(), now.nbytes()) != 0;
}

// A copy of what a call is about to overwrite, as the call was given it.
at::Tensor copied(const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard unwatched(kInterceptorKey);
  const at::NoGradGuard no_grad;
  at::Tensor copy = at::clone(tensor.detach());
  if (tensor.requires_grad()) copy.requires_grad_();
  record_copy(tensor, copy);
  return copy;
}

// A non-finite value by its index among those that were checked, and the bits of its kinds.
using BadValues = std::vector<std::pair<size_t, int>>;

// What is known of a region, whatever the call.
struct RegionBorder {
  std::vector<size_t> mutated;      // indices of the arguments that a call overwrites
  py::tuple own;                    // the graph's own tensors, which come before the arguments
  int64_t max_copied;               // bytes of what is overwritten that may be copied before a call
  std::string obstacle;             // why no call can be replayed; empty if they can
  py::function parts;               // returns the plain tensors that a wrapper subclass consists of
  py::function is_distributed;      // returns whether a tensor is
  std::vector<size_t> compared;     // indices of the arguments that comparisons depend on
  std::vector<size_t> unwritten;    // indices of the results that are memory which nobody has written
  py::function note_unwritten;      // records of a call's results where they were allocated
  py::function follow;              // lets the class of a backward node check what its nodes return
  std::optional<bool> is_random{};  // not known before the first call
  PyTypeObject* followed = nullptr;
};

std::shared_ptr<RegionBorder> make_border(std::vector<size_t> mutated, const py::tuple& own, int64_t max_copied,
                                          std::string obstacle, const py::function& parts,
                                          const py::function& is_distributed, std::vector<size_t> compared,
                                          std::vector<size_t> unwritten, const py::function& note_unwritten,
                                          const py::function& follow) {
  return std::make_shared<RegionBorder>(RegionBorder{std::move(mutated), own, max_copied, std::move(obstacle), parts,
                                                     is_distributed, std::move(compared), std::move(unwritten),
                                                     note_unwritten, follow});
}

// The modes of a thread that change what operations do.
struct Modes {
  bool grad = c10::GradMode::is_enabled();
  bool inference = c10::InferenceMode::is_enabled();
  std::vector<std::pair<std::string, at::ScalarType>> autocast;

  Modes() {
    for (const auto& [device, name] : {std::pair{at::kCPU, "cpu"}, std::pair{at::kCUDA, "cuda"}}) {
      if (at::autocast::is_autocast_enabled(device))
        autocast.emplace_back(name, at::autocast::get_autocast_dtype(device));
    }
  }
};

// The hooks that pack and unpack what operations save for their backward passes: None if there are none.
py::object saved_tensors_hooks() {
  const auto hooks = at::SavedTensorDefaultHooks::get_hooks();
  if (!hooks) return py::none();
  return py::make_tuple(py::handle(hooks->first.ptr(getPyInterpreter())),
                        py::handle(hooks->second.ptr(getPyInterpreter())));
}

// One call of a region. Holds what its replay needs until its results, or those of its backward pass, have been
// checked.
class RegionCall : public std::enable_shared_from_this<RegionCall> {
 public:
  RegionCall(std::shared_ptr<RegionBorder> border, const py::tuple& args, const DetectionSession& session)
      : border_(std::move(border)) {
    if (!contain(session, "preparing the call of a compiled region", [&] { record(args); })) {
      obstacle_ = "what it needs could not be recorded";
    }
  }

  // Checks what the region returned and the arguments that it wrote, which are counted after the results.
  BadValues check_results(const py::handle& results) {
    ThreadState& thread = ThreadState::current();
    const std::shared_ptr<DetectionSession> session = thread.shared_session();
    BadValues bad;
    if (session != nullptr) {
      contain(*session, "checking the results of a compiled region", [&] {
        note_randomness();
        const Objects outputs = items_of(results);
        bad = check_all(outputs, thread, border_->unwritten);
        if (!bad.empty() || is_differentiable(outputs)) stack_ = StackTable::instance().current_stack_id();
        follow_into_backward(outputs);
      });
      if (!border_->unwritten.empty()) border_->note_unwritten(results);
    }
    if (bad.empty()) end_forward();
    return bad;
  }

  // Lets go of what no replay of a backward pass needs.
  void end_forward() {
    written_.clear();
    if (outputs_.empty() || !obstacle_.empty()) release();
  }

  // Checks what the region's backward pass returned.
  BadValues check_gradients(const py::handle& gradients) {
    ThreadState& thread = ThreadState::current();
    const std::shared_ptr<DetectionSession> session = thread.shared_session();
    if (session == nullptr || is_replaying() || !is_active_in_backward(*session)) return {};
    BadValues bad;
    contain(*session, "checking the gradients of a compiled region", [&] {
      bad = check_all(items_of(gradients), thread, {});
      if (bad.empty() || !obstacle_.empty()) return;
      if (is_released_) {
        obstacle_ = "its backward pass has run before";
      } else if (!is_untouched()) {
        obstacle_ = "its inputs were overwritten before its backward pass";
      }
    });
    return bad;
  }

  // Calls a function of generated code. Kernels that it calls by way of the dispatcher are a part of the region and are
  // not checked: their memory is that of fused kernels, which nobody has seen. On devices they still are: results there
  // are not checked at the border.
  py::object run(const py::handle& function, const py::tuple& args) const {
    std::optional<c10::impl::ExcludeDispatchKeyGuard> unwatched;
    if (!is_on_device_) unwatched.emplace(kInterceptorKey);
    return py::reinterpret_steal<py::object>(checked_result(PyObject_Call(function.ptr(), args.ptr(), nullptr)));
  }

  // Lets go of what only a replay needs.
  void release() {
    arguments_.clear();
    versions_.clear();
    before_.clear();
    written_.clear();
    random_state_.reset();
    hooks = py::none();
    is_released_ = true;
  }

  py::list arguments() const { return list_of(arguments_); }
  py::list written() const { return list_of(written_); }
  py::object random_state() const { return random_state_.defined() ? py::cast(random_state_) : py::object(py::none()); }
  const std::vector<size_t>& before() const { return before_; }
  const std::vector<std::pair<size_t, int64_t>>& outputs() const { return outputs_; }
  const std::string& obstacle() const { return obstacle_; }
  bool is_inside_node() const { return inside_.has_value(); }
  void enter_node() const { set_replayed_node(inside_); }
  const Modes& modes() const { return modes_; }
  size_t boxed() const { return boxed_; }
  py::object hooks = saved_tensors_hooks();
  py::object given = py::none();       // the provenance of a non-finite argument that is overwritten and not copied
  py::object provenance = py::none();  // of what the region returned, once it has been found
  SiteId stack() const { return stack_; }

 private:
  using Objects = c10::SmallVector<py::object, 16>;

  static PyObject* checked_result(PyObject* result) {
    if (result == nullptr) throw py::error_already_set();
    return result;
  }

  static py::list list_of(const std::vector<py::object>& objects) {
    py::list list;
    for (const py::object& object : objects) list.append(object);
    return list;
  }

  static Objects items_of(const py::handle& results) {
    Objects items;
    if (!PyTuple_Check(results.ptr()) && !PyList_Check(results.ptr())) {
      items.push_back(py::reinterpret_borrow<py::object>(results));
    } else {
      for (const py::handle item : results) items.push_back(py::reinterpret_borrow<py::object>(item));
    }
    return items;
  }

  // Compiled autograd passes a list first, which the call empties.
  void record(const py::tuple& args) {
    for (const py::handle tensor : border_->own) arguments_.push_back(py::reinterpret_borrow<py::object>(tensor));
    for (const py::handle argument : args) {
      if (!PyList_CheckExact(argument.ptr()) || !argument.is(args[0])) {
        arguments_.push_back(py::reinterpret_borrow<py::object>(argument));
        continue;
      }
      for (const py::handle item : argument) arguments_.push_back(py::reinterpret_borrow<py::object>(item));
      boxed_ = arguments_.size() - border_->own.size();
    }
    obstacle_ = border_->obstacle;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const py::object& argument = arguments_[i];
      const at::Tensor* tensor = tensor_in(argument);
      is_on_device_ |= tensor != nullptr && !tensor->is_cpu();
      if (obstacle_.empty() && tensor != nullptr && is_subclass(*tensor) &&
          border_->is_distributed(argument).cast<bool>())
        obstacle_ = "an argument is a distributed tensor: other ranks would have to take part";
      if (tensor != nullptr && nonfinite_registry().in_use())
        record_region_use(*tensor, boxed_ == 0 && contains(border_->compared, i));
    }
    record_mutated();
    if (obstacle_.empty() && border_->is_random.value_or(true)) random_state_ = torchnan::random_state();
  }

  // What is overwritten is held as it was. The tensor itself would refer to the node that holds this call.
  void record_mutated() {
    int64_t bytes = 0;
    for (const size_t i : border_->mutated) {
      const at::Tensor* tensor = i < arguments_.size() ? tensor_in(arguments_[i]) : nullptr;
      if (tensor == nullptr) continue;
      bytes += static_cast<int64_t>(tensor->nbytes());
      before_.push_back(i);
      written_.push_back(arguments_[i]);
    }
    if (obstacle_.empty() && bytes > border_->max_copied) {
      obstacle_ = "it overwrites " + std::to_string(bytes) + " bytes of arguments, and at most " +
                  std::to_string(border_->max_copied) + " are copied";
    }
    if (!obstacle_.empty() && nonfinite_registry().in_use()) record_given();
    for (const size_t i : before_) {
      arguments_[i] = obstacle_.empty() ? py::cast(copied(*tensor_in(arguments_[i]))) : py::object(py::none());
    }
  }

  // What is overwritten and not copied can be found only now to be the cause of what is returned.
  void record_given() {
    for (const py::object& value : written_) {
      if (!kinds_of(*tensor_in(value)).any()) continue;
      if (auto known = provenance_of(*tensor_in(value))) given = py::cast(std::move(*known));
    }
  }

  void note_randomness() {
    if (!border_->is_random && random_state_.defined()) border_->is_random = has_drawn_since(random_state_);
    if (border_->is_random && !*border_->is_random) random_state_.reset();
  }

  // Arguments that were written come first: what is known of the memory of a result that shares theirs is then true.
  // `unwritten`: indices of those that are not to be read yet.
  BadValues check_all(const Objects& values, ThreadState& thread, const std::vector<size_t>& unwritten) {
    struct Part {
      size_t index;
      at::Tensor tensor;
    };
    std::vector<Part> parts;
    const auto add = [&](size_t index, const py::object& value) {
      const at::Tensor* tensor = tensor_in(value);
      if (tensor == nullptr) return;
      if (!is_subclass(*tensor)) return void(parts.push_back({index, *tensor}));
      for (const py::handle part : border_->parts(value)) parts.push_back({index, *tensor_in(part)});
    };
    for (size_t k = 0; k < written_.size(); ++k) add(values.size() + k, written_[k]);
    const size_t first_result = parts.size();
    for (size_t i = 0; i < values.size(); ++i) {
      if (!contains(unwritten, i)) add(i, values[i]);
    }
    BadValues bad;
    const py::gil_scoped_release no_gil;
    for (size_t p = 0; p < parts.size(); ++p) {
      const NonfiniteKinds kinds = check_region_result(parts[p].tensor, p >= first_result, thread);
      if (!kinds.any()) continue;
      if (!bad.empty() && bad.back().first == parts[p].index) {
        bad.back().second |= bits_of(kinds);
      } else {
        bad.emplace_back(parts[p].index, bits_of(kinds));
      }
    }
    return bad;
  }

  static bool contains(const std::vector<size_t>& indices, size_t i) {
    return std::find(indices.begin(), indices.end(), i) != indices.end();
  }

  static bool is_differentiable(const Objects& outputs) {
    return std::any_of(outputs.begin(), outputs.end(), [](const py::object& value) {
      const at::Tensor* tensor = tensor_in(value);
      return tensor != nullptr && tensor->grad_fn() != nullptr;
    });
  }

  // Lets the node that the call made, if it made one, hold this until its backward pass.
  void follow_into_backward(const Objects& outputs) {
    py::object node;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const at::Tensor* tensor = tensor_in(outputs[i]);
      if (tensor == nullptr || tensor->grad_fn() == nullptr) continue;
      const auto made = py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(tensor->grad_fn()));
      if (!node && std::strcmp(Py_TYPE(made.ptr())->tp_name, "CompiledFunctionBackward") == 0) node = made;
      if (node && made.is(node)) outputs_.emplace_back(i, tensor->output_nr());
    }
    if (!node) return;
    for (const py::object& argument : arguments_) versions_.push_back(version_of(argument));
    if (Py_TYPE(node.ptr()) != border_->followed) {
      border_->follow(node);
      border_->followed = Py_TYPE(node.ptr());
    }
    node.attr("metadata")["torchnan"] = py::cast(shared_from_this());
  }

  static int64_t version_of(const py::object& argument) {
    const at::Tensor* tensor = tensor_in(argument);
    return tensor == nullptr || tensor->is_inference() ? -1 : static_cast<int64_t>(tensor->_version());
  }

  bool is_untouched() const {
    for (size_t i = 0; i < arguments_.size() && i < versions_.size(); ++i) {
      if (versions_[i] != version_of(arguments_[i])) return false;
    }
    return true;
  }

  std::shared_ptr<RegionBorder> border_;
  std::vector<py::object> arguments_;  // the region's own tensors and what it was given
  std::vector<int64_t> versions_;      // of these, at the end of the call
  std::vector<size_t> before_;         // indices of those that the call overwrites: copies, made before it
  std::vector<py::object> written_;    // the tensors themselves
  std::vector<std::pair<size_t, int64_t>> outputs_;  // index of a result, and its number among the node's
  at::Tensor random_state_;
  Modes modes_;
  std::optional<NodeSite> inside_ = current_node_site();  // a hook of it, or its function, makes the call
  std::string obstacle_;                                  // why the call cannot be replayed; empty if it can
  SiteId stack_ = 0;
  size_t boxed_ = 0;  // arguments that came in a list, which the call empties
  bool is_on_device_ = false;
  bool is_released_ = false;
};

std::shared_ptr<RegionCall> begin_call(std::shared_ptr<RegionBorder> border, const py::tuple& args) {
  if (is_replaying()) return nullptr;
  const DetectionSession* const session = ThreadState::current().session();
  return session == nullptr ? nullptr : std::make_shared<RegionCall>(std::move(border), args, *session);
}

// Runs a region and checks what it returns; `explain(call, bad, results)` finds out where what is bad came from.
py::object run_region(std::shared_ptr<RegionBorder> border, const py::function& compiled, const py::function& explain,
                      const py::tuple& args) {
  const std::shared_ptr<RegionCall> call = begin_call(std::move(border), args);
  if (call == nullptr) return compiled(*args);
  py::object results = call->run(compiled, args);
  const BadValues bad = call->check_results(results);
  if (!bad.empty()) explain(call, bad, results);
  return results;
}

CompiledRegion facts_from(const py::str& name, const py::str& file, int64_t line, const std::string& how,
                          const std::string& obstacle) {
  CompiledRegion facts;
  facts.region = from_py_str(name);
  facts.file = from_py_str(file);
  facts.line = line;
  facts.replay = parse_enum<Replay>(how);
  facts.obstacle = obstacle;
  return facts;
}

using Kernels = std::vector<std::pair<std::string, int>>;  // names, and the bits of the kinds they wrote

std::vector<BadKernel> kernels_from(const Kernels& given) {
  std::vector<BadKernel> kernels;
  for (const auto& [name, bits] : given) kernels.push_back({name, kinds_from(bits)});
  return kernels;
}

void begin_replay(const py::str& name, const py::str& file, int64_t line, const std::string& how,
                  const Kernels& kernels, bool is_backward) {
  set_replayed_region(std::make_shared<ReplayedRegion>(
      ReplayedRegion{facts_from(name, file, line, how, ""), kernels_from(kernels), is_backward}));
}

void record_border(const at::Tensor& result, int64_t output, const py::str& name, const py::str& file, int64_t line,
                   const std::string& obstacle, const Kernels& kernels) {
  const auto session = ThreadState::current().shared_session();
  if (session == nullptr) return;
  const ReplayedRegion region{facts_from(name, file, line, "none", obstacle), kernels_from(kernels)};
  record_border_origin(*session, result, output, region);
}

// Of operators that allocate, under the GIL. Never destroyed: the bound cache keeps their addresses.
std::set<std::string>& allocating_operators = *new std::set<std::string>;

void record_allocation(const at::Tensor& result, SiteId site, const std::string& op) {
  record_region_allocation(result, site, *allocating_operators.insert(op).first);
}

// Returns the provenance of a non-finite argument of a region that cannot be followed; nothing if it is finite.
std::optional<ProvenanceHandle> input_provenance(const at::Tensor& tensor) {
  const auto session = ThreadState::current().shared_session();
  auto provenance = session == nullptr ? nullptr : record_region_input(*session, tensor);
  if (provenance == nullptr) return std::nullopt;
  return ProvenanceHandle{std::move(provenance)};
}

}  // namespace

bool is_replaying() noexcept { return replays; }

void bind_compiled_regions(py::module_& m) {
  py::class_<ProvenanceHandle>(m, "Provenance")
      .def_property_readonly(
          "phase",
          [](const ProvenanceHandle& handle) { return name_of(handle.provenance->first().origin->facts.phase); })
      .def("with_origins_of_forward_pass", &with_origins_found_before, py::arg("forward"));
  py::class_<Modes>(m, "ThreadModes")
      .def_readonly("grad", &Modes::grad)
      .def_readonly("inference", &Modes::inference)
      .def_readonly("autocast", &Modes::autocast);
  py::class_<RegionBorder, std::shared_ptr<RegionBorder>>(m, "RegionBorder")
      .def(py::init(&make_border), py::arg("mutated"), py::arg("own"), py::arg("max_copied"), py::arg("obstacle"),
           py::arg("parts"), py::arg("is_distributed"), py::arg("compared"), py::arg("unwritten"),
           py::arg("note_unwritten"), py::arg("follow"))
      .def_readonly("is_random", &RegionBorder::is_random)
      .def("run", &run_region, py::arg("compiled"), py::arg("explain"), py::arg("args"));
  py::class_<RegionCall, std::shared_ptr<RegionCall>>(m, "RegionCall")
      .def("run", &RegionCall::run, py::arg("function"), py::arg("args"))
      .def("check_gradients", &RegionCall::check_gradients)
      .def("end_forward", &RegionCall::end_forward)
      .def("release", &RegionCall::release)
      .def_property_readonly("arguments", &RegionCall::arguments)
      .def_property_readonly("written", &RegionCall::written)
      .def_property_readonly("random_state", &RegionCall::random_state)
      .def_property_readonly("before", &RegionCall::before)
      .def_property_readonly("outputs", &RegionCall::outputs)
      .def_property_readonly("obstacle", &RegionCall::obstacle)
      .def_property_readonly("modes", &RegionCall::modes)
      .def_property_readonly("boxed", &RegionCall::boxed)
      .def_property_readonly("is_inside_node", &RegionCall::is_inside_node)
      .def("enter_node", &RegionCall::enter_node)
      .def_readonly("hooks", &RegionCall::hooks)
      .def_readonly("given", &RegionCall::given)
      .def_readwrite("provenance", &RegionCall::provenance)
      .def_property_readonly("stack", &RegionCall::stack);
  m.def("set_replaying", [](bool replaying) { replays = replaying; });
  m.def("is_replaying", &is_replaying);
  m.def("begin_replay", &begin_replay, py::arg("region"), py::arg("file"), py::arg("line"), py::arg("how"),
        py::arg("kernels"), py::arg("is_backward"));
  m.def("end_replay", [] { set_replayed_region(nullptr); });
  m.def("record_border", &record_border, py::arg("result"), py::arg("output"), py::arg("region"), py::arg("file"),
        py::arg("line"), py::arg("obstacle"), py::arg("kernels"));
  m.def("capture_stack", [] { return StackTable::instance().current_stack_id(); });
  m.def("stack_frames", &stack_frames, py::arg("stack"));
  m.def("provenance_of", &provenance_of, py::arg("tensor"));
  m.def("set_provenance", &set_provenance, py::arg("tensor"), py::arg("provenance"));
  m.def("record_copy", &record_copy, py::arg("tensor"), py::arg("copy"));
  m.def("record_allocation", &record_allocation, py::arg("result"), py::arg("site"), py::arg("op"));
  m.def("is_comparison", [](std::string_view op) { return is_comparison(op); });
  m.def("allocates", [](std::string_view op) { return allocates(op); });
  m.def("input_provenance", &input_provenance, py::arg("tensor"));
  m.def("kinds_of", [](const at::Tensor& tensor) { return bits_of(kinds_of(tensor)); });
}

}  // namespace torchnan
