// The process group that a collective is called on.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "operators/op_plan.h"

namespace torchnan {

// The facts in the arguments of a collective.
struct CollectiveCall {
  int64_t rank = 0;   // of this process in the group
  int64_t ranks = 1;  // in the group
  std::optional<int64_t> root{};
  bool adds = false;  // whether it adds the values of the ranks
};

// Reads the arguments of a collective. Without a process group it counts as one of a single rank.
CollectiveCall read_collective_call(const OpPlan& plan, c10::ArrayRef<c10::IValue> arguments);

}  // namespace torchnan
