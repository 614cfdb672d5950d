// Bounds for a whole step of Adam or AdamW. They hold for every form in PyTorch, although their roundings differ: one
// tensor at a time, foreach (torch/optim/adam.py), and fused (aten/src/ATen/native/cpu/FusedAdamKernel.cpp).
#pragma once

#include <optional>

#include <torchnan/export.h>

#include "check/bounds/dtype_range.h"
#include "check/bounds/moments.h"

namespace torchnan {

struct AdamHyperparameters {
  double learning_rate;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;  // coupled or decoupled: the bounds hold for both
};

// Upper bounds of |x| of each tensor. Second moments are nonnegative.
struct AdamBounds {
  double parameter;
  double gradient;
  double first_moment;
  double second_moment;
  double largest_second_moment = 0;  // with amsgrad: the largest over all steps, which is the divisor
  MomentHistory history{};
};

// Returns the bounds after step number `step`, counted from 1. Returns none if a number that the step computes might
// leave the range of the dtype; then the parameter might become non-finite.
TORCHNAN_API std::optional<AdamBounds> bounds_after_adam_step(const AdamHyperparameters& hyperparameters,
                                                              const AdamBounds& before, double step,
                                                              const DtypeRange& range);

}  // namespace torchnan
