#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include "python/bindings.h"

#include <ATen/Functions.h>
#include <ATen/core/PhiloxRNGEngine.h>

namespace py = pybind11;

namespace torchnan {
namespace {

// The functions that generated code calls for each element of a tensor: torch/csrc/inductor/cpp_prefix.h.
float uniform_at(uint32_t seed, uint32_t index) {
  constexpr float kScale = 4.6566127342e-10f;
  return static_cast<float>(at::Philox4_32(seed, 0, index)() & 0x7FFFFFFF) * kScale;
}

float normal_at(uint32_t seed, uint32_t index) {
  at::Philox4_32 engine(seed, 0, index);
  return engine.randn(10);
}

int64_t integer_at(uint32_t seed, uint32_t index, int64_t low, int64_t high) {
  at::Philox4_32 engine(seed, 0, index);
  const uint64_t lower = engine();
  const uint64_t bits = lower | (static_cast<uint64_t>(engine()) << 32);
  return static_cast<int64_t>(bits % static_cast<uint64_t>(high - low)) + low;
}

template <typename Value, typename Draw>
at::Tensor filled(const std::vector<int64_t>& size, Draw draw) {
  at::Tensor made = at::empty(size, c10::CppTypeToScalarType<Value>::value);
  auto* const values = made.mutable_data_ptr<Value>();
  for (int64_t i = 0; i < made.numel(); ++i) values[i] = draw(static_cast<uint32_t>(i));
  return made;
}

at::Tensor numbers_of_generated_code(int64_t seed, const std::string& distribution, const std::vector<int64_t>& size) {
  const auto key = static_cast<uint32_t>(seed);
  const auto draw = distribution == "rand" ? &uniform_at : &normal_at;
  return filled<float>(size, [=](uint32_t index) { return draw(key, index); });
}

at::Tensor integers_of_generated_code(int64_t seed, int64_t low, int64_t high, const std::vector<int64_t>& size) {
  const auto key = static_cast<uint32_t>(seed);
  return filled<int64_t>(size, [=](uint32_t index) { return integer_at(key, index, low, high); });
}

}  // namespace

void bind_generated_numbers(py::module_& m) {
  m.def("numbers_of_generated_code", &numbers_of_generated_code, py::arg("seed"), py::arg("distribution"),
        py::arg("size"));
  m.def("integers_of_generated_code", &integers_of_generated_code, py::arg("seed"), py::arg("low"), py::arg("high"),
        py::arg("size"));
}

}  // namespace torchnan
