// Repeats a call with other arguments, to find what it makes of finite ones.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/ArrayRef.h>

#include "check/operators/op_plan.h"
#include "origin/arguments.h"

namespace torchnan {

class RunAgain : public FiniteRun {
 public:
  // `arguments`: of the call, in the order of the schema.
  RunAgain(const c10::OperatorHandle& op, const OpPlan& plan, c10::DispatchKeySet below,
           std::vector<c10::IValue> arguments)
      : op_(op), plan_(plan), below_(below), arguments_(std::move(arguments)) {}

  // Whether a call may be repeated: it writes only new memory, is no user code, and draws no random numbers. What is
  // computed element by element needs no repetition.
  static bool is_possible(const OpPlan& plan);

  std::vector<at::Tensor> results_with(double number, c10::ArrayRef<at::Tensor> nonfinite) const override;

 private:
  const c10::OperatorHandle& op_;
  const OpPlan& plan_;
  const c10::DispatchKeySet below_;
  const std::vector<c10::IValue> arguments_;
};

}  // namespace torchnan
