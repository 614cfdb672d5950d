// Operators that move values, or make them without arithmetic.
#include <algorithm>
#include <cmath>

#include "check/bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// Elements of argument I, perhaps with zeros between them; in the second form also of argument J.
template <size_t I>
void of_argument(A a, Results out) {
  out[0] = a.bound(I);
}
template <size_t I, size_t J>
void of_either(A a, Results out) {
  out[0] = a.bound(I).joined(a.bound(J));
}

// Elements of a list of tensors.
void of_list(A a, Results out) { out[0] = a.bound_of_all(0); }

// constant_pad_nd(x, pad, value=0)
void constant_pad(A a, Results out) { out[0] = a.has_value(2) ? a.bound(0).joined(a.bound(2)) : a.bound(0); }

// index_put(x, indices, values, accumulate): elements of x and of values; with accumulate, any number of values may be
// added to one element.
void index_put(A a, Results out) {
  const Bound put = a.bound(0).joined(a.bound(2));
  if (!a.flag(3)) {
    out[0] = put;
    return;
  }
  out[0] = a[0] + sum(a[2], a.combinations(1));
}

// scatter(x, dim, index, source or value) without a reduction: an element of either.
void scatter(A a, Results out) {
  if (!a.has_value(4)) out[0] = a.bound(0).joined(a.bound(3));
}

// scatter_add(x, dim, index, source): every source element may be added to the same element.
void scatter_add(A a, Results out) { out[0] = a[0] + sum(a[3], static_cast<double>(a.numel(2))); }

// index_add(x, dim, index, source, alpha=1): as many rows as there are indices may be added to the same element.
void index_add(A a, Results out) { out[0] = a[0] + sum(a.scalar(4, 1) * a[3], static_cast<double>(a.numel(2)) + 1); }

// Zero, or between zero and one.
void zeros(A, Results out) { out[0] = {0, true}; }
void zeros_and_ones(A, Results out) { out[0] = {1, true}; }

// uniform_(x, from=0, to=1): from + (to - from) u, with 0 <= u < 1. core/DistributionsHelper.h
void uniform(A a, Results out) {
  const Value from = a.scalar(1, 0);
  const Value to = a.scalar(2, 1);
  out[0] = at_most(std::max(from.max_abs, to.max_abs), from + (to - from));
  out[0].nonnegative = from.nonnegative && to.nonnegative;
}

// native_dropout(x, p, train): x or 0, times 1 / (1 - p); the second result is the mask. Unless it trains, the result
// is x, and p is not checked. Dropout.cpp
void native_dropout(A a, Results out) {
  const Value kept_or_not{.max_abs = 1, .nonnegative = true};
  const double p = a.number(1, NAN);
  if (p >= 0 && p < 1) out[0] = a[0] * kept_or_not * a.as_scalar(1 / (1 - p));
}

// native_dropout_backward(g, mask, scale)
void native_dropout_backward(A a, Results out) { out[0] = either(a[0] * (a[1] * a[2]), a[0] * a[1] * a[2]); }

// embedding_dense_backward(g, indices, ...): every gradient row may be added to the same one; frequencies only divide.
void embedding_dense_backward(A a, Results out) { out[0] = sum(a[0], static_cast<double>(a.numel(1))); }

// embedding_bag(weight, indices, offsets, by_frequency, mode, sparse, factors): sums, means or maxima of rows.
void embedding_bag(A a, Results out) {
  constexpr int64_t kMean = 1;
  constexpr int64_t kMax = 2;
  const auto n = static_cast<double>(a.numel(1));
  const Value each = a[0] * a.scalar(6, 1);
  if (a.integer(4, 0) == kMax) {
    out[0] = {a.max_abs(0)};
  } else {
    out[0] = a.integer(4, 0) == kMean ? mean(each, n) : sum(each, n);
  }
}

// embedding_bag_backward(g, indices, offsets, bag of each, bag sizes, maxima, rows, by_frequency, mode, sparse,
// factors): every gradient row may be added to the same one; frequencies and sizes only divide.
void embedding_bag_backward(A a, Results out) {
  out[0] = sum(a[0] * a.scalar(10, 1), static_cast<double>(std::max(a.numel(1), a.size(0, 0))));
}

// unfold_backward(g, input_sizes, dim, size, step): an element lies in at most `size` windows.
void unfold_backward(A a, Results out) { out[0] = sum(a[0], static_cast<double>(a.integer(3, a.numel(0)))); }

}  // namespace

void add_data_movement_rules(RuleTable& table) {
  for (const char* name : {"clone",
                           "_to_copy",
                           "lift",
                           "lift_fresh",
                           "lift_fresh_copy",
                           "select_copy",
                           "slice_copy",
                           "permute_copy",
                           "t_copy",
                           "transpose_copy",
                           "_reshape_copy",
                           "expand_copy",
                           "detach_copy",
                           "alias_copy",
                           "unfold_copy",
                           "diagonal_copy",
                           "unsqueeze_copy",
                           "squeeze_copy",
                           "index",
                           "index_select",
                           "gather",
                           "take",
                           "embedding",
                           "repeat",
                           "roll",
                           "flip",
                           "pixel_shuffle",
                           "pixel_unshuffle",
                           "channel_shuffle",
                           "sort",
                           "topk",
                           "scalar_tensor",
                           "reflection_pad1d",
                           "reflection_pad2d",
                           "replication_pad2d",
                           "upsample_nearest1d",
                           "upsample_nearest2d"}) {
    table[name] = of_argument<0>;
  }
  for (const char* name : {"tril", "triu", "select_backward", "slice_backward", "diagonal_backward", "im2col"}) {
    table[name] = of_argument<0>;
  }
  for (const char* name : {"copy", "fill", "full", "full_like"}) table[name] = of_argument<1>;
  table["new_full"] = of_argument<2>;
  table["cat"] = of_list;
  table["stack"] = of_list;
  table["constant_pad_nd"] = constant_pad;
  table["masked_scatter"] = of_either<0, 2>;
  table["index_put"] = index_put;
  table["_index_put_impl"] = index_put;
  table["index_copy"] = of_either<0, 3>;
  table["index_fill"] = of_either<0, 3>;
  table["scatter"] = scatter;
  table["scatter_add"] = scatter_add;
  table["index_add"] = index_add;
  for (const char* name : {"slice_scatter", "select_scatter", "diagonal_scatter"}) table[name] = of_either<0, 1>;
  for (const char* name : {"zeros", "zeros_like", "new_zeros", "zero"}) table[name] = zeros;
  for (const char* name : {"ones", "ones_like", "new_ones", "eye", "bernoulli", "rand", "rand_like"}) {
    table[name] = zeros_and_ones;
  }
  table["uniform"] = uniform;
  table["native_dropout"] = native_dropout;
  table["native_dropout_backward"] = native_dropout_backward;
  table["embedding_dense_backward"] = embedding_dense_backward;
  table["_embedding_bag"] = embedding_bag;
  table["_embedding_bag_forward_only"] = embedding_bag;
  table["_embedding_bag_backward"] = embedding_bag_backward;
  table["unfold_backward"] = unfold_backward;
}

}  // namespace torchnan
