// Bounds that follow from a sum of squares.
//
// Adam and its relatives divide an average of gradients by the root of an average of their squares. The root may be
// close to zero, so its own bound does not help. But both have the same history. With
//
//     m' = (1 - w) m + w g    and    v' = b v + c g^2,
//
// and if |m| <= k sqrt(v), then by the Cauchy-Schwarz inequality
//
//     |m'| <= (1 - w) k / sqrt(b) * sqrt(b v) + w / sqrt(c) * sqrt(c g^2) <= k' sqrt(v'),    k'^2 = (1 - w)^2 k^2 / b +
//     w^2 / c.
//
// From zeros on, k stays below w / sqrt(c) / sqrt(1 - (1 - w)^2 / b): 7.3 for 0.1, 0.999 and 0.001. For g alone, |g| <=
// sqrt(v') / sqrt(c). A larger v', as in amsgrad, keeps both inequalities.
//
// Roundings enlarge a factor by a few units of roundoff. Each operation may flush numbers below the smallest normal
// number to zero, so that much is added to the slack of a claim: for squares  |n| <= k sqrt(v + slack);  for their root
// |n| <= k (s + slack)  and  s >= floor, which gives |n / s| <= k (1 + slack / floor). Tests:
// tests/detection/test_optimizer_bounds.py.
//
// A sum of squares also bounds each squared number: x^2 <= sum of x^2, and rounding never makes a sum less than one of
// its terms. The mean in RMSNorm, and the norm for gradient clipping, are small and scanned anyway; so they give a good
// bound of a large tensor that is not scanned. Tests: tests/detection/test_bounds_by_totals.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <torchnan/bounds.h>

#include "check/bounds/dtype_range.h"

namespace torchnan {

// The role of an operation in such a history.
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
  kSum,       // a sum of squares, like the next one
  kMean,
  kNorm  // of x
};
MomentStep moment_step_of(std::string_view op);  // Takes the name without namespace and underscore.

// For an average m of gradients and an average v of their squares: |m| <= ratio * sqrt(v + slack).
struct MomentHistory {
  double ratio = RuleArguments::kUnknown;
  double slack = 0;

  // Returns the history after m' = (1 - w) m + w g and v' = b v + c g^2.
  MomentHistory after_step(double w, double b, double c, const DtypeRange& range) const;
  // Returns a bound of |m| / (sqrt(v) / correction + eps).
  double quotient(double correction, double eps, const DtypeRange& range) const;
};

// Returns the history that two scanned moments imply: dense float or double tensors of one size on the CPU. None if a
// square is negative.
std::optional<MomentHistory> history_shown_by(const at::Tensor& first, const at::Tensor& second,
                                              const DtypeRange& range);

class BoundSource;

// The histories that one thread follows. A stamp identifies the values; any other write to the tensor removes it.
// Stamps are in the bound cache, or are write numbers for memory that the host cannot read. Allocates once.
class Moments {
 public:
  // The numerator n, identified by its stamp, and k.
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
    const c10::StorageImpl* mean_of = nullptr;  // kGradient: the last average it went into
    uint64_t previous = 0;                      // kMean: the m before; kFromZero
    uint64_t gradient = 0;                      // kMean: g
    double kept = 0;                            // kMean: |m'| <= kept |m| + taken |g|
    double taken = 0;
    Numerator mean{};  // kSquare, kRoot
    Numerator of_gradient{};
    // kSquares: the squared tensor; kSum, kMeanOfSquares, kNorm: the tensor they bound
    const c10::StorageImpl* squared = nullptr;
    uint64_t squared_stamp = 0;
    double terms = 0;  // kMeanOfSquares: how many
    double slack = 0;
    double floor = 0;  // kRoot: lower bound; kWeight: its bound at the last scan
  };

  Moments();

  // Returns the claim for the result of an operation that has not run yet, from the known claims of its arguments.
  Claim follow(MomentStep step, const RuleArguments& a);

  // Records that the operation has run, and that its result was recorded as finite. `write`: the write number, for
  // memory that the host cannot read. Returns whether a claim was stored for a tensor that can have one.
  void record(const at::Tensor& result, const Claim& claim);
  bool record(const at::Tensor& result, const Claim& claim, uint64_t write);

  // The claims of two moments with a history; that of the second refers to the stamp of the first.
  static Claim claim_of_mean() { return {.form = Form::kMean}; }
  static Claim claim_of_squares(uint64_t mean_stamp, const MomentHistory& history) {
    return {.form = Form::kSquare, .mean = {mean_stamp, history.ratio}, .slack = history.slack};
  }

  // Returns the known history of two moments, or records the one after a whole step. Both moments were recorded as
  // finite.
  MomentHistory history_of(const at::Tensor& first, const at::Tensor& second, const BoundSource& source) const;
  void record_history(const at::Tensor& first, const at::Tensor& second, const MomentHistory& history);

  // Returns the stamp of a tensor on the host, and makes one if it has none; 0 if it is not known to be finite.
  uint64_t stamp(const at::Tensor& tensor, const BoundSource& source);

  // Returns a bound of |numerator / denominator|.
  double quotient(const at::Tensor& numerator, const at::Tensor& denominator, const BoundSource& source) const;
  // Returns a lower bound of the elements of a root plus eps; 0 if the tensor is not one.
  double floor_of(const at::Tensor& denominator, const BoundSource& source) const;

  // Whether steps have enlarged the bound of a weight so much that scanning the weight pays off: later bounds build on
  // it.
  bool has_drifted(const at::Tensor& weight, double before, double after);

 private:
  static constexpr uint64_t kFromZero = 1;  // no stamp has this number
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
