// Convolutions and pooling: sums and maxima over windows.
#include <algorithm>
#include <cmath>

#include "check/bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// Fast algorithms transform tiles of input and weight, multiply, and transform the sums of products back. An element of
// a transform is a sum of multiples of the elements of a tile. It may overflow although the result is small, so each
// transform has to be in range as well. These are the largest sums of |coefficients| in two dimensions:
//
//   algorithm                                               input  weight  back
//   direct, im2col and gemm                                 1      1       1
//   NNPACK Winograd F(6x6, 3x3)                             15^2   7^2     69^2
//   NNPACK FFT of 8x8 and 16x16                             2^8    2^8     2^8
//   Winograd F(4x4, 3x3): oneDNN with Arm Compute Library   10^2   24^2    19^2
//   Winograd F(2x2, 3x3): depthwise layers on Arm           2^2    3^2     3^2
//   cuDNN Winograd                                          2^24   2^24    all three 2^46
//   cuDNN FFT of images up to 256x256                       2^16   2^16    2^16
//
// The sums are those before a transform is rescaled; the bias may be added before the transform back. Sources: NNPACK,
// src/scalar/winograd/f6x6k3x3.h and include/nnpack.h; Arm Compute Library, transforms/input_6x6_fp32.cpp,
// weights_4x4_3x3_fp32.cpp and output_4x4_3x3_fp32.cpp; ATen, cpu/DepthwiseConvKernel.cpp. An element of a Fourier
// transform is a sum with factors of magnitude 1 of all elements of a tile. cuDNN does not publish its tiles and
// coefficients, and no other source was found: its lines are assumptions. A row of a Winograd transform with the points
// p adds up to at most the product of all 1 + |p|, which is below 2^12 for the twelve points 0, +-1, +-2, +-4, +-1/2,
// +-1/4 and one more below 1.
constexpr double kTransform = 0x1p24;      // of input, weight or bias
constexpr double kAllTransforms = 0x1p46;  // of input, weight and back
// The roundings of transforms are larger than those of the sum itself, but not larger than the result may be.
constexpr double kFastAlgorithms = 2;

bool stays_in_range(const Value& x, double transform) { return (x * exactly(transform)).known(); }

// Returns the sum of n products of input and weight, by whichever algorithm.
Value convolved(const Value& x, const Value& weight, double n) {
  Value result = dot(x, weight, n);
  const bool overflows =
      !stays_in_range(x, kTransform) || !stays_in_range(weight, kTransform) || !stays_in_range(result, kAllTransforms);
  result.max_abs = overflows ? Value::kUnknown : kFastAlgorithms * result.max_abs;
  return result;
}

// In 16 bits, oneDNN sometimes reads uninitialized memory (PyTorch 2.13): no bound holds on the host. On a GPU, the
// intermediate sums of a fast algorithm may be rounded to the dtype: those of float16 overflow.
bool is_reliable(A a) {
  if (!has_16_bits(a)) return uses_derived_kernels(a);
  return a.uses_kernels_of(Kernels::kNvidia) && a.dtype() == c10::ScalarType::BFloat16;
}

// convolution(x, weight, bias, ..., 6: transposed, ...): each output is a sum over the weights of one output channel;
// transposed, of one input channel of the weight at most.
void convolution(A a, Results out) {
  if (!is_reliable(a)) return;
  const double terms = elements_per(a, 1, a.flag(6) ? 1 : 0);
  const Value product = convolved(a[0], a[1], terms);
  if (!a.has_value(2)) {
    out[0] = product;
  } else if (stays_in_range(a[2], kTransform)) {
    out[0] = product + a[2];
  }
}

// convolution_backward(g, x, weight, ...): the gradient of x is a sum over the weights of one channel; that of a weight
// is a sum over every position of g (of x if transposed); that of the bias is a sum over every position of g.
void convolution_backward(A a, Results out) {
  if (!is_reliable(a)) return;
  const Value g = a[0];
  const double through = std::max(elements_per(a, 2, 0), elements_per(a, 2, 1));
  const double positions = elements_per(a, 0, 1);
  const double shared = std::max(positions, elements_per(a, 1, 1));
  out[0] = convolved(g, a[2], through);
  out[1] = convolved(g, a[1], shared);
  out[2] = dot(g, exactly(1), positions);  // oneDNN adds up what it has rounded for the other gradients
}

// The largest number of windows that an element lies in: the number of elements in a window. One number stands for
// every dimension.
double window(A a, size_t kernel_size, int64_t dims) {
  const auto kernel = a.integers(kernel_size);
  return kernel.size() == 1 ? std::pow(product(kernel), static_cast<double>(dims)) : product(kernel);
}

// max_pool2d_with_indices(x, kernel, stride, padding, dilation): the largest element of a window, or -inf for a window
// that lies entirely in the padding. A window begins before the end of the image and ends after its beginning, so it
// misses the image only if its dilation exceeds the image.
template <int64_t kDims>
void max_pool(A a, Results out) {
  const auto dilation = a.integers(4);
  for (int64_t d = 0; d < kDims; ++d) {
    const int64_t step = dilation.empty() ? 1 : dilation[dilation.size() == 1 ? 0 : static_cast<size_t>(d)];
    if (step > a.size(0, d - kDims)) return;
  }
  same_bound(a, out);
}

// avg_pool2d(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor): a mean; with divisor_override, a sum
// over it.
void avg_pool(A a, Results out) {
  if (!a.has_value(6)) out[0] = mean(a[0], window(a, 1, 2));
}

// _adaptive_avg_pool2d(x, output_size): means of windows, each at most as large as the plane.
void adaptive_pool(A a, Results out) { out[0] = mean(a[0], static_cast<double>(a.size(0, -1) * a.size(0, -2))); }

// max_pool2d_with_indices_backward(g, x, ..., indices): each gradient goes to the element that its index names. Nothing
// shows that max_pool2d made the indices: all gradients of a plane may go to one element (cpu/MaxPoolKernel.cpp).
template <int64_t kDims>
void max_pool_backward(A a, Results out) {
  double gradients = 1;
  for (int64_t d = 1; d <= kDims; ++d) gradients *= static_cast<double>(a.size(0, -d));
  out[0] = sum(a[0], gradients);
}

// avg_pool2d_backward(g, x, kernel, ..., 7: divisor): a part of each gradient goes to each element of its window.
void avg_pool_backward(A a, Results out) {
  if (!a.has_value(7)) out[0] = sum(a[0], window(a, 2, 2));
}

// _adaptive_avg_pool2d_backward(g, x): an element may lie in every window of its plane, and receives a fraction of
// each.
void adaptive_pool_backward(A a, Results out) {
  out[0] = sum(a[0], static_cast<double>(a.size(0, -1) * a.size(0, -2)));
}

}  // namespace

void add_convolution_rules(RuleTable& table) {
  table["convolution"] = convolution;
  table["convolution_backward"] = convolution_backward;
  table["max_pool2d_with_indices"] = max_pool<2>;
  table["max_pool3d_with_indices"] = max_pool<3>;
  table["_adaptive_avg_pool2d"] = adaptive_pool;
  table["avg_pool2d"] = avg_pool;
  table["max_pool2d_with_indices_backward"] = max_pool_backward<2>;
  table["max_pool3d_with_indices_backward"] = max_pool_backward<3>;
  table["avg_pool2d_backward"] = avg_pool_backward;
  table["_adaptive_avg_pool2d_backward"] = adaptive_pool_backward;
}

}  // namespace torchnan
