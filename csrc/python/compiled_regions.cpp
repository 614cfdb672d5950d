#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include "python/compiled_regions.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/ScopeExit.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>

#include "intercept/region_border.h"
#include "origin/current_call_site.h"
#include "detection/thread_state.h"
#include "check/operators/op_traits.h"
#include "origin/replayed_region.h"
#include "python/apart.h"
#include "python/convert.h"
#include "python/kept_calls.h"
#include "python/python_runtime.h"
#include "python/region_call.h"
#include "python/stack_table.h"
#include "report/enum_names.h"
#include "check/scan/tensor_scan.h"

namespace py = pybind11;

namespace torchnan {
namespace {

ProvenanceHandle with_origins_found_before(const ProvenanceHandle& gradient,
                                           const std::vector<ProvenanceHandle>& forward) {
  std::vector<NonfiniteRegistry::ProvenancePtr> known;
  for (const ProvenanceHandle& handle : forward) known.push_back(handle.provenance);
  return {with_origins_of_forward_pass(gradient.provenance, known)};
}

// Whether one of the causes was reported: one report stands for all of them.
bool is_reported(const ProvenanceHandle& handle) {
  const auto& causes = handle.provenance->causes();
  return std::any_of(causes.begin(), causes.end(), [](const Cause& cause) { return cause.origin->reported.load(); });
}

// Returns the provenance of values of this call that arose as in an earlier one. Each non-finite argument has a pair of
// provenances, then and now.
std::vector<ProvenanceHandle> repeated(const std::vector<ProvenanceHandle>& earlier,
                                       const std::vector<std::pair<ProvenanceHandle, ProvenanceHandle>>& arguments,
                                       bool is_checked) {
  const auto session = ThreadState::current().shared_session();
  if (session == nullptr) return earlier;
  std::vector<NonfiniteRegistry::ProvenancePtr> known;
  for (const ProvenanceHandle& handle : earlier) known.push_back(handle.provenance);
  std::vector<RegionArgument> given;
  for (const auto& [then, now] : arguments) given.push_back({then.provenance, now.provenance});
  std::vector<ProvenanceHandle> handles;
  for (auto& provenance : repeated_in_this_call(*session, known, given, is_checked))
    handles.push_back({std::move(provenance)});
  return handles;
}

void set_provenance(const at::Tensor& tensor, const ProvenanceHandle& handle) {
  if (const auto session = ThreadState::current().shared_session()) {
    set_region_provenance(*session, tensor, handle.provenance);
  }
}

// Runs a region and checks its results. Python functions take part in it, and none of them is on the stack when the
// region runs: the tracebacks of its errors are those of the program.
//
// `explain(call, bad, results)` finds the origin of bad values. `explain_error(call, error)` finds the values that an
// error is about. `begin_step(args)` returns the optimizer that the region is the step of, or None;
// `end_step(optimizer)` follows it.
py::object run_region(std::shared_ptr<RegionBorder> border, const py::object& compiled, const py::function& explain,
                      const py::function& explain_error, const py::object& begin_step, const py::object& end_step,
                      const py::args& args) {
  const std::shared_ptr<DetectionSession> session = ThreadState::current().shared_session();
  if (session == nullptr || is_replaying()) return compiled(*args);
  const py::object optimizer = begin_step.is_none() ? py::object(py::none()) : begin_step(args);
  const auto call = std::make_shared<RegionCall>(std::move(border), args, *session);
  py::object results;
  try {
    results = call->run(compiled, args);
  } catch (py::error_already_set& error) {
    call->note_stack();
    explain_error(call, error.value());
    throw;
  }
  const BadValues bad = call->check_results(results);
  if (!bad.empty()) explain(call, bad, results);
  call->record_read_by_backward(results);
  if (!optimizer.is_none()) end_step(optimizer);
  return results;
}

BadValues check_gradients(RegionCall& call, const py::handle& gradients) {
  return is_replaying() ? BadValues{} : call.check_gradients(gradients);
}

CompiledRegion facts_from(const py::str& name, const py::str& file, int64_t line, const std::string& how) {
  CompiledRegion facts;
  facts.region = from_py_str(name);
  facts.file = from_py_str(file);
  facts.line = line;
  facts.replay = parse_enum<Replay>(how);
  return facts;
}

using Kernels = std::vector<std::pair<std::string, int>>;  // names, and the bits of the kinds they wrote

std::vector<BadKernel> kernels_from(const Kernels& given) {
  std::vector<BadKernel> kernels;
  for (const auto& [name, bits] : given) kernels.push_back({name, kinds_from(bits)});
  return kernels;
}

template <typename Owner>
const torch::autograd::Node* node_of(const Owner& owner) {
  return owner.get();
}
// In PyTorch 2.11, a function's reference to its node is weak.
template <typename Node>
const torch::autograd::Node* node_of(const std::weak_ptr<Node>& owner) {
  return owner.lock().get();
}

const torch::autograd::Node* node_in(const py::handle& node) {
  if (torch::autograd::THPCppFunction_Check(node.ptr())) {
    return reinterpret_cast<torch::autograd::THPCppFunction*>(node.ptr())->cdata.get();
  }
  return THPFunction_Check(node.ptr()) ? node_of(reinterpret_cast<THPFunction*>(node.ptr())->cdata) : nullptr;
}

// Makes a call as part of a backward node that no engine runs. The node is `node`, or only its `name` is known.
py::object call_in_node(const std::string& name, const py::handle& node, const py::function& call) {
  const torch::autograd::Node* const known = node_in(node);
  auto outer = set_replayed_node(known == nullptr ? NodeSite{name} : site_of(*known));
  const auto leave = c10::make_scope_exit([&outer] { set_replayed_node(std::move(outer)); });
  return call();
}

void begin_replay(const py::str& name, const py::str& file, int64_t line, const std::string& how,
                  const Kernels& kernels, bool is_backward, bool replays_gradients, int64_t step) {
  set_replayed_region(std::make_shared<ReplayedRegion>(
      ReplayedRegion{facts_from(name, file, line, how), kernels_from(kernels), is_backward, replays_gradients, step}));
}

void record_border(const at::Tensor& result, int64_t output, const RegionBorder& border, const std::string& obstacle,
                   const Kernels& kernels) {
  const auto session = ThreadState::current().shared_session();
  if (session == nullptr) return;
  ReplayedRegion region{border.facts, kernels_from(kernels)};
  region.facts.obstacle = obstacle;
  record_border_origin(*session, result, output, region);
}

void record_fused(const at::Tensor& result, const std::string& op) {
  if (const auto session = ThreadState::current().shared_session()) record_fused_origin(*session, result, op);
}

// By the names of operators that allocate; guarded by the GIL. Never destroyed: records keep their addresses.
std::map<std::string, OpPlan>& allocation_plans = *new std::map<std::string, OpPlan>;

void record_allocation(const at::Tensor& result, SiteId site, const std::string& op) {
  const auto session = ThreadState::current().shared_session();
  if (session == nullptr) return;
  const auto [plan, is_new] = allocation_plans.try_emplace(op);
  if (is_new) plan->second = allocation_plan(op);
  record_region_allocation(*session, result, site, plan->second);
}

// Returns the provenance of a non-finite argument of a region that cannot be followed; nothing if it is finite.
std::optional<ProvenanceHandle> input_provenance(const at::Tensor& tensor) {
  const auto session = ThreadState::current().shared_session();
  auto provenance = session == nullptr ? nullptr : record_region_input(*session, tensor);
  if (provenance == nullptr) return std::nullopt;
  return ProvenanceHandle{std::move(provenance)};
}

}  // namespace

bool is_replaying() noexcept {
  const Apart* const apart = Apart::current();
  return apart != nullptr && apart->work() == Apart::Work::kGraph;
}

void bind_compiled_regions(py::module_& m) {
  py::class_<ProvenanceHandle>(m, "Provenance")
      .def_property_readonly(
          "phase",
          [](const ProvenanceHandle& handle) { return name_of(handle.provenance->first().origin->facts.phase); })
      .def_property_readonly("is_reported", &is_reported)
      .def_property_readonly("is_intentional",
                             [](const ProvenanceHandle& handle) { return handle.provenance->is_intentional(); })
      .def("with_origins_of_forward_pass", &with_origins_found_before, py::arg("forward"));
  py::class_<Modes>(m, "ThreadModes")
      .def_readonly("grad", &Modes::grad)
      .def_readonly("inference", &Modes::inference)
      .def_readonly("packs_saved", &Modes::packs_saved)
      .def_readonly("autocast", &Modes::autocast);
  m.def("thread_modes", [] { return Modes(); });
  py::class_<RegionBorder, std::shared_ptr<RegionBorder>>(m, "RegionBorder")
      .def(py::init<const py::kwargs&>())
      .def_readwrite("is_random", &RegionBorder::is_random)
      .def_readonly("finite_calls", &RegionBorder::finite_calls)
      .def_readonly("finite_passes", &RegionBorder::finite_passes)
      .def("forget_own", [](RegionBorder& border) { border.own = py::tuple(); })
      .def("run", &run_region, py::arg("compiled"), py::arg("explain"), py::arg("explain_error"), py::arg("begin_step"),
           py::arg("end_step"));
  py::class_<RegionCall, std::shared_ptr<RegionCall>>(m, "RegionCall")
      .def("begin_backward", &RegionCall::begin_backward, py::arg("gradients"))
      .def("run", &RegionCall::run, py::arg("function"), py::arg("args"))
      .def("check_gradients", &check_gradients, py::arg("gradients"))
      .def("end_forward", &RegionCall::end_forward)
      .def("release", &RegionCall::release)
      .def_property_readonly("arguments", &RegionCall::arguments)
      .def_property_readonly("written", &RegionCall::written)
      .def_property_readonly("received", &RegionCall::received)
      .def_property_readonly("random_states", &RegionCall::random_states)
      .def_property_readonly("device_random_states_after", &RegionCall::device_random_states_after)
      .def_property_readonly("copied_indices", &RegionCall::copied_indices)
      .def_property_readonly("outputs", &RegionCall::outputs)
      .def_property_readonly("ids", &RegionCall::ids)
      .def_property_readonly("device", &RegionCall::device)
      .def_property_readonly("obstacle", &RegionCall::obstacle)
      .def_property_readonly("modes", &RegionCall::modes)
      .def_property_readonly("boxed", &RegionCall::boxed)
      .def_property_readonly("is_inside_node", &RegionCall::is_inside_node)
      .def("enter_node", &RegionCall::enter_node)
      .def_property_readonly("given", &RegionCall::given)
      .def_property("provenances", &RegionCall::provenances, &RegionCall::set_provenances)
      .def_property_readonly("stack", &RegionCall::stack)
      .def_property_readonly("stack_of_pass", &RegionCall::stack_of_pass)
      .def_property_readonly("step", &RegionCall::step);
  install_late_replays();
  m.def("is_replaying", &is_replaying);
  m.def("begin_replay", &begin_replay, py::arg("region"), py::arg("file"), py::arg("line"), py::arg("how"),
        py::arg("kernels"), py::arg("is_backward"), py::arg("replays_gradients"), py::arg("step"));
  m.def("call_in_node", &call_in_node, py::arg("name"), py::arg("node"), py::arg("call"));
  m.def("end_replay", [] { set_replayed_region(nullptr); });
  m.def("record_border", &record_border, py::arg("result"), py::arg("output"), py::arg("border"), py::arg("obstacle"),
        py::arg("kernels"));
  m.def("current_stack", [] { return StackTable::instance().current_stack_id(); });
  m.def("stack_frames", &stack_frames, py::arg("stack"));
  m.def("provenance_of", &provenance_of, py::arg("tensor"));
  m.def("set_provenance", &set_provenance, py::arg("tensor"), py::arg("provenance"));
  m.def("repeated_in_this_call", &repeated, py::arg("earlier"), py::arg("arguments"), py::arg("is_checked"));
  m.def("record_copy", &record_copy, py::arg("tensor"), py::arg("copy"));
  m.def("record_fused", &record_fused, py::arg("result"), py::arg("op"));
  m.def("record_allocation", &record_allocation, py::arg("result"), py::arg("site"), py::arg("op"));
  m.def("is_comparison", [](std::string_view op) { return is_comparison(op); });
  m.def("allocates", [](std::string_view op) { return allocates(op); });
  m.def("input_provenance", &input_provenance, py::arg("tensor"));
  m.def("kinds_of", [](const at::Tensor& tensor) { return bits_of(kinds_anywhere(tensor)); });
}

}  // namespace torchnan
