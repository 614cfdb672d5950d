// Bounds that follow from a sum of squares.
//
// Adam and its relatives take the quotient of a mean of gradients by the root of a mean of their squares.
// The root may be close to zero, so that its own bound says nothing. But both have the same history. With
//   m' = (1 - w) m + w g    and    v' = b v + c g^2,
// and if |m| <= k sqrt(v), then by the inequality of Cauchy and Schwarz
//   |m'| <= (1 - w) k / sqrt(b) * sqrt(b v) + w / sqrt(c) * sqrt(c g^2) <= k' sqrt(v'),
//   k'^2 = (1 - w)^2 k^2 / b + w^2 / c.
// From zeros on, k stays below w / sqrt(c) / sqrt(1 - (1 - w)^2 / b): 7.3 for 0.1, 0.999 and 0.001. Of g alone,
// |g| <= sqrt(v') / sqrt(c). A larger v', as amsgrad takes it, keeps both.
//
// Roundings make a factor worse by a few units of roundoff. Each operation may flush to zero what is below the smallest
// normal number; so that much is added to the slack of a claim:
//   of squares  |n| <= k sqrt(v + slack),    of their root  |n| <= k (s + slack)  and  s >= floor,
// from which |n / s| <= k (1 + slack / floor). Tests: tests/detection/test_optimizer_bounds.py.
//
// A sum of squares also bounds what was squared: x^2 <= sum of x^2, which no rounding makes less than one of its terms.
// The mean that RMSNorm takes, and the norm that gradients are clipped by, are small and read anyway; so they tell a
// good bound of a large tensor that is not read. Tests: tests/detection/test_bounds_by_totals.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <torchnan/bounds.h>

#include "bounds/dtype_range.h"

namespace torchnan {

// What an operation does to such a history.
enum class MomentStep : uint8_t {
  kNone,
  kAverage,    // lerp: m' from m and g
  kAddSquare,  // addcmul: v' from v and g
  kMultiply,   // by a number
  kDivide,     // by a number
  kRoot,
  kAdd,       // of a number
  kLargest,   // maximum
  kQuotient,  // addcdiv
  kSquare,    // pow(x, 2); x * x is kMultiply
  kSum,       // of squares, as is the next
  kMean,
  kNorm  // of x
};
MomentStep moment_step_of(std::string_view op);  // without namespace and underscore

// Of an exponential average m of gradients and one v of their squares: |m| <= ratio * sqrt(v + slack).
struct MomentHistory {
  double ratio = RuleArguments::kUnknown;
  double slack = 0;

  // What holds after m' = (1 - w) m + w g and v' = b v + c g^2.
  MomentHistory after_step(double w, double b, double c, const DtypeRange& range) const;
  // Returns a bound of |m| / (sqrt(v) / correction + eps).
  double quotient(double correction, double eps, const DtypeRange& range) const;
};

// Returns the history that two moments show when both are read: dense float or double tensors of one size on the CPU.
// None if a square is negative.
std::optional<MomentHistory> history_shown_by(const at::Tensor& first, const at::Tensor& second,
                                              const DtypeRange& range);

class BoundSource;

// The histories that one thread follows. They are told apart by stamps, which every other write to a tensor removes: in
// the bound cache, and elsewhere the numbers of writes. Allocates once.
class Moments {
 public:
  // n, as it was when it got the stamp, and k.
  struct Numerator {
    uint64_t stamp = 0;
    double ratio = RuleArguments::kUnknown;
  };
  enum class Form : uint8_t {
    kNothing,
    kGradient,
    kMean,
    kSquare,
    kRoot,
    kWeight,
    kSquares,
    kSum,
    kMeanOfSquares,
    kNorm
  };
  struct Claim {
    Form form = Form::kNothing;
    const c10::StorageImpl* mean_of = nullptr;  // kGradient: the mean it went into last
    uint64_t previous = 0;                      // kMean: the m before; kFromZero
    uint64_t gradient = 0;                      // kMean: g
    double kept = 0;                            // kMean: |m'| <= kept |m| + taken |g|
    double taken = 0;
    Numerator mean{};  // kSquare, kRoot
    Numerator of_gradient{};
    const c10::StorageImpl* squared = nullptr;  // kSquares: of what; kSum, kMeanOfSquares, kNorm: what they bound
    uint64_t squared_stamp = 0;
    double terms = 0;  // kMeanOfSquares: in all
    double slack = 0;
    double floor = 0;  // kRoot; kWeight: its bound when it was last read
  };

  Moments();

  // Returns what holds for the result of an operation that has not run yet, by what is known of its arguments.
  Claim follow(MomentStep step, const RuleArguments& a);

  // Records that the operation has run, and its result has been recorded as finite. `write`: the number of the write to
  // memory that the host cannot read; returns whether something is claimed of a tensor that can have a claim.
  void record(const at::Tensor& result, const Claim& claim);
  bool record(const at::Tensor& result, const Claim& claim, uint64_t write);

  // What is claimed of two moments with a history, the second time with the stamp of the first one.
  static Claim claim_of_mean() { return {.form = Form::kMean}; }
  static Claim claim_of_squares(uint64_t mean_stamp, const MomentHistory& history) {
    return {.form = Form::kSquare, .mean = {mean_stamp, history.ratio}, .slack = history.slack};
  }

  // The history of two moments that is known now, and recording the one they have after a whole step; both have been
  // recorded as finite.
  MomentHistory history_of(const at::Tensor& first, const at::Tensor& second, const BoundSource& source) const;
  void record_history(const at::Tensor& first, const at::Tensor& second, const MomentHistory& history);

  // Returns a bound of |numerator / denominator|.
  double quotient(const at::Tensor& numerator, const at::Tensor& denominator, const BoundSource& source) const;
  // Returns what no element of a root and eps is less than; 0 if the tensor is none.
  double floor_of(const at::Tensor& denominator, const BoundSource& source) const;

  // Whether the bound of a weight has grown so much by steps that reading the weight pays: later bounds build on it.
  bool has_drifted(const at::Tensor& weight, double before, double after);

 private:
  static constexpr uint64_t kFromZero = 1;  // no stamp is
  static constexpr size_t kSlots = 1 << 13;
  static constexpr size_t kProbes = 4;

  struct Slot {
    const c10::StorageImpl* owner = nullptr;
    uint64_t stamp = 0;
    Claim claim;
  };

  Slot* find(const c10::StorageImpl* owner) const;
  Slot& make(const c10::StorageImpl* owner);
  const Claim* valid(const at::Tensor* tensor, Form form, const BoundSource& source) const;
  uint64_t stamp_gradient(const at::Tensor& gradient, const BoundSource& source);

  Claim after_average(const RuleArguments& a);
  Claim after_square(const RuleArguments& a);
  Claim after_scaling(const RuleArguments& a, double least, double most) const;
  Claim after_root(const RuleArguments& a) const;
  Claim after_adding(const RuleArguments& a) const;
  Claim after_largest(const RuleArguments& a) const;
  Claim after_squaring(const RuleArguments& a, Form form);
  Claim after_adding_up(const RuleArguments& a, Form form) const;
  static void bound_squared(const at::Tensor& total, const Claim& claim);
  Numerator mean_of_gradient(uint64_t gradient_stamp, const Claim* gradient, const Claim* square, double keeps,
                             double takes) const;

  mutable std::vector<Slot> slots_;
  uint64_t next_stamp_;
};

}  // namespace torchnan
