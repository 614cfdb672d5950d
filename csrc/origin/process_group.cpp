#include "origin/collectives.h"

#include <string>
#include <string_view>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "check/operators/op_traits.h"

namespace torchnan {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// The argument of functional collectives may be the name of the group.
Group group_of(const c10::IValue& value) {
  if (value.isString()) return c10d::resolve_process_group(value.toStringRef());
  return value.isCustomClass() ? value.toCustomClass<c10d::ProcessGroup>() : Group();
}

c10::intrusive_ptr<c10d::Work> work_in(const c10::IValue& result) {
  if (!result.isCustomClass()) return {};
  const auto type = c10::getCustomClassType<c10::intrusive_ptr<c10d::Work>>();
  return *result.type() == *type ? result.toCustomClass<c10d::Work>() : c10::intrusive_ptr<c10d::Work>();
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
    } else if (name == "output_split_sizes" && arguments[i].isIntList()) {
      call.output_splits = arguments[i].toIntVector();
    } else if ((name == "root_rank" || name == "src") && arguments[i].isInt()) {
      call.root = arguments[i].toInt();
    }
  }
  return call;
}

StartedWork started_work(c10::ArrayRef<c10::IValue> results) {
  for (const c10::IValue& result : results) {
    const auto work = work_in(result);
    if (work) return StartedWork(c10::intrusive_ptr<c10::intrusive_ptr_target>(work));
  }
  return no_work();
}

bool is_running(const StartedWork& started) {
  const auto object = started.lock();
  auto* work = static_cast<c10d::Work*>(object.get());
  if (work == nullptr || work->isCompleted()) return false;
  try {
    return !work->getFuture()->completed();  // callbacks of the future run before the Work is marked
  } catch (const c10::Error&) {              // a receive has no future
    return true;
  }
}

}  // namespace torchnan
