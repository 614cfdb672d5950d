#include "detection/withdraw_rule.h"

#include <fmt/format.h>

#include "bounds/rules.h"

namespace torchnan {

void withdraw_rule(const DetectionSession& session, const OpPlan& plan, std::string_view facts) {
  if (!plan.bounds.rule->withdraw()) return;
  session.count_internal_error(
      fmt::format("the bound of {}", plan.name),
      fmt::format("the bound of {} is wrong: {}. From here on its results are scanned. Please report this line",
                  plan.name, facts));
}

}  // namespace torchnan
