// The bound rules, by the name of their operator. There is one file per family in rules/.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <torchnan/bounds.h>

#include "check/bounds/moments.h"
#include "base/strict_floats.h"

namespace torchnan {

// A bound rule. If a scan shows that it is wrong, it is withdrawn for the rest of the process.
class Rule {
 public:
  Rule& operator=(BoundRule rule) {
    rule_ = std::move(rule);
    return *this;
  }
  void operator()(const RuleArguments& arguments, std::span<Bound> results) const {
    rule_(arguments, results);
    if (factor_ != 1) [[unlikely]] {
      for (Bound& result : results) result.max_abs *= factor_;
    }
  }

  bool is_withdrawn() const { return is_withdrawn_.load(std::memory_order_relaxed); }
  // Returns whether the rule was still active before.
  bool withdraw() const { return !is_withdrawn_.exchange(true); }

  // Makes the rule wrong, for tests: from here on its bounds are multiplied by this factor.
  void falsify_for_test(double factor) const {
    factor_ = factor;
    is_withdrawn_ = false;
  }

 private:
  BoundRule rule_;
  mutable std::atomic<bool> is_withdrawn_{false};
  mutable double factor_ = 1;
};

// Names are without namespace and without the underscore of in-place forms; the overloads of a name share its rule, so
// a rule has to hold for all of them.
using RuleTable = std::map<std::string, Rule, std::less<>>;
using Results = std::span<Bound>;

// For operators with |f(x)| <= |x| and f(x) >= 0 where x >= 0: elements of the first argument, and their extremes.
inline void same_bound(const RuleArguments& a, Results out) { out[0] = {a.max_abs(0), a.nonnegative(0)}; }

// Whether an argument has a type of 16 bits; sums are accumulated in a wider one.
inline bool has_16_bits(const RuleArguments& a) { return a.range().unit > a.sums().unit; }

// Whether the operator runs kernels that the rules for normalisation, convolution and softmax were derived from.
inline bool uses_derived_kernels(const RuleArguments& a) {
  return a.uses_kernels_of(Kernels::kHost) || a.uses_kernels_of(Kernels::kNvidia);
}

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
  const Rule* rule = nullptr;         // null: results are scanned
  bool elementwise_in_lists = false;  // _foreach_*: the rule applies to one element of each list
  MomentStep moment_step = MomentStep::kNone;
  // How many of the first arguments the results describe, as a mean and a deviation do: the rule of the backward pass
  // relies on that.
  uint8_t described = 0;
};

// Returns the name without the underscore of in-place forms: "aten::add" for "aten::add_".
std::string_view without_underscore(std::string_view op);

// Takes a name such as "aten::add_" or "mylib::gated_mul". The result lives as long as the process.
TORCHNAN_API RuleOfOperator rule_of(std::string_view op);

// Adds the rule of an operator outside of PyTorch. Throws std::invalid_argument if `op` is not the name of an operator
// or already has a rule. Existing plans do not see it: see register_bound_rule().
void add_rule(const std::string& op, BoundRule rule);

// Returns every operator with a rule; without namespace for PyTorch's own.
TORCHNAN_API std::vector<std::string> operators_with_rules();

}  // namespace torchnan
