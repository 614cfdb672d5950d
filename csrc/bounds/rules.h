// The bound rules, by the name of their operator. There is one file per family in rules/.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <torchnan/bounds.h>

#include "bounds/moments.h"
#include "scan/strict_floats.h"

namespace torchnan {

// Names are without namespace and without the underscore of in-place forms; the overloads of a name share its rule, so
// a rule has to hold for all of them.
using RuleTable = std::map<std::string, BoundRule, std::less<>>;
using Results = std::span<Bound>;

// Factors of a product may be rounded to bfloat16 (set_float32_matmul_precision).
inline constexpr double kRoundedFactors = 1.02;

// Returns the largest of several magnitudes. NaN, which std::max() loses, is unknown.
inline double largest(std::initializer_list<double> magnitudes) {
  double largest = 0;
  for (const double magnitude : magnitudes) {
    if (std::isnan(magnitude)) return RuleArguments::kUnknown;
    largest = std::max(largest, magnitude);
  }
  return largest;
}

// Returns a bound of results of which larger values are computed on the way.
inline Bound by_way_of(double max_intermediate, Bound bound) {
  bound.max_intermediate = max_intermediate;
  return bound;
}

// Returns a bound of x y z, rounded twice in any order. A product of two that is subnormal is off by a step, however
// small it is, and the third factor makes that larger. To divide, pass the reciprocal.
inline double product_of(const RuleArguments& a, double x, double y, double z) {
  return x * y * z + a.subnormal_step() * std::max({x, y, z});
}

// Returns a bound of a mean of n numbers of magnitude up to `each`. Their sum comes first, and its rounding stays: n
// equal numbers have a mean above them.
inline Bound mean_of(const RuleArguments& a, double n, double each, bool nonnegative = false) {
  const double total = a.sum_of(n, each);
  return by_way_of(total, {total / std::max(n, 1.0), nonnegative});
}

// For operators with |f(x)| <= |x| and f(x) >= 0 where x >= 0: elements of the first argument and their extremes.
inline void same_bound(const RuleArguments& a, Results out) { out[0] = {a.max_abs(0), a.nonnegative(0)}; }

// Returns the number of elements of a tensor for each index of one dimension.
inline double elements_per(const RuleArguments& a, size_t i, int64_t dim) {
  return static_cast<double>(a.numel(i)) / static_cast<double>(std::max<int64_t>(1, a.size(i, dim)));
}

inline double product(const c10::SmallVector<int64_t, 5>& sizes) {
  double product = 1;
  for (const int64_t size : sizes) product *= static_cast<double>(size);
  return product;
}

void add_attention_rules(RuleTable& table);
void add_convolution_rules(RuleTable& table);
void add_loss_rules(RuleTable& table);
void add_matmul_rules(RuleTable& table);
void add_data_movement_rules(RuleTable& table);
void add_normalization_rules(RuleTable& table);
void add_pointwise_rules(RuleTable& table);
void add_recurrent_rules(RuleTable& table);
void add_reduction_rules(RuleTable& table);
void add_softmax_rules(RuleTable& table);

struct RuleOfOperator {
  const BoundRule* rule = nullptr;    // null: results are scanned
  bool elementwise_in_lists = false;  // _foreach_*: the rule applies to one element of each list
  MomentStep moment_step = MomentStep::kNone;
};

// Returns the name without the underscore of in-place forms: "aten::add" for "aten::add_".
std::string_view without_underscore(std::string_view op);

// "aten::add_", "mylib::gated_mul". What is returned lives as long as the process.
RuleOfOperator rule_of(std::string_view op);

// Adds the rule of an operator that is not PyTorch's. Throws std::invalid_argument if `op` is no name of an operator or
// has a rule. Plans that were made before do not see it: see register_bound_rule().
void add_rule(const std::string& op, BoundRule rule);

// Returns every operator with a rule; without namespace for PyTorch's own.
TORCHNAN_API std::vector<std::string> operators_with_rules();

}  // namespace torchnan
