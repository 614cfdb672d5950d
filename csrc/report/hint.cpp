#include "report/hint.h"

#include "report/hint_rules.h"
#include "report/operation.h"
#include "report/operator_name.h"
#include "base/format.h"

namespace torchnan {
namespace {

Hint hint_for_received(const Finding& f) {
  return {format_text("{} received it from another rank: see the report of that rank for its origin",
                      without_namespace(f.collective))};
}

Hint hint_for_input(const Finding& f) {
  if (f.op == "torchnan::guard" || f.op == "autograd::backward") {
    return {
        "no checked operation made it: to find the one that does, run the program under TORCHNAN=raise, or under "
        "torchnan.detect() in each thread"};
  }
  if (f.first_index.size() < 2) return {};
  return {format_text("row {} of {} is the first with a non-finite value ({} in all)", f.first_index[0], f.shape[0],
                      f.nan + f.posinf + f.neginf)};
}

}  // namespace

std::string hint_for_evicted_origin() {
  return "the operation that made it is older than the recorded operations on devices: the one that is named here is "
         "the first that was seen to read it";
}

Hint hint_for(const Finding& f) {
  if (!f.collective.empty()) return hint_for_received(f);
  switch (f.origin) {
    case Origin::kInput:
      return hint_for_input(f);
    case Origin::kUninit:
      return {f.op.ends_with("_grouped_mm")
                  ? "the product writes its groups: nothing has written to the memory after them"
                  : "nothing has written to this memory: empty() does not initialize it"};
    case Origin::kOp:
      break;
    default:
      return {};
  }
  const Operation op(f);
  Hint hint = f.node.empty() ? Hint{} : hint_for_node(op);
  return hint.text.empty() ? hint_for_operator(op) : hint;
}

}  // namespace torchnan
