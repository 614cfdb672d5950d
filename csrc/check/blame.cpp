#include "check/blame.h"

#include <cstring>

#include <c10/util/SmallVector.h>

#include "check/float_format.h"

namespace torchnan {
namespace {

enum class Element : uint8_t { kFinite, kInf, kNaN };

// One tensor walked in the logical order of the result, with stride 0 where it is broadcast.
class Walker {
 public:
  Walker(const at::Tensor& tensor, c10::IntArrayRef result_sizes)
      : base_(static_cast<const char*>(tensor.const_data_ptr())), format_(*float_format(tensor.scalar_type())) {
    const auto missing = static_cast<int64_t>(result_sizes.size()) - tensor.dim();
    for (int64_t d = 0; d < static_cast<int64_t>(result_sizes.size()); ++d) {
      const bool broadcast = d < missing || tensor.size(d - missing) == 1;
      strides_.push_back(broadcast ? 0 : tensor.stride(d - missing) * format_.element_bytes());
    }
  }

  int64_t stride(size_t d) const { return strides_[d]; }
  void move(int64_t bytes) { offset_ += bytes; }

  Element here() const {
    Element worst = Element::kFinite;
    for (int part = 0; part < format_.words_per_element; ++part) {
      uint64_t word = 0;
      std::memcpy(&word, base_ + offset_ + part * format_.word_bytes, format_.word_bytes);
      word = (word + format_.bias) & format_.mask;
      if (word >= format_.first_nan) return Element::kNaN;
      if (word >= format_.infinity) worst = Element::kInf;
    }
    return worst;
  }

 private:
  const char* base_;
  FloatFormat format_;
  int64_t offset_ = 0;
  c10::SmallVector<int64_t, 6> strides_;
};

bool broadcasts_to(const at::Tensor& tensor, c10::IntArrayRef sizes) {
  const auto missing = static_cast<int64_t>(sizes.size()) - tensor.dim();
  if (missing < 0) return false;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) != 1 && tensor.size(d) != sizes[d + missing]) return false;
  }
  return true;
}

// What one bad element of the result owes to the arguments.
void judge_element(Element result, c10::ArrayRef<Suspect> arguments, c10::ArrayRef<const Walker*> walkers,
                   Blame& verdict) {
  bool any_nan = false;
  bool any_bad = false;
  bool any_accident = false;
  for (size_t i = 0; i < walkers.size(); ++i) {
    const Element element = walkers[i] == nullptr ? Element::kFinite : walkers[i]->here();
    if (element == Element::kFinite) continue;
    any_bad = true;
    any_nan = any_nan || element == Element::kNaN;
    any_accident = any_accident || arguments[i].by_accident;
  }
  if (!any_bad || (result == Element::kNaN && !any_nan && !any_accident)) {
    verdict.own = true;
    return;
  }
  for (size_t i = 0; i < walkers.size(); ++i) {
    if (walkers[i] != nullptr && walkers[i]->here() != Element::kFinite) verdict.inherited[i] = true;
  }
}

}  // namespace

Blame blame(const at::Tensor& result, c10::ArrayRef<Suspect> arguments) {
  const auto sizes = result.sizes();
  Blame verdict;
  verdict.inherited.resize(arguments.size(), false);
  Walker result_walker(result, sizes);
  std::vector<Walker> storage;
  storage.reserve(arguments.size());
  c10::SmallVector<const Walker*, 4> by_argument;
  for (const Suspect& argument : arguments) {
    const bool usable = broadcasts_to(argument.tensor, sizes);
    if (usable) storage.emplace_back(argument.tensor, sizes);
    by_argument.push_back(usable ? &storage.back() : nullptr);
  }
  const auto move_all = [&](size_t d, int64_t steps) {
    result_walker.move(result_walker.stride(d) * steps);
    for (Walker& walker : storage) walker.move(walker.stride(d) * steps);
  };
  c10::SmallVector<int64_t, 6> index(sizes.size(), 0);
  for (int64_t left = result.numel(); left > 0; --left) {
    const Element element = result_walker.here();
    if (element != Element::kFinite) judge_element(element, arguments, by_argument, verdict);
    for (size_t d = sizes.size(); d-- > 0;) {
      move_all(d, 1);
      if (++index[d] < sizes[d]) break;
      move_all(d, -sizes[d]);
      index[d] = 0;
    }
  }
  return verdict;
}

}  // namespace torchnan
