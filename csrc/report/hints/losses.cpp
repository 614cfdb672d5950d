#include "report/hints/families.h"

#include "base/format.h"

namespace torchnan {
namespace {

Hint hint_for_nll_loss(const Operation& op) {
  const Argument target = op.argument("target");
  const Argument ignored = op.argument("ignore_index");
  const Argument weight = op.argument("weight");
  if (!op.made_nan() || target.input == nullptr) return {};
  if (target.size() == 0) return about(target, "there are no targets: a mean over nothing is 0/0");
  if (!target.has_range() || !ignored.has_range()) return {};
  const double index = *ignored.tally().min;
  if (*target.tally().min == index && *target.tally().max == index) {
    return about(target, format_text("all {} targets are ignore_index ({:g}): a mean over nothing is 0/0",
                                     target.size(), index));
  }
  if (!weight.holds_zeros() || weight.min() < 0 || !op.is_of_finite()) return {};
  return about(weight, "the weights of all targets are 0: a mean over nothing is 0/0");
}

Hint hint_for_ctc_loss(const Operation& op) {
  const Argument x = op.argument("log_probs");
  if (!op.made_inf() || !x.is_finite() || x.input->shape.empty()) return {};
  if (x.absmax() * static_cast<double>(x.input->shape[0]) >= largest_number(op.dtype())) return {};
  return about(x,
               "an input is too short for its target, counting a blank between equal neighbours: no alignment exists");
}

}  // namespace

Hint hint_of_losses(const Operation& op) {
  static constexpr OperatorRule kRules[] = {
      {"nll_loss_forward", hint_for_nll_loss},
      {"nll_loss2d_forward", hint_for_nll_loss},
      {"_ctc_loss", hint_for_ctc_loss},
  };
  return hint_by_operator(kRules, op);
}

}  // namespace torchnan
