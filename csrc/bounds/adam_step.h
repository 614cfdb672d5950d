// The bounds of a step of Adam or AdamW as a whole. They hold for each of the forms that PyTorch has, whose roundings
// differ: one tensor at a time, foreach (torch/optim/adam.py), and fused
// (aten/src/ATen/native/cpu/FusedAdamKernel.cpp).
#pragma once

#include <optional>

#include <torchnan/export.h>

#include "bounds/dtype_range.h"
#include "bounds/moments.h"

namespace torchnan {

struct AdamHyperparameters {
  double learning_rate;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;  // coupled or not: the bounds hold for both
};

// No |x| of these is larger, and no second moment is negative.
struct AdamBounds {
  double parameter;
  double gradient;
  double first_moment;
  double second_moment;
  double largest_second_moment = 0;  // with amsgrad: of all steps, and what is divided by
  MomentHistory history{};
};

// Returns what holds after step number `step`, counted from 1. None if a number that the step computes might leave the
// range of the dtype; then the parameter might become non-finite.
TORCHNAN_API std::optional<AdamBounds> bounds_after_adam_step(const AdamHyperparameters& hyperparameters,
                                                              const AdamBounds& before, double step,
                                                              const DtypeRange& range);

}  // namespace torchnan
