#include "check/operators/op_plan.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <ATen/core/enum_tag.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

#include "check/operators/op_traits.h"
#include "base/fork_safe_mutex.h"

namespace torchnan {
namespace {

using Handling = OpPlan::Handling;

const c10::Type& without_optional(const c10::Type& type) {
  if (const auto optional = type.cast<c10::OptionalType>()) return without_optional(*optional->getElementType());
  return type;
}

bool holds_tensors(const c10::Type& type) {
  const c10::Type& inner = without_optional(type);
  if (inner.kind() == c10::TypeKind::TensorType) return true;
  const auto list = inner.cast<c10::ListType>();
  return list && holds_tensors(*list->getElementType());
}

bool is_number(const c10::Type& type) {
  const auto kind = without_optional(type).kind();
  return kind == c10::TypeKind::NumberType || kind == c10::TypeKind::FloatType;
}

// Whether a report shows an argument that is neither a tensor nor a number, because it explains a non-finite result.
bool is_shown_in_reports(const c10::Argument& argument) {
  return argument.name() == "ignore_index" || argument.name() == "training";
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_view_of_argument(const c10::Argument& returned) {
  return returned.alias_info() != nullptr && !returned.alias_info()->isWrite();
}

bool is_decomposed(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

// Fills in which results are checked.
void read_returns(const c10::FunctionSchema& schema, std::string_view base, OpPlan& plan) {
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    const c10::Argument& result = schema.returns()[r];
    if (!holds_tensors(*result.type()) || is_saved_for_backward(base, r)) continue;
    if (is_view_of_argument(result) && !is_constant_factory(base))
      continue;  // lift_fresh: the argument of torch.tensor()
    plan.checked_returns.push_back(static_cast<uint16_t>(r));
    plan.writes_arguments_only &= is_written(result);
  }
}

// Whether a checked result is this mutated argument.
bool is_returned(const c10::Argument& argument, const c10::FunctionSchema& schema, const OpPlan& plan) {
  return is_written(argument) &&
         std::any_of(plan.checked_returns.begin(), plan.checked_returns.end(), [&](const uint16_t r) {
           const c10::Argument& result = schema.returns()[r];
           return is_written(result) && argument.alias_info()->beforeSets() == result.alias_info()->beforeSets();
         });
}

// Fills in which arguments are saved, and which are mutated. Reads the returns from the plan.
void read_arguments(const c10::FunctionSchema& schema, std::string_view base, OpPlan& plan) {
  for (size_t a = 0; a < schema.arguments().size(); ++a) {
    const c10::Argument& argument = schema.arguments()[a];
    const bool tensors = holds_tensors(*argument.type());
    const bool is_read = a > 0 || !reads_metadata_of_first(base);
    const bool is_kept = tensors || is_number(*argument.type()) || is_shown_in_reports(argument) ||
                         tells_written_part(base, argument.name());
    if (is_read && is_kept) plan.saved_arguments.push_back(static_cast<uint16_t>(a));
    plan.argument_names.push_back(argument.name());
    if (!tensors || !(is_written(argument) || mutates_undeclared_argument(base, argument.name()))) continue;
    const auto saved_index = static_cast<uint16_t>(plan.saved_arguments.size() - 1);
    const bool is_out = argument.kwarg_only();
    if (is_out) ++plan.out_arguments;
    plan.writes_arguments_only &= is_written(argument);
    plan.mutated_arguments.push_back(
        {saved_index, !is_out && !overwrites_fully(base), is_returned(argument, schema, plan)});
  }
}

// Fills in what a collective does with its tensors.
void read_collective(const c10::FunctionSchema& schema, OpPlan& plan) {
  plan.collective = collective_traits(plan.name);
  for (size_t k = 0; k < plan.saved_arguments.size(); ++k) {
    const c10::Argument& argument = schema.arguments()[plan.saved_arguments[k]];
    const CollectiveUse use = collective_use(plan.name, argument.name());
    if (!holds_tensors(*argument.type()) || use == CollectiveUse::kNone) continue;
    plan.collective_arguments.push_back(
        {static_cast<uint16_t>(k), use != CollectiveUse::kWrites, use != CollectiveUse::kReads});
  }
}

Handling handling_of(const c10::OperatorHandle& op, const OpPlan& plan, std::string_view ns, std::string_view base) {
  if (is_decomposed(op)) return Handling::kDecompose;
  if (reads_scalar_to_host(base)) return Handling::kRead;
  if (ns == "aten" && returns_uninitialized(base)) return Handling::kAllocate;
  if (ns == "aten" && is_view_with_arithmetic_backward(base)) return Handling::kRecordCallSite;
  if (plan.is_constant_factory) return Handling::kCheck;
  if (ns == "profiler" || base == "_unsafe_view" || base == "_reshape_alias") return Handling::kPass;
  // the collective that writes its tensor is still running
  if (base == "_wrap_tensor_autograd") return Handling::kPass;
  const bool nothing_to_check =
      plan.checked_returns.empty() && plan.mutated_arguments.empty() && !plan.is_async_collective;
  return nothing_to_check ? Handling::kPass : Handling::kCheck;
}

// A fixed table from operator to plan, filled as operators come by; reading takes no lock.
class PlanTable {
 public:
  const OpPlan& of(const c10::OperatorHandle& op) {
    const void* key = &op.operator_name();  // lives as long as the registration
    for (size_t i = slot_of(key);; i = (i + 1) % kSlots) {
      const void* held = slots_[i].key.load(std::memory_order_acquire);
      if (held == key) return *slots_[i].plan.load(std::memory_order_acquire);
      if (held == nullptr) return add(op, key);
    }
  }

  void forget(const c10::OperatorHandle& op) {
    const std::lock_guard lock(mutex_);
    const void* key = &op.operator_name();
    if (auto late = overflow_plans_.extract(key)) plans_.push_back(std::move(late.mapped()));
    for (size_t i = slot_of(key);; i = (i + 1) % kSlots) {
      const void* held = slots_[i].key.load(std::memory_order_relaxed);
      if (held == nullptr) return;
      if (held != key) continue;
      // A later operator may have the same address.
      slots_[i].key.store(&tombstone_, std::memory_order_release);
      return;
    }
  }

  void forget_name(std::string_view name) {
    const std::lock_guard lock(mutex_);
    for (Slot& slot : slots_) {
      const OpPlan* plan = slot.plan.load(std::memory_order_relaxed);
      if (plan != nullptr && without_underscore(plan->name) == name) slot.key.store(&tombstone_);
    }
    for (auto& [key, plan] : overflow_plans_) plans_.push_back(std::move(plan));
    overflow_plans_.clear();
  }

 private:
  static constexpr size_t kSlots = 2 * OpPlan::kMaxPlans;
  struct Slot {
    std::atomic<const void*> key{nullptr};
    std::atomic<const OpPlan*> plan{nullptr};
  };

  static size_t slot_of(const void* key) { return (reinterpret_cast<uintptr_t>(key) * 0x9e3779b97f4a7c15ull) >> 50; }

  const OpPlan& add(const c10::OperatorHandle& op, const void* key) {
    const std::lock_guard lock(mutex_);
    size_t i = slot_of(key);
    for (; slots_[i].key.load(std::memory_order_relaxed) != nullptr; i = (i + 1) % kSlots) {
      if (slots_[i].key.load(std::memory_order_relaxed) == key) return *slots_[i].plan.load();
    }
    // After thousands of custom operators, further ones are looked up under the lock.
    if (plans_.size() >= OpPlan::kMaxPlans) {
      std::unique_ptr<OpPlan>& late = overflow_plans_[key];
      if (late == nullptr) late = std::make_unique<OpPlan>(make_plan(op));
      return *late;
    }
    plans_.push_back(std::make_unique<OpPlan>(make_plan(op)));
    plans_.back()->index = static_cast<int>(plans_.size()) - 1;
    slots_[i].plan.store(plans_.back().get(), std::memory_order_release);
    slots_[i].key.store(key, std::memory_order_release);
    return *plans_.back();
  }

  std::array<Slot, kSlots> slots_;
  ForkSafeMutex mutex_{ForkSafeMutex::kPlans};
  std::vector<std::unique_ptr<OpPlan>> plans_;  // never shrinks: a call under way may hold a forgotten plan
  std::unordered_map<const void*, std::unique_ptr<OpPlan>> overflow_plans_;
  const char tombstone_ = 0;
};

class DeregistrationListener final : public c10::OpRegistrationListener {
 public:
  explicit DeregistrationListener(PlanTable& table) : table_(table) {}
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override { table_.forget(op); }

 private:
  PlanTable& table_;
};

// Never destroyed: operators run until the process ends.
PlanTable& plan_table = *new PlanTable;
[[maybe_unused]] const auto& registration = *new c10::RegistrationHandleRAII(
    c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<DeregistrationListener>(plan_table)));

}  // namespace

OpPlan make_plan(const c10::OperatorHandle& op) {
  OpPlan plan;
  plan.name = op.operator_name().name;
  plan.overload = op.operator_name().overload_name;
  const size_t colons = plan.name.find("::");
  const std::string_view ns = std::string_view(plan.name).substr(0, colons);
  // Empty for an operator of user code: it may do something else than the operator of PyTorch with its name.
  const std::string_view base = is_namespace_of_pytorch(ns) ? std::string_view(plan.name).substr(colons + 2) : "";
  const c10::FunctionSchema& schema = op.schema();
  plan.arguments = static_cast<uint16_t>(schema.arguments().size());
  plan.returns = static_cast<uint16_t>(schema.returns().size());
  plan.returns_allocation = returns_allocation(base);
  plan.is_data_movement = is_data_movement(base);
  plan.is_passthrough = is_passthrough(base);
  plan.absorbs_negative_infinity = absorbs_negative_infinity(base);
  plan.is_comparison = is_comparison(base);
  plan.is_ordering = is_ordering(base);
  plan.looks_for_nan = looks_for_nan(base);
  plan.selects_by_mask = selects_by_mask(base);
  plan.is_reduction = is_reduction(base);
  plan.updates_statistics = updates_statistics(base);
  plan.draws_random_numbers = op.hasTag(at::Tag::nondeterministic_seeded);
  plan.is_constant_factory = is_constant_factory(base);
  plan.reads_metadata_of_first = reads_metadata_of_first(base);
  plan.is_grad_scaler_check = is_grad_scaler_check(base);
  plan.is_foreach_elementwise = is_foreach_elementwise(base);
  plan.is_async_collective = is_async_collective(ns, base);
  plan.has_unwritten_output = is_unwritten_output(plan.name, 1);
  plan.writes_groups_alone = writes_groups_alone(plan.name);
  plan.asserts_finite = asserts_finite(plan.name);
  plan.pointwise = op.hasTag(at::Tag::pointwise) || base == "_to_copy";
  plan.proves_nonnegative_input = proves_nonnegative_input(base);
  plan.bounds = rule_of(plan.name);
  plan.elementwise_in_self = is_elementwise_in_self(base);
  plan.returns_info = std::any_of(schema.returns().begin(), schema.returns().end(),
                                  [](const c10::Argument& returned) { return returned.name() == "info"; });
  plan.writes_arguments_only = true;  // until a result that it makes is found
  read_returns(schema, base, plan);
  read_arguments(schema, base, plan);
  plan.writes_arguments_only &= plan.writes_in_place();
  if (plan.is_async_collective) read_collective(schema, plan);
  plan.handling = handling_of(op, plan, ns, base);
  return plan;
}

const OpPlan& plan_of(const c10::OperatorHandle& op) { return plan_table.of(op); }

void invalidate_plans(std::string_view name) { plan_table.forget_name(name); }

}  // namespace torchnan
