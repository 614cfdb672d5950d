// The rules by operator. One file in rules/ per family; a rule is found by its operator's name.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <torchnan/bounds.h>

#include "scan/strict_floats.h"

namespace torchnan {

// Names are without namespace and without the underscore of in-place forms; the overloads of a name share its rule, so
// a rule has to hold for all of them.
using RuleTable = std::map<std::string, BoundRule, std::less<>>;
using Results = std::span<Bound>;

// A product may be computed with its factors rounded to bfloat16 (set_float32_matmul_precision).
inline constexpr double kRoundedFactors = 1.02;

// |f(x)| <= |x|, with f(x) >= 0 where x >= 0: elements of the first argument, means and extremes of them.
inline void same_bound(const RuleArguments& a, Results out) { out[0] = {a.max_abs(0), a.nonnegative(0)}; }

// How many elements a tensor has for each index of one dimension.
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
void add_reduction_rules(RuleTable& table);
void add_softmax_rules(RuleTable& table);

struct RuleOfOperator {
  const BoundRule* rule = nullptr;    // null: results are looked at
  bool elementwise_in_lists = false;  // _foreach_*: the rule is for one element of each list
};

// The name of what the operator does: "aten::add" for "aten::add_".
std::string_view without_underscore(std::string_view op);

// "aten::add_", "mylib::gated_mul". What is returned lives as long as the process.
RuleOfOperator rule_of(std::string_view op);

// Adds the rule of an operator that is not PyTorch's. Throws std::invalid_argument if `op` is no name of an operator or
// has a rule. Plans that were made before do not see it: see register_bound_rule().
void add_rule(const std::string& op, BoundRule rule);

// Every operator with a rule, without namespace for PyTorch's own.
TORCHNAN_API std::vector<std::string> operators_with_rules();

}  // namespace torchnan
