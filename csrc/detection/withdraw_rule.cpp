#include "detection/withdraw_rule.h"

#include "check/bounds/rules.h"
#include "base/format.h"

namespace torchnan {

void withdraw_rule(const DetectionSession& session, const OpPlan& plan, std::string_view facts) {
  if (!plan.bounds.rule->withdraw()) return;
  session.count_internal_error(
      format_text("the bound of {}", plan.name),
      format_text("the bound of {} is wrong: {}. From here on its results are scanned. Please report this line",
                  plan.name, facts));
}

}  // namespace torchnan
