#include "intercept/op_plan.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <ATen/core/enum_tag.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

#include "intercept/op_traits.h"
#include "process/fork.h"

namespace torchnan {
namespace {

using Course = OpPlan::Course;

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

// Positions of `schema` that are tensors or lists of them, by role.
void read_schema(const c10::FunctionSchema& schema, std::string_view base, OpPlan& plan) {
  const bool old_values_ignored = ignores_old_values(base);
  c10::SmallVector<bool, 8> returned(schema.arguments().size(), false);
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    const c10::Argument& result = schema.returns()[r];
    if (!holds_tensors(*result.type()) || is_only_for_backward(base, r)) continue;
    if (is_view_of_argument(result) && !makes_constants(base)) continue;  // lift_fresh: what torch.tensor() was given
    plan.checked_returns.push_back(static_cast<uint16_t>(r));
    if (!is_written(result)) continue;
    for (size_t a = 0; a < schema.arguments().size(); ++a) {
      const c10::Argument& argument = schema.arguments()[a];
      if (is_written(argument) && argument.alias_info()->beforeSets() == result.alias_info()->beforeSets()) {
        returned[a] = true;
      }
    }
  }
  for (size_t a = 0; a < schema.arguments().size(); ++a) {
    const c10::Argument& argument = schema.arguments()[a];
    const bool tensors = holds_tensors(*argument.type());
    if (tensors || is_number(*argument.type())) plan.kept_arguments.push_back(static_cast<uint16_t>(a));
    plan.argument_names.push_back(argument.name());
    if (!tensors || !(is_written(argument) || is_written_in_silence(base, argument.name()))) continue;
    const auto kept = static_cast<uint16_t>(plan.kept_arguments.size() - 1);
    const bool is_out = argument.kwarg_only();
    plan.written.push_back({kept, !is_out && !old_values_ignored, returned[a]});
  }
}

Course course_of(const c10::OperatorHandle& op, const OpPlan& plan, std::string_view ns, std::string_view base) {
  if (is_decomposed(op)) return Course::kDecompose;
  if (reads_value_back(base)) return Course::kRead;
  if (ns == "aten" && leaves_memory_unwritten(base)) return Course::kAllocate;
  if (ns == "aten" && is_view_with_arithmetic_backward(base)) return Course::kSite;
  if (plan.makes_constants) return Course::kCheck;
  if (ns == "profiler" || base == "_unsafe_view" || base == "_reshape_alias") return Course::kPass;
  const bool nothing_to_check = plan.checked_returns.empty() && plan.written.empty();
  return nothing_to_check ? Course::kPass : Course::kCheck;
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
    if (auto late = late_plans_.extract(key)) plans_.push_back(std::move(late.mapped()));
    for (size_t i = slot_of(key);; i = (i + 1) % kSlots) {
      const void* held = slots_[i].key.load(std::memory_order_relaxed);
      if (held == nullptr) return;
      if (held != key) continue;
      // The address may serve another operator later.
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
    for (auto& [key, plan] : late_plans_) plans_.push_back(std::move(plan));
    late_plans_.clear();
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
    // Of thousands of custom operators the late ones are looked up under the lock.
    if (plans_.size() >= OpPlan::kMaxPlans) {
      std::unique_ptr<OpPlan>& late = late_plans_[key];
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
  Mutex mutex_{Mutex::kPlans};
  std::vector<std::unique_ptr<OpPlan>> plans_;  // never shrinks: a call under way may hold a forgotten plan
  std::unordered_map<const void*, std::unique_ptr<OpPlan>> late_plans_;
  const char tombstone_ = 0;
};

class ForgetDeregistered final : public c10::OpRegistrationListener {
 public:
  explicit ForgetDeregistered(PlanTable& table) : table_(table) {}
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override { table_.forget(op); }

 private:
  PlanTable& table_;
};

// Never destroyed: operators run until the process ends.
PlanTable& plan_table = *new PlanTable;
[[maybe_unused]] const auto& registration = *new c10::RegistrationHandleRAII(
    c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<ForgetDeregistered>(plan_table)));

}  // namespace

OpPlan make_plan(const c10::OperatorHandle& op) {
  OpPlan plan;
  plan.name = op.operator_name().name;
  plan.overload = op.operator_name().overload_name;
  const size_t colons = plan.name.find("::");
  const std::string_view ns = std::string_view(plan.name).substr(0, colons);
  const std::string_view base = std::string_view(plan.name).substr(colons + 2);
  const c10::FunctionSchema& schema = op.schema();
  plan.arguments = static_cast<uint16_t>(schema.arguments().size());
  plan.returns = static_cast<uint16_t>(schema.returns().size());
  plan.hands_out_memory = hands_out_memory(base);
  plan.moves_values = only_moves_values(base);
  plan.hands_on = hands_on(base);
  plan.absorbs_negative_infinity = absorbs_negative_infinity(base);
  plan.compares = compares(base);
  plan.makes_constants = makes_constants(base);
  plan.scaler_test = tests_for_loss_scaler(base);
  plan.pairs_lists = pairs_lists(base);
  plan.returns_early = returns_early(ns, base);
  plan.pointwise = op.hasTag(at::Tag::pointwise) || base == "_to_copy";
  plan.vouches_for_sign = vouches_for_sign(base);
  plan.bounds = rule_of(plan.name);
  plan.elementwise_in_self = is_elementwise_in_self(base);
  read_schema(schema, base, plan);
  plan.course = course_of(op, plan, ns, base);
  return plan;
}

const OpPlan& plan_of(const c10::OperatorHandle& op) { return plan_table.of(op); }

void forget_plans_of(std::string_view name) { plan_table.forget_name(name); }

}  // namespace torchnan
