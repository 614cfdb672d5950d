#include <torchnan/bounds.h>

#include <utility>

#include "check/bounds/rules.h"
#include "check/operators/op_plan.h"

namespace torchnan {

void register_bound_rule(const std::string& op, BoundRule rule) {
  add_rule(op, std::move(rule));
  invalidate_plans(without_underscore(op));
}

}  // namespace torchnan
