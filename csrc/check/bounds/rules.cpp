#include "check/bounds/rules.h"

#include <mutex>
#include <stdexcept>

#include "base/fork_safe_mutex.h"
#include "base/format.h"
#include "base/printable.h"

namespace torchnan {
namespace {

constexpr std::string_view kAten = "aten::";
constexpr std::string_view kForeach = "_foreach_";

RuleTable* make_rules_of_pytorch() {
  auto* made = new RuleTable;
  add_attention_rules(*made);
  add_convolution_rules(*made);
  add_loss_rules(*made);
  add_matmul_rules(*made);
  add_data_movement_rules(*made);
  add_normalization_rules(*made);
  add_pointwise_rules(*made);
  add_recurrent_rules(*made);
  add_reduction_rules(*made);
  add_softmax_rules(*made);
  return made;
}

// The rules that programs have registered, by full name. A rule never moves in memory.
struct RegisteredRules {
  ForkSafeMutex mutex{ForkSafeMutex::kRules};
  RuleTable table;
};

// Never destroyed: operators run until the process ends.
const RuleTable& rules_of_pytorch = *make_rules_of_pytorch();
RegisteredRules& registered = *new RegisteredRules;

const Rule* find(const RuleTable& table, std::string_view name) {
  const auto found = table.find(name);
  return found == table.end() ? nullptr : &found->second;
}

uint8_t described_by(std::string_view op) {
  if (op == "native_layer_norm" || op == "native_group_norm" || op == "native_batch_norm") return 1;
  return op == "_scaled_dot_product_flash_attention_for_cpu" ? 2 : 0;
}

}  // namespace

std::string_view without_underscore(std::string_view op) {
  const bool is_in_place = op.size() > 1 && op.back() == '_' && op[op.size() - 2] != '_';
  return is_in_place ? op.substr(0, op.size() - 1) : op;
}

RuleOfOperator rule_of(std::string_view op) {
  const std::string_view name = without_underscore(op);
  {
    const std::lock_guard lock(registered.mutex);
    if (const Rule* rule = find(registered.table, name)) return {rule, false};
  }
  if (name.substr(0, kAten.size()) != kAten) return {};
  const std::string_view base = name.substr(kAten.size());
  const bool is_on_lists = base.substr(0, kForeach.size()) == kForeach;
  const std::string_view of_element = is_on_lists ? base.substr(kForeach.size()) : base;
  return {find(rules_of_pytorch, of_element), is_on_lists, moment_step_of(of_element), described_by(of_element)};
}

void add_rule(const std::string& op, BoundRule rule) {
  if (op.find("::") == std::string::npos || op.find('.') != std::string::npos) {
    throw std::invalid_argument(format_text(
        "'{}' is not the name of an operator: give its namespace and name without overload, as in 'mylib::scale'",
        printable(op)));
  }
  const std::string name(without_underscore(op));
  if (rule_of(name).rule != nullptr)
    throw std::invalid_argument(format_text("'{}' has a bound rule already", printable(op)));
  {
    const std::lock_guard lock(registered.mutex);
    registered.table[name] = std::move(rule);
  }
}

std::vector<std::string> operators_with_rules() {
  std::vector<std::string> names;
  for (const auto& [name, rule] : rules_of_pytorch) names.push_back(name);
  const std::lock_guard lock(registered.mutex);
  for (const auto& [name, rule] : registered.table) names.push_back(name);
  return names;
}

}  // namespace torchnan
