// The process group that a collective is called on.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "operators/op_plan.h"

namespace torchnan {

// What the arguments of a collective say.
struct CollectiveCall {
  int64_t rank = 0;   // of this process in the group
  int64_t ranks = 1;  // in the group
  std::optional<int64_t> root{};
  bool adds = false;  // what the ranks send
};

// Reads the arguments of a collective. Without a process group it is taken for one of a single rank.
CollectiveCall read_collective_call(const OpPlan& plan, c10::ArrayRef<c10::IValue> arguments);

}  // namespace torchnan
