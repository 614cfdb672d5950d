#include "python/bindings.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace torchnan {
namespace {

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

// The memory of random generators, to notice which of them have moved: to read their states takes much longer.
class RandomMemory {
 public:
  // `others`: addresses and sizes in bytes of the memory of generators other than PyTorch's for the CPU.
  explicit RandomMemory(const std::vector<std::pair<uintptr_t, size_t>>& others) : seen_(1 + others.size()) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    for (const auto& [address, size] : others) others_.emplace_back(reinterpret_cast<const char*>(address), size);
  }

  // Returns which generators have moved since the last call, as bits: 1 for PyTorch's, 2 and more for the others. All
  // have at the first call.
  unsigned moved() {
    const WordsOfTorch words;
    unsigned which = differs(0, {words.data(), words.size()}) ? 1U : 0U;
    for (size_t i = 0; i < others_.size(); ++i) {
      if (differs(i + 1, others_[i])) which |= 2U << i;
    }
    return which;
  }

 private:
  bool differs(size_t i, std::string_view memory) {
    if (seen_[i] == memory) return false;
    seen_[i] = memory;
    return true;
  }

  std::vector<std::string_view> others_;
  std::vector<std::string> seen_;
};

}  // namespace

void bind_random_memory(py::module_& m) {
  py::class_<RandomMemory>(m, "RandomMemory")
      .def(py::init<const std::vector<std::pair<uintptr_t, size_t>>&>(), py::arg("others"))
      .def("moved", &RandomMemory::moved);
}

}  // namespace torchnan
