#include "origin/elementwise_attribution.h"

#include <cstring>

#include <c10/util/SmallVector.h>

#include "scan/float_format.h"

namespace torchnan {
namespace {

// One tensor walked in the logical order of the result, with stride 0 where it is broadcast.
class Walker {
 public:
  Walker(const at::Tensor& tensor, const ElementKinds* before, c10::IntArrayRef result_sizes)
      : base_(static_cast<const char*>(tensor.const_data_ptr())),
        before_(before),
        format_(*float_format(tensor.scalar_type())) {
    const auto missing = static_cast<int64_t>(result_sizes.size()) - tensor.dim();
    int64_t dense = 1;  // stride of the kept kinds
    strides_.resize(result_sizes.size(), 0);
    for (auto d = static_cast<int64_t>(result_sizes.size()); d-- > missing;) {
      const int64_t size = tensor.size(d - missing);
      if (size != 1) strides_[d] = before_ != nullptr ? dense : tensor.stride(d - missing);
      dense *= size;
    }
  }

  void move(size_t d, int64_t steps) { offset_ += strides_[d] * steps; }

  bool is_zero() const {
    for (int part = 0; part < format_.words_per_element; ++part) {
      if ((word(part) & format_.mask) != 0) return false;
    }
    return true;
  }

  NonfiniteKinds here() const {
    if (before_ != nullptr) return (*before_)[offset_];
    NonfiniteKinds kinds;
    for (int part = 0; part < format_.words_per_element; ++part) {
      const uint64_t magnitude = (word(part) + format_.bias) & format_.mask;
      if (magnitude >= format_.first_nan) {
        kinds |= NonfiniteKinds::only_nan();
      } else if (magnitude >= format_.infinity) {
        kinds |= word(part) == format_.infinity ? NonfiniteKinds::only_posinf() : NonfiniteKinds::only_neginf();
      }
    }
    return kinds;
  }

 private:
  uint64_t word(int part) const {
    uint64_t word = 0;
    std::memcpy(&word, base_ + offset_ * format_.element_bytes() + part * format_.word_bytes, format_.word_bytes);
    return word;
  }

  const char* base_;
  const ElementKinds* before_;
  FloatFormat format_;
  int64_t offset_ = 0;  // elements
  c10::SmallVector<int64_t, 6> strides_;
};

// Calls visit() at every element, with all walkers at that element.
template <typename Visit>
void walk(c10::IntArrayRef sizes, int64_t numel, c10::ArrayRef<Walker*> walkers, Visit&& visit) {
  c10::SmallVector<int64_t, 6> index(sizes.size(), 0);
  for (int64_t left = numel; left > 0; --left) {
    visit();
    for (size_t d = sizes.size(); d-- > 0;) {
      for (Walker* walker : walkers) walker->move(d, 1);
      if (++index[d] < sizes[d]) break;
      for (Walker* walker : walkers) walker->move(d, -sizes[d]);
      index[d] = 0;
    }
  }
}

bool broadcasts_to(const at::Tensor& tensor, c10::IntArrayRef sizes) {
  const auto missing = static_cast<int64_t>(sizes.size()) - tensor.dim();
  if (missing < 0) return false;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) != 1 && tensor.size(d) != sizes[d + missing]) return false;
  }
  return true;
}

// Attributes one bad element of the result to the arguments; those left out have no walker.
void attribute_element(NonfiniteKinds result, c10::ArrayRef<Candidate> arguments, c10::ArrayRef<const Walker*> walkers,
                       ElementAttribution& verdict) {
  NonfiniteKinds given;
  bool any_accident = false;
  for (size_t i = 0; i < walkers.size(); ++i) {
    const NonfiniteKinds kinds = walkers[i] == nullptr ? NonfiniteKinds() : walkers[i]->here();
    given |= kinds;
    any_accident = any_accident || (kinds.any() && arguments[i].by_accident);
  }
  if (!given.any() || (result.nan() && !given.nan() && !any_accident)) {
    verdict.own |= result;
    return;
  }
  for (size_t i = 0; i < walkers.size(); ++i) {
    if (walkers[i] != nullptr && walkers[i]->here().any()) verdict.inherited[i] |= result;
  }
}

}  // namespace

std::shared_ptr<const ElementKinds> kinds_by_element(const at::Tensor& tensor) {
  auto kinds = std::make_shared<ElementKinds>();
  kinds->reserve(tensor.numel());
  Walker walker(tensor, nullptr, tensor.sizes());
  Walker* one[] = {&walker};
  walk(tensor.sizes(), tensor.numel(), one, [&] { kinds->push_back(walker.here()); });
  return kinds;
}

ElementAttribution attribute_by_element(const at::Tensor& result, c10::ArrayRef<Candidate> arguments) {
  const auto sizes = result.sizes();
  ElementAttribution verdict;
  verdict.inherited.resize(arguments.size());
  Walker result_walker(result, nullptr, sizes);
  std::vector<Walker> storage;
  storage.reserve(arguments.size());
  c10::SmallVector<const Walker*, 4> by_argument;
  c10::SmallVector<Walker*, 5> all{&result_walker};
  for (const Candidate& argument : arguments) {
    const bool usable = broadcasts_to(argument.tensor, sizes);
    if (usable) all.push_back(&storage.emplace_back(argument.tensor, argument.before.get(), sizes));
    by_argument.push_back(usable ? &storage.back() : nullptr);
  }
  walk(sizes, result.numel(), all, [&] {
    const NonfiniteKinds kinds = result_walker.here();
    if (kinds.any()) attribute_element(kinds, arguments, by_argument, verdict);
  });
  return verdict;
}

NonfiniteKinds kinds_where_nonzero(const at::Tensor& tensor, const at::Tensor& weight) {
  Walker of_tensor(tensor, nullptr, tensor.sizes());
  Walker of_weight(weight, nullptr, tensor.sizes());
  Walker* both[] = {&of_tensor, &of_weight};
  NonfiniteKinds kinds;
  walk(tensor.sizes(), tensor.numel(), both, [&] {
    if (!of_weight.is_zero()) kinds |= of_tensor.here();
  });
  return kinds;
}

}  // namespace torchnan
