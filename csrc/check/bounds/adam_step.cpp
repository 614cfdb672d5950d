#include "check/bounds/adam_step.h"

#include <algorithm>
#include <cmath>

namespace torchnan {
namespace {

// Whether PyTorch accepts these, and the dtype does not flush eps to zero: eps keeps the divisor from being zero.
bool are_ordinary(const AdamHyperparameters& given, double step, const DtypeRange& range) {
  const auto is_decay = [](double beta) { return beta >= 0 && beta < 1; };
  return step >= 1 && given.learning_rate >= 0 && given.weight_decay >= 0 && is_decay(given.beta1) &&
         is_decay(given.beta2) && given.eps >= 4 * range.tiny;
}

}  // namespace

std::optional<AdamBounds> bounds_after_adam_step(const AdamHyperparameters& hyperparameters, const AdamBounds& before,
                                                 double step, const DtypeRange& range) {
  if (!are_ordinary(hyperparameters, step, range)) return std::nullopt;
  const auto& [learning_rate, beta1, beta2, eps, weight_decay] = hyperparameters;
  const auto rounded = [&range](double max_abs) { return with_rounding_margin(max_abs, range); };
  const double step_size = learning_rate / (1 - std::pow(beta1, step));
  const double correction = std::sqrt(1 - std::pow(beta2, step));

  AdamBounds after = before;
  after.gradient = rounded(before.gradient + weight_decay * before.parameter);
  // lerp() adds a multiple of this difference, with its roundings
  const double difference = before.first_moment + after.gradient;
  const double square = after.gradient * after.gradient;
  after.first_moment =
      rounded(beta1 * before.first_moment + (1 - beta1) * after.gradient + 16 * range.unit * difference);
  after.second_moment = rounded(rounded(beta2 * before.second_moment) + (1 - beta2) * square);
  after.largest_second_moment = std::max(before.largest_second_moment, after.second_moment);
  after.history = before.history.after_step(1 - beta1, beta2, 1 - beta2, range);

  // The divisor is sqrt(second moment) / correction + eps. A larger moment makes the quotient smaller.
  const double divisor = std::sqrt(after.largest_second_moment) / correction + eps;
  const double quotient = std::min(after.first_moment / eps, after.history.quotient(correction, eps, range));
  const double update = rounded(step_size * quotient) * (1 + 64 * range.unit);
  const double decay = std::max(1.0, std::abs(1 - learning_rate * weight_decay));
  after.parameter = rounded(decay * before.parameter + update);
  for (const double computed : {difference, square, after.largest_second_moment, divisor, step_size,
                                step_size * after.first_moment, weight_decay, after.parameter}) {
    if (!(rounded(computed) <= range.limit)) return std::nullopt;  // true for NaN as well
  }
  return after;
}

}  // namespace torchnan
