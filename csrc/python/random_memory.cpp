#include "python/bindings.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <type_traits>

#include <ATen/CPUGeneratorImpl.h>

namespace py = pybind11;

namespace torchnan {
namespace {

// Returns a piece of memory; `before` itself if it holds the same: a generator that stands still costs nothing.
py::bytes memory_at(uintptr_t address, size_t size, const py::bytes& before) {
  const auto* const memory = reinterpret_cast<const char*>(address);  // NOLINT(performance-no-int-to-ptr)
  const auto size_before = static_cast<size_t>(PyBytes_GET_SIZE(before.ptr()));
  if (size_before == size && std::memcmp(PyBytes_AS_STRING(before.ptr()), memory, size) == 0) return before;
  return py::bytes(memory, size);
}

// Everything that PyTorch's generator for the CPU draws from, without gaps between its parts.
class WordsOfTorch {
 public:
  WordsOfTorch() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    auto* const torch = at::check_generator<at::CPUGeneratorImpl>(generator);
    const std::scoped_lock lock(torch->mutex_);
    const at::mt19937_data_pod engine = torch->engine().data();
    append(engine.state_);
    append(engine.seed_);
    append(engine.left_);
    append(engine.next_);
    append(engine.seeded_);
    const auto single = torch->next_float_normal_sample();
    append(single.has_value());
    append(single.value_or(0));
    const auto twice = torch->next_double_normal_sample();
    append(twice.has_value());
    append(twice.value_or(0));
  }

  const char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  template <class T>
  void append(const T& part) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(data_ + size_, &part, sizeof part);
    size_ += sizeof part;
  }

  char data_[sizeof(at::mt19937_data_pod) + 2 * (sizeof(bool) + sizeof(double))];
  size_t size_ = 0;
};

py::bytes memory_of_torch(const py::bytes& before) {
  const WordsOfTorch words;
  return memory_at(reinterpret_cast<uintptr_t>(words.data()), words.size(), before);
}

}  // namespace

void bind_random_memory(py::module_& m) {
  m.def("memory_at", &memory_at, py::arg("address"), py::arg("size"), py::arg("before"));
  m.def("memory_of_torch", &memory_of_torch, py::arg("before"));
}

}  // namespace torchnan
