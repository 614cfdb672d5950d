#include "report/hint_rules.h"

#include "report/hints/families.h"
#include "base/format.h"

namespace torchnan {
namespace {

Hint hint_for_number(const Operation& op) {
  for (const Argument& x : op.arguments()) {
    if (x.input->dtype != InputSummary::kNumber || x.tally().nonfinite() == 0) continue;
    const char* value = x.tally().nan > 0 ? "NaN" : x.tally().posinf > 0 ? "inf" : "-inf";
    return about(x, format_text("{} is {}", x.input->name, value));
  }
  return {};
}

// An operator belongs to one family. Its own hint is more specific than the one that holds for every operator, which
// comes last.
constexpr Hint (*kFamilies[])(const Operation&) = {
    hint_of_domains,    hint_of_special_functions, hint_of_quotients, hint_of_powers,        hint_of_infinities,
    hint_of_softmax,    hint_of_reductions,        hint_of_losses,    hint_of_normalization, hint_of_linear_algebra,
    hint_of_optimizers, hint_for_number,           hint_for_overflow,
};

}  // namespace

Hint hint_for_operator(const Operation& op) {
  for (const auto& family : kFamilies) {
    if (Hint hint = family(op); !hint.text.empty()) return hint;
  }
  return {};
}

}  // namespace torchnan
