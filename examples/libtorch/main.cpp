// A C++ program that trains a little and divides by zero in its third step.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torchnan/torchnan.h>

#include <iostream>

namespace {

at::Tensor loss_of(const at::Tensor& weight, const at::Tensor& x, const at::Tensor& mask) {
  const at::Tensor error = (at::linear(x, weight) - 1).square() * mask;
  return error.sum() / mask.sum();  // a batch of padding only: 0 / 0
}

void train() {
  at::Tensor weight = at::full({1, 4}, 0.1).requires_grad_();
  torchnan::Detector detector;
  detector.name_parameter("weight", weight);
  for (int step = 1; step <= 5; ++step) {
    detector.mark_step(step);
    const at::Tensor mask = at::full({8, 1}, step == 3 ? 0.0 : 1.0);
    const at::Tensor loss = loss_of(weight, at::ones({8, 4}), mask);
    loss.backward();
    const at::AutoGradMode no_grad(false);
    weight -= 0.01 * weight.grad();
    weight.mutable_grad().reset();
    std::cout << "step " << step << ": loss " << loss.item<double>() << "\n";
  }
  detector.close();
}

}  // namespace

int main() {
  try {
    train();
  } catch (const torchnan::NonFiniteError& error) {
    std::cout << error.what() << "\n";
    return error.finding().op == "aten::div" ? 0 : 2;
  }
  return 1;
}
