#include "check/operators/op_plan.h"

#include <gtest/gtest.h>
#include <torch/library.h>

namespace torchnan {
namespace {

using Handling = OpPlan::Handling;

OpPlan plan_for(const char* name, const char* overload = "") {
  return make_plan(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

TEST(OpPlan, ChecksOperatorsThatCompute) {
  const OpPlan plan = plan_for("aten::add", "Tensor");
  EXPECT_EQ(plan.handling, Handling::kCheck);
  EXPECT_EQ(plan.checked_returns.size(), 1u);
  EXPECT_TRUE(plan.mutated_arguments.empty());
}

TEST(OpPlan, DoesNotCheckResultsKeptForTheBackwardPassOnly) {
  EXPECT_EQ(plan_for("aten::_ctc_loss").checked_returns.size(), 1u);
  EXPECT_EQ(plan_for("aten::_ctc_loss", "Tensor").checked_returns.size(), 1u);
  EXPECT_EQ(plan_for("aten::var_mean", "correction").checked_returns.size(), 2u);
}

TEST(OpPlan, PassesViewsAndQuestions) {
  for (const char* view : {"aten::t", "aten::detach", "aten::alias", "aten::squeeze"}) {
    EXPECT_EQ(plan_for(view).handling, Handling::kPass) << view;
  }
  EXPECT_EQ(plan_for("aten::slice", "Tensor").handling, Handling::kPass);
  EXPECT_EQ(plan_for("aten::equal").handling, Handling::kPass);
}

TEST(OpPlan, LetsCompositesDecompose) {
  EXPECT_EQ(plan_for("aten::linear").handling, Handling::kDecompose);
  EXPECT_EQ(plan_for("aten::item").handling, Handling::kDecompose);
  EXPECT_EQ(plan_for("aten::silu_backward").handling, Handling::kCheck);  // also has a separate kernel
}

TEST(OpPlan, KnowsWhereNothingHasBeenWritten) {
  EXPECT_EQ(plan_for("aten::empty", "memory_format").handling, Handling::kAllocate);
  EXPECT_TRUE(plan_for("aten::empty", "memory_format").returns_allocation);
  EXPECT_TRUE(plan_for("aten::resize_").returns_allocation);  // the part that it has grown by
  EXPECT_FALSE(plan_for("aten::set_", "source_Tensor").returns_allocation);
}

TEST(OpPlan, FindsArgumentsWrittenInPlace) {
  const OpPlan add = plan_for("aten::add_", "Tensor");
  ASSERT_EQ(add.mutated_arguments.size(), 1u);
  EXPECT_TRUE(add.mutated_arguments[0].reads_previous_value);
  EXPECT_TRUE(add.mutated_arguments[0].returned);
  EXPECT_FALSE(plan_for("aten::copy_").mutated_arguments[0].reads_previous_value);
  EXPECT_FALSE(plan_for("aten::add", "out").mutated_arguments[0].reads_previous_value);
}

TEST(OpPlan, FindsArgumentsWrittenAndNotReturned) {
  const OpPlan fused = plan_for("aten::_fused_adamw_");
  EXPECT_EQ(fused.returns, 0);
  ASSERT_GE(fused.mutated_arguments.size(), 4u);  // parameters, gradients, both moments
  for (const auto& mutated : fused.mutated_arguments) EXPECT_FALSE(mutated.returned);
  EXPECT_EQ(plan_for("aten::_foreach_addcdiv_", "Scalar").mutated_arguments.size(), 1u);
}

TEST(OpPlan, FindsArgumentsWrittenAndNotDeclared) {
  for (const char* name : {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::batch_norm_gather_stats",
                           "aten::batch_norm_gather_stats_with_counts"}) {
    EXPECT_EQ(plan_for(name).mutated_arguments.size(), 2u) << name;  // the running statistics
  }
}

// Every operator that PyTorch has gets a plan, and none that returns a fresh tensor is passed by unseen.
TEST(OpPlan, CoversEveryOperator) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  int checked = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const OpPlan plan = make_plan(*op);
    checked += plan.handling == Handling::kCheck ? 1 : 0;
    ASSERT_EQ(plan.arguments, op->schema().arguments().size());
    for (const auto& mutated : plan.mutated_arguments) ASSERT_LT(mutated.saved_index, plan.saved_arguments.size());
  }
  EXPECT_GT(checked, 2000);
}

// A Python library may be torn down and set up again with another schema under the same name.
TEST(OpPlan, IsMadeAnewForAnOperatorRegisteredAnew) {
  const auto plan_of_mine = [](const char* schema) {
    torch::Library library(torch::Library::FRAGMENT, "torchnan_test", std::nullopt, __FILE__, __LINE__);
    library.def(schema);
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("torchnan_test::mine", "");
    return plan_of(op).mutated_arguments.size();
  };
  EXPECT_EQ(plan_of_mine("mine(Tensor x) -> Tensor"), 0u);
  EXPECT_EQ(plan_of_mine("mine(Tensor(a!) x) -> ()"), 1u);
}

}  // namespace
}  // namespace torchnan
