#include "origin/elementwise_attribution.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <c10/util/SmallVector.h>

#include "check/scan/finite_scan.h"
#include "check/scan/float_format.h"
#include "check/scan/isa_dispatch.h"

namespace torchnan {
namespace {

constexpr int64_t kBlock = 1024;  // elements that are compared at a time

using KindsOfBlock = std::array<NonfiniteKinds, kBlock>;

// One tensor in the logical order of the result, with stride 0 where it is broadcast.
class View {
 public:
  View(const at::Tensor& tensor, const ElementKinds* before, c10::IntArrayRef result_sizes)
      : base_(static_cast<const char*>(tensor.const_data_ptr())),
        before_(before),
        format_(*float_format(tensor.scalar_type())) {
    TORCH_CHECK(tensor.is_cpu(), "cannot read a tensor on ", tensor.device(), " element by element");
    const auto missing = static_cast<int64_t>(result_sizes.size()) - tensor.dim();
    int64_t dense = 1;  // stride of the kept kinds
    strides_.resize(result_sizes.size(), 0);
    for (auto d = static_cast<int64_t>(result_sizes.size()); d-- > missing;) {
      const int64_t size = tensor.size(d - missing);
      if (size != 1) strides_[d] = before_ != nullptr ? dense : tensor.stride(d - missing);
      dense *= size;
    }
  }

  int64_t stride(size_t d) const { return strides_[d]; }
  void drop_dimension(size_t d) { strides_.erase(strides_.begin() + static_cast<std::ptrdiff_t>(d)); }
  void move(size_t d, int64_t steps) { offset_ += strides_[d] * steps; }

  // Writes the kinds of `n` elements from `first` on along the last dimension.
  void classify(int64_t first, int64_t n, NonfiniteKinds* kinds) const {
    const int64_t stride = strides_.empty() ? 0 : strides_.back();
    const int64_t begin = offset_ + first * stride;
    if (before_ != nullptr && stride == 1) {
      std::copy_n(before_->begin() + begin, n, kinds);
    } else if (before_ != nullptr) {
      for (int64_t i = 0; i < n; ++i) kinds[i] = (*before_)[begin + i * stride];
    } else if (stride == 0) {
      std::fill_n(kinds, n, element(begin));
    } else if (stride == 1 && format_.words_per_element == 1) {
      classify_words(base_ + begin * format_.element_bytes(), n, format_, kinds);
    } else {
      for (int64_t i = 0; i < n; ++i) kinds[i] = element(begin + i * stride);
    }
  }

  // Whether an element is zero, counted as above.
  bool is_zero(int64_t element) const {
    const char* p = base_ + (offset_ + element * (strides_.empty() ? 0 : strides_.back())) * format_.element_bytes();
    for (int part = 0; part < format_.words_per_element; ++part) {
      uint64_t word = 0;
      std::memcpy(&word, p + part * format_.word_bytes, format_.word_bytes);
      if ((word & format_.mask) != 0) return false;
    }
    return true;
  }

 private:
  NonfiniteKinds element(int64_t at) const {
    std::array<NonfiniteKinds, 2> parts;
    classify_words(base_ + at * format_.element_bytes(), format_.words_per_element, format_, parts.data());
    return parts[0] | parts[1];
  }

  const char* base_;
  const ElementKinds* before_;
  FloatFormat format_;
  int64_t offset_ = 0;  // elements
  c10::SmallVector<int64_t, 6> strides_;
};

// Makes one dimension of neighbours that all tensors step through alike, so that the last one is as long as can be.
c10::SmallVector<int64_t, 6> merge_dimensions(c10::IntArrayRef result_sizes, c10::ArrayRef<View*> views) {
  c10::SmallVector<int64_t, 6> sizes(result_sizes.begin(), result_sizes.end());
  for (size_t d = sizes.size(); d-- > 0;) {
    const bool is_last = d + 1 == sizes.size();
    const bool is_merged = sizes[d] == 1 || (!is_last && std::all_of(views.begin(), views.end(), [&](const View* view) {
                             return view->stride(d) == view->stride(d + 1) * sizes[d + 1];
                           }));
    if (!is_merged) continue;
    if (!is_last) sizes[d + 1] *= sizes[d];
    if (is_last && d == 0) break;  // one element
    sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(d));
    for (View* view : views) view->drop_dimension(d);
  }
  return sizes;
}

// Calls visit(first, n) for each block along the last dimension, with all views at its begin.
template <typename Visit>
void for_each_block(const at::Tensor& result, c10::ArrayRef<View*> views, Visit&& visit) {
  if (result.numel() == 0) return;
  const auto sizes = merge_dimensions(result.sizes(), views);
  const int64_t length = sizes.empty() ? 1 : sizes.back();
  c10::SmallVector<int64_t, 6> index(sizes.size(), 0);
  for (int64_t rows = result.numel() / length; rows > 0; --rows) {
    for (int64_t first = 0; first < length; first += kBlock) visit(first, std::min(kBlock, length - first));
    for (size_t d = sizes.size(); d-- > 1;) {
      const size_t outer = d - 1;
      for (View* view : views) view->move(outer, 1);
      if (++index[outer] < sizes[outer]) break;
      for (View* view : views) view->move(outer, -sizes[outer]);
      index[outer] = 0;
    }
  }
}

[[gnu::always_inline]] inline NonfiniteKinds any_kind(const NonfiniteKinds* kinds, int64_t n) {
  NonfiniteKinds any;
  for (int64_t i = 0; i < n; ++i) any |= kinds[i];
  return any;
}

[[gnu::always_inline]] inline void add_kinds(NonfiniteKinds* __restrict sum, const NonfiniteKinds* __restrict kinds,
                                             int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] |= kinds[i];
}

// Takes the kinds of those elements of a result that the operation has made, by what it was given there. Leaves the
// others.
[[gnu::always_inline]] inline NonfiniteKinds take_own(NonfiniteKinds* __restrict result,
                                                      const NonfiniteKinds* __restrict given,
                                                      const NonfiniteKinds* __restrict by_accident, int64_t n) {
  NonfiniteKinds own;
  for (int64_t i = 0; i < n; ++i) {
    const NonfiniteKinds new_nan = result[i].without(given[i]) & NonfiniteKinds::only_nan();
    const NonfiniteKinds is_new_nan =
        NonfiniteKinds::all_if(new_nan.any()) & NonfiniteKinds::all_if(!by_accident[i].any());
    const NonfiniteKinds is_own = NonfiniteKinds::all_if(!given[i].any()) | is_new_nan;
    own |= result[i] & is_own;
    result[i] = result[i].without(is_own);
  }
  return own;
}

[[gnu::always_inline]] inline NonfiniteKinds any_kind_where(const NonfiniteKinds* kinds, const NonfiniteKinds* where,
                                                            int64_t n) {
  NonfiniteKinds any;
  for (int64_t i = 0; i < n; ++i) any |= kinds[i] & NonfiniteKinds::all_if(where[i].any());
  return any;
}

constexpr IsaDispatch<&any_kind> kAnyKind;
constexpr IsaDispatch<&add_kinds> kAddKinds;
constexpr IsaDispatch<&take_own> kTakeOwn;
constexpr IsaDispatch<&any_kind_where> kAnyKindWhere;

bool broadcasts_to(const at::Tensor& tensor, c10::IntArrayRef sizes) {
  const auto missing = static_cast<int64_t>(sizes.size()) - tensor.dim();
  if (missing < 0) return false;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) != 1 && tensor.size(d) != sizes[d + missing]) return false;
  }
  return true;
}

// Attributes the bad elements of one block after the other; arguments that are left out have no view.
class BlockAttribution {
 public:
  BlockAttribution(c10::ArrayRef<Candidate> arguments, c10::ArrayRef<const View*> views)
      : arguments_(arguments), views_(views), of_argument_(views.size()) {
    verdict_.inherited.resize(views.size());
  }

  void add(const View& result, int64_t first, int64_t n) {
    result.classify(first, n, of_result_.data());
    if (!kAnyKind(of_result_.data(), n).any()) return;
    std::fill_n(given_.begin(), n, NonfiniteKinds());
    std::fill_n(by_accident_.begin(), n, NonfiniteKinds());
    for (size_t i = 0; i < views_.size(); ++i) {
      if (views_[i] == nullptr) continue;
      views_[i]->classify(first, n, of_argument_[i].data());
      kAddKinds(given_.data(), of_argument_[i].data(), n);
      if (arguments_[i].by_accident) kAddKinds(by_accident_.data(), of_argument_[i].data(), n);
    }
    verdict_.own |= kTakeOwn(of_result_.data(), given_.data(), by_accident_.data(), n);
    for (size_t i = 0; i < views_.size(); ++i) {
      if (views_[i] == nullptr) continue;
      verdict_.inherited[i] |= kAnyKindWhere(of_result_.data(), of_argument_[i].data(), n);
    }
  }

  ElementAttribution& verdict() { return verdict_; }

 private:
  c10::ArrayRef<Candidate> arguments_;
  c10::ArrayRef<const View*> views_;
  std::vector<KindsOfBlock> of_argument_;
  KindsOfBlock of_result_, given_, by_accident_;
  ElementAttribution verdict_;
};

}  // namespace

std::shared_ptr<const ElementKinds> kinds_by_element(const at::Tensor& tensor) {
  auto kinds = std::make_shared<ElementKinds>();
  kinds->resize(tensor.numel());
  View view(tensor, nullptr, tensor.sizes());
  NonfiniteKinds* next = kinds->data();
  for_each_block(tensor, {&view}, [&](int64_t first, int64_t n) {
    view.classify(first, n, next);
    next += n;
  });
  return kinds;
}

ElementAttribution attribute_by_element(const at::Tensor& result, c10::ArrayRef<Candidate> arguments) {
  View of_result(result, nullptr, result.sizes());
  std::vector<View> storage;
  storage.reserve(arguments.size());
  c10::SmallVector<const View*, 4> by_argument;
  c10::SmallVector<View*, 5> all{&of_result};
  for (const Candidate& argument : arguments) {
    const bool usable = broadcasts_to(argument.tensor, result.sizes());
    if (usable) all.push_back(&storage.emplace_back(argument.tensor, argument.before.get(), result.sizes()));
    by_argument.push_back(usable ? &storage.back() : nullptr);
  }
  BlockAttribution blocks(arguments, by_argument);
  for_each_block(result, all, [&](int64_t first, int64_t n) { blocks.add(of_result, first, n); });
  return std::move(blocks.verdict());
}

NonfiniteKinds kinds_where_nonzero(const at::Tensor& tensor, const at::Tensor& weight) {
  View of_tensor(tensor, nullptr, tensor.sizes());
  View of_weight(weight, nullptr, tensor.sizes());
  View* both[] = {&of_tensor, &of_weight};
  KindsOfBlock block;
  NonfiniteKinds kinds;
  for_each_block(tensor, both, [&](int64_t first, int64_t n) {
    of_tensor.classify(first, n, block.data());
    for (int64_t i = 0; i < n; ++i) {
      if (block[i].any() && !of_weight.is_zero(first + i)) kinds |= block[i];
    }
  });
  return kinds;
}

}  // namespace torchnan
