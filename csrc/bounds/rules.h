// The rules by operator. One file in rules/ per family; a rule is found by its operator's name.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <torchnan/bounds.h>

namespace torchnan {

// Names are without namespace and without the underscore of in-place forms; the overloads of a name share its rule, so
// a rule has to hold for all of them.
using RuleTable = std::map<std::string, BoundRule, std::less<>>;
using Results = std::span<Bound>;

void add_attention_rules(RuleTable& table);
void add_convolution_rules(RuleTable& table);
void add_loss_rules(RuleTable& table);
void add_matmul_rules(RuleTable& table);
void add_moving_rules(RuleTable& table);
void add_normalisation_rules(RuleTable& table);
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

// Every operator with a rule, without namespace for PyTorch's own.
TORCHNAN_API std::vector<std::string> operators_with_rules();

}  // namespace torchnan
