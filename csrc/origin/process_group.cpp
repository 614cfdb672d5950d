#include "origin/collectives.h"

#include <string>
#include <string_view>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "operators/op_traits.h"

namespace torchnan {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// The argument of functional collectives may be the name of the group.
Group group_of(const c10::IValue& value) {
  if (value.isString()) return c10d::resolve_process_group(value.toStringRef());
  return value.isCustomClass() ? value.toCustomClass<c10d::ProcessGroup>() : Group();
}

Reduction reduction_of(const c10::IValue& value) {
  if (value.isString()) {
    const std::string& name = value.toStringRef();
    if (name == "product") return Reduction::kProduct;
    return name == "sum" || name == "avg" ? Reduction::kSum : Reduction::kNone;
  }
  if (!value.isCustomClass()) return Reduction::kNone;
  const auto op = value.toCustomClass<c10d::ReduceOp>()->op_;
  if (op == c10d::ReduceOp::PRODUCT) return Reduction::kProduct;
  return op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG ? Reduction::kSum : Reduction::kNone;
}

}  // namespace

CollectiveCall read_collective_call(const OpPlan& plan, c10::ArrayRef<c10::IValue> arguments) {
  CollectiveCall call;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view name = plan.argument_names[i];
    if (name == "process_group" || name == "group_name") {
      if (const Group group = group_of(arguments[i])) {
        call.rank = group->getRank();
        call.ranks = group->getSize();
      }
    } else if (name == "reduce_op") {
      call.reduction = reduction_of(arguments[i]);
    } else if ((name == "root_rank" || name == "src") && arguments[i].isInt()) {
      call.root = arguments[i].toInt();
    }
  }
  return call;
}

}  // namespace torchnan
