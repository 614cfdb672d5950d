#include <torch/csrc/utils/pybind.h>  // first: tensors to and from Python

#include "python/compiled_regions.h"

#include "detection/error_containment.h"
#include "detection/thread_state.h"
#include "origin/nonfinite_registry.h"
#include "python/python_runtime.h"
#include "python/stack_table.h"
#include "scan/tensor_scan.h"

namespace py = pybind11;

namespace torchnan {
namespace {

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

void set_provenance(const at::Tensor& tensor, const ProvenanceHandle& handle) {
  const at::Tensor values = scannable_values(tensor);
  if (values.defined()) nonfinite_registry().remember(values, handle.provenance);
}

}  // namespace

void bind_compiled_regions(py::module_& m) {
  py::class_<ProvenanceHandle>(m, "Provenance");
  m.def("capture_stack", [] { return StackTable::instance().current_stack_id(); });
  m.def("stack_frames", &stack_frames, py::arg("stack"));
  m.def("provenance_of", &provenance_of, py::arg("tensor"));
  m.def("set_provenance", &set_provenance, py::arg("tensor"), py::arg("provenance"));
}

}  // namespace torchnan
