#include "check/bounds/adam_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <tuple>
#include <vector>

namespace torchnan {
namespace {

constexpr AdamHyperparameters kDefault{
    .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};

double max_abs(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }

struct State {
  at::Tensor parameter, first, second, largest;
};

enum class Form : uint8_t { kSingle, kSingleAmsgrad, kFused, kFusedAmsgrad };

bool is_amsgrad(Form form) { return form == Form::kSingleAmsgrad || form == Form::kFusedAmsgrad; }

bool are_finite(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& x) { return x.isfinite().all().item<bool>(); });
}

// Computes a step like torch/optim/adam.py. Returns whether every intermediate number was finite.
bool run_single(State& state, const at::Tensor& gradient, const AdamHyperparameters& hyperparameters, double step,
                bool is_amsgrad) {
  state.parameter.mul_(1 - hyperparameters.learning_rate * hyperparameters.weight_decay);
  state.first.lerp_(gradient, 1 - hyperparameters.beta1);
  state.second.mul_(hyperparameters.beta2).addcmul_(gradient, gradient, 1 - hyperparameters.beta2);
  if (is_amsgrad) state.largest = at::maximum(state.largest, state.second);
  const double step_size = hyperparameters.learning_rate / (1 - std::pow(hyperparameters.beta1, step));
  const at::Tensor root = (is_amsgrad ? state.largest : state.second).sqrt();
  const at::Tensor divisor = (root / std::sqrt(1 - std::pow(hyperparameters.beta2, step))).add_(hyperparameters.eps);
  state.parameter.addcdiv_(state.first, divisor, -step_size);
  return are_finite({root, divisor, state.parameter, state.first, state.second});
}

bool run_fused(State& state, const at::Tensor& gradient, const AdamHyperparameters& given, double step,
               bool is_amsgrad) {
  const std::vector<at::Tensor> largest = is_amsgrad ? std::vector{state.largest} : std::vector<at::Tensor>();
  at::_fused_adamw_({state.parameter}, {gradient}, {state.first}, {state.second}, largest, {at::full({}, step)},
                    given.learning_rate, given.beta1, given.beta2, given.weight_decay, given.eps, is_amsgrad,
                    /*maximize=*/false);
  return are_finite({state.parameter, state.first, state.second, state.largest});
}

bool run(Form form, State& state, const at::Tensor& gradient, const AdamHyperparameters& given, double step) {
  const bool is_fused = form == Form::kFused || form == Form::kFusedAmsgrad;
  return (is_fused ? run_fused : run_single)(state, gradient, given, step, is_amsgrad(form));
}

class AdamStep : public ::testing::TestWithParam<std::tuple<at::ScalarType, Form>> {
 protected:
  const at::ScalarType dtype_ = std::get<0>(GetParam());
  const Form form_ = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(DtypesAndForms, AdamStep,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kDouble),
                                            ::testing::Values(Form::kSingle, Form::kSingleAmsgrad, Form::kFused,
                                                              Form::kFusedAmsgrad)));

// Gradients over the whole range, growing and falling, with zeros between: no bound is too small, and no step that was
// proved computes anything that is not finite.
TEST_P(AdamStep, BoundsHold) {
  std::mt19937 random(7);
  const auto uniform = [&random](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
  const DtypeRange range = range_of(dtype_);
  const double largest = std::log10(range.limit);
  int proved = 0, refused = 0;
  for (int run_number = 0; run_number < 200; ++run_number) {
    at::manual_seed(run_number);
    AdamHyperparameters hyperparameters = kDefault;
    hyperparameters.learning_rate = std::pow(10, uniform(-6, 2));
    hyperparameters.beta1 = uniform(0, 0.99);
    hyperparameters.beta2 = uniform(0, 0.9999);
    hyperparameters.eps = std::pow(10, uniform(-12, 0));
    const auto drawn = at::TensorOptions(dtype_);
    State state{at::randn({20}, drawn), at::zeros({20}, drawn), at::zeros({20}, drawn), at::zeros({20}, drawn)};
    AdamBounds known{max_abs(state.parameter), 0, 0, 0, 0, {.ratio = 0x1p-60, .slack = 16 * range.tiny}};
    double size = uniform(-largest, largest), trend = uniform(-largest / 8, largest / 8);
    for (int step = 1; step <= 12; ++step, size += trend) {
      const at::Tensor gradient = at::randn({20}, drawn) * std::pow(10, std::min(size, largest)) * (random() % 5 != 0);
      if (!gradient.isfinite().all().item<bool>()) break;
      known.gradient = max_abs(gradient);
      const auto after = bounds_after_adam_step(hyperparameters, known, step, range);
      const bool is_finite = run(form_, state, gradient, hyperparameters, step);
      if (!after) {
        ++refused;
        break;
      }
      ++proved;
      ASSERT_TRUE(is_finite) << "run " << run_number << ", step " << step;
      ASSERT_LE(max_abs(state.parameter), after->parameter) << "run " << run_number << ", step " << step;
      ASSERT_LE(max_abs(state.first), after->first_moment) << "run " << run_number << ", step " << step;
      ASSERT_LE(max_abs(state.second), after->second_moment) << "run " << run_number << ", step " << step;
      ASSERT_LE(max_abs(state.largest), after->largest_second_moment) << "run " << run_number << ", step " << step;
      known = *after;
      if (!is_amsgrad(form_)) known.largest_second_moment = 0;
    }
  }
  EXPECT_GT(proved, 500);
  EXPECT_GT(refused, 20);
}

// Elements that all have the same sign and size reach the bounds of the moments.
TEST_P(AdamStep, BoundsAreReached) {
  const auto filled = [this](double value) { return at::full({4}, value, at::TensorOptions(dtype_)); };
  State state{filled(1), filled(0), filled(0), filled(0)};
  AdamBounds known{1, 0, 0, 0, 0, {.ratio = 0x1p-60, .slack = 0}};
  AdamHyperparameters hyperparameters = kDefault;
  hyperparameters.weight_decay = 0;
  for (int step = 1; step <= 20; ++step) {
    known.gradient = 3;
    known = bounds_after_adam_step(hyperparameters, known, step, range_of(dtype_)).value();
    run(form_, state, filled(-3), hyperparameters, step);
    EXPECT_LT(known.first_moment, max_abs(state.first) * 1.001);
    EXPECT_LT(known.second_moment, max_abs(state.second) * 1.001);
    EXPECT_LT(known.parameter, max_abs(state.parameter) * 1.01);
  }
}

// The worst case of the proof: gradients that grow by beta2 / beta1.
TEST_P(AdamStep, TheHistoryOfMomentsBoundsTheirQuotient) {
  MomentHistory history{.ratio = 0x1p-60, .slack = 0};
  double first = 0, second = 0, gradient = 1;
  for (int step = 0; step < 100; ++step, gradient *= 0.999 / 0.9) {
    history = history.after_step(0.1, 0.999, 0.001, range_of(dtype_));
    first = 0.9 * first + 0.1 * gradient;
    second = 0.999 * second + 0.001 * gradient * gradient;
    EXPECT_GE(history.ratio, first / std::sqrt(second));
    EXPECT_LT(history.ratio, first / std::sqrt(second) * 1.001);
  }
}

// Every element obeys the history that two moments show, and one element reaches it.
TEST_P(AdamStep, MomentsThatAreReadShowTheirHistory) {
  at::manual_seed(0);
  const auto drawn = at::TensorOptions(dtype_);
  const at::Tensor first = at::randn({100}, drawn);
  const at::Tensor second = at::rand({100}, drawn);
  const auto shown = history_shown_by(first, second, range_of(dtype_));
  ASSERT_TRUE(shown);
  const at::Tensor ratios = first.to(at::kDouble).abs() / (second.to(at::kDouble) + shown->slack).sqrt();
  EXPECT_GE(shown->ratio, max_abs(ratios));
  EXPECT_LT(shown->ratio, max_abs(ratios) * 1.000001);
  second[50] = -1e-30;
  EXPECT_FALSE(history_shown_by(first, second, range_of(dtype_)));
}

TEST(AdamStepArguments, OthersAreNotBounded) {
  const AdamBounds known{1, 1, 1, 1};
  const DtypeRange range = range_of(at::kFloat);
  ASSERT_TRUE(bounds_after_adam_step(kDefault, known, 5, range));
  const auto with = [](double AdamHyperparameters::* which, double value) {
    AdamHyperparameters hyperparameters = kDefault;
    hyperparameters.*which = value;
    return hyperparameters;
  };
  for (const AdamHyperparameters& hyperparameters :
       {with(&AdamHyperparameters::learning_rate, -1), with(&AdamHyperparameters::learning_rate, NAN),
        with(&AdamHyperparameters::beta1, 1), with(&AdamHyperparameters::beta2, 1), with(&AdamHyperparameters::eps, 0),
        with(&AdamHyperparameters::eps, 1e-45), with(&AdamHyperparameters::learning_rate, INFINITY),
        with(&AdamHyperparameters::weight_decay, INFINITY), with(&AdamHyperparameters::learning_rate, 1e39)}) {
    EXPECT_FALSE(bounds_after_adam_step(hyperparameters, known, 5, range));
  }
  EXPECT_FALSE(bounds_after_adam_step(kDefault, known, 0, range));
  EXPECT_FALSE(bounds_after_adam_step(kDefault, known, NAN, range));
}

}  // namespace
}  // namespace torchnan
