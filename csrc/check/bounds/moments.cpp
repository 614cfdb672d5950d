#include "check/bounds/moments.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <initializer_list>
#include <string_view>

#include "check/bounds/bound_cache.h"
#include "check/bounds/bound_source.h"
#include "check/bounds/dtype_range.h"
#include "check/scan/address_hash.h"
#include "check/scan/storage_of.h"

namespace torchnan {
namespace {

using Claim = Moments::Claim;
using Form = Moments::Form;

// Stamps are unique in the process: each thread starts at a different number.
uint64_t first_stamp() {
  static std::atomic<uint64_t> threads{0};
  return ++threads << 40;
}

// Whether elements at the same offset belong together, and each tensor fills its storage alone.
bool match(std::initializer_list<const at::Tensor*> tensors) {
  const at::Tensor* first = *tensors.begin();
  return std::all_of(tensors.begin(), tensors.end(), [first](const at::Tensor* tensor) {
    if (tensor == nullptr || !tensor->is_contiguous()) return false;
    const c10::StorageImpl* storage = storage_of(*tensor);
    return storage != nullptr && covers_whole_storage(*tensor, *storage) && tensor->sizes() == first->sizes() &&
           tensor->scalar_type() == first->scalar_type() && tensor->device() == first->device() &&
           (tensor == first || storage != storage_of(*first));
  });
}

bool is_number(const RuleArguments& a, size_t i) { return a.has_value(i) && a.numel(i) <= 1; }

// A factor for the loss, or gain, from a few roundings.
double rounded_down(const RuleArguments& a) { return 1 - 8 * a.range().unit; }
double rounded_up(const RuleArguments& a) { return 1 + 8 * a.range().unit; }

// An upper bound of the loss when the results of one operation are flushed to zero.
double flushed(const DtypeRange& range) { return 8 * range.tiny; }
double flushed(const at::Tensor& tensor) { return flushed(range_of(tensor.scalar_type())); }

// The ratio of m' = kept m + taken g to the root of v' = keeps v + takes g^2, including the loss of m by flushing.
double ratio_after(double ratio, double kept, double taken, double keeps, double takes) {
  return std::sqrt(kept * kept * ratio * ratio / keeps + taken * taken / takes) + 1e-12;
}

bool are_wide(const at::Tensor& values) {
  return values.scalar_type() == c10::ScalarType::Float || values.scalar_type() == c10::ScalarType::Double;
}

// Squares of floats are within the range of a double, and their quotient needs no root.
double squared_ratio(float mean, float square, double slack) { return double{mean} * mean / (square + slack); }
double squared_ratio(double mean, double square, double slack) {
  const double ratio = mean / std::sqrt(square + slack);
  return ratio * ratio;
}

template <typename Number>
std::optional<MomentHistory> history_in(const at::Tensor& first, const at::Tensor& second, double slack) {
  const auto* means = first.const_data_ptr<Number>();
  const auto* squares = second.const_data_ptr<Number>();
  bool is_any_negative = false;
  double largest = 0x1p-120;
  for (int64_t i = 0; i < first.numel(); ++i) {
    is_any_negative |= squares[i] < 0;
    largest = std::max(largest, squared_ratio(means[i], squares[i], slack));
  }
  if (is_any_negative) return std::nullopt;
  return MomentHistory{.ratio = std::sqrt(largest) * (1 + 1e-12), .slack = slack};
}

}  // namespace

std::optional<MomentHistory> history_shown_by(const at::Tensor& first, const at::Tensor& second,
                                              const DtypeRange& range) {
  const bool is_float = first.scalar_type() == c10::ScalarType::Float;
  return is_float ? history_in<float>(first, second, flushed(range))
                  : history_in<double>(first, second, flushed(range));
}

MomentStep moment_step_of(std::string_view op) {
  if (op == "lerp") return MomentStep::kAverage;
  if (op == "addcmul") return MomentStep::kAddSquare;
  if (op == "mul") return MomentStep::kMultiply;
  if (op == "div") return MomentStep::kDivide;
  if (op == "sqrt") return MomentStep::kRoot;
  if (op == "add") return MomentStep::kAdd;
  if (op == "maximum") return MomentStep::kLargest;
  if (op == "pow") return MomentStep::kSquare;
  if (op == "sum") return MomentStep::kSum;
  if (op == "mean") return MomentStep::kMean;
  if (op == "linalg_vector_norm" || op == "norm") return MomentStep::kNorm;
  return op == "addcdiv" ? MomentStep::kQuotient : MomentStep::kNone;
}

MomentHistory MomentHistory::after_step(double w, double b, double c, const DtypeRange& range) const {
  const double rounding = 8 * range.unit;
  const double kept = 1 - w + rounding, taken = w + rounding;
  const double keeps = b * (1 - rounding) * (1 - rounding), takes = c * (1 - rounding);
  return {ratio_after(ratio, kept, taken, keeps, takes), b * slack + 2 * flushed(range)};
}

// |m| <= ratio (sqrt(v) + sqrt(slack)), sqrt(v) <= correction * divisor, and eps <= divisor; a root may be flushed,
// too.
double MomentHistory::quotient(double correction, double eps, const DtypeRange& range) const {
  return ratio * (correction + (std::sqrt(slack) + std::sqrt(flushed(range))) / eps);
}

Moments::Moments() : next_stamp_(first_stamp()) {}

Moments::Slot* Moments::find(const c10::StorageImpl* owner) const {
  if (slots_.empty()) return nullptr;
  const size_t first = hash_of_address(owner);
  for (size_t i = 0; i < kProbes; ++i) {
    Slot& slot = slots_[(first + i) % kSlots];
    if (slot.owner == owner) return &slot;
  }
  return nullptr;
}

// Reuses the least recently used of four slots for a storage.
Moments::Slot& Moments::make(const c10::StorageImpl* owner) {
  if (slots_.empty()) slots_.resize(kSlots);
  if (Slot* found = find(owner)) return *found;
  const size_t first = hash_of_address(owner);
  Slot* oldest = &slots_[first % kSlots];
  for (size_t i = 1; i < kProbes; ++i) {
    Slot& slot = slots_[(first + i) % kSlots];
    if (slot.stamp < oldest->stamp) oldest = &slot;
  }
  *oldest = {owner, next_stamp_, {}};
  return *oldest;
}

// Null if any other operation wrote to the tensor since.
const Claim* Moments::valid(const at::Tensor* tensor, Form form, const BoundSource& source) const {
  if (tensor == nullptr || slots_.empty()) return nullptr;
  const uint64_t stamp = source.stamp_of(*tensor);
  if (stamp == 0) return nullptr;
  const Slot* slot = find(storage_of(*tensor));
  return slot != nullptr && slot->stamp == stamp && slot->claim.form == form ? &slot->claim : nullptr;
}

// A gradient keeps its stamp from the average of gradients to that of squares.
uint64_t Moments::stamp_gradient(const at::Tensor& gradient, const BoundSource& source) {
  if (valid(&gradient, Form::kGradient, source) != nullptr) return source.stamp_of(gradient);
  if (!gradient.is_cpu()) {
    const uint64_t write = source.stamp_of(gradient);
    if (write != 0) record(gradient, {.form = Form::kGradient}, write);
    return write;
  }
  if (bound_cache().find(gradient).state != BoundCache::State::kFinite) return 0;
  record(gradient, {.form = Form::kGradient});
  return source.stamp_of(gradient);
}

void Moments::record(const at::Tensor& result, const Claim& claim) {
  if (claim.form >= Form::kSum) return bound_squared(result, claim);
  if (record(result, claim, next_stamp_ + 1)) bound_cache().stamp(result, ++next_stamp_);
}

bool Moments::record(const at::Tensor& result, const Claim& claim, uint64_t write) {
  if (claim.form == Form::kNothing || !match({&result})) return false;
  make(storage_of(result)) = {storage_of(result), write, claim};
  return true;
}

Claim Moments::follow(MomentStep step, const RuleArguments& a) {
  switch (step) {
    case MomentStep::kAverage:
      return after_average(a);
    case MomentStep::kAddSquare:
      return after_square(a);
    case MomentStep::kMultiply:
      if (a.same(0, 1)) return after_squaring(a, Form::kSquares);
      if (slots_.empty() || !is_number(a, 1) || !a.nonnegative(1)) return {};
      return after_scaling(a, a.min_abs(1), a.max_abs(1));
    case MomentStep::kDivide:
      if (slots_.empty() || !is_number(a, 1) || !a.nonnegative(1) || a.has_value(2)) return {};
      return after_scaling(a, 1 / a.max_abs(1), 1 / a.min_abs(1));
    case MomentStep::kRoot:
      return after_root(a);
    case MomentStep::kAdd:
      return after_adding(a);
    case MomentStep::kLargest:
      return after_largest(a);
    case MomentStep::kSquare:
      return a.number(1, 0) == 2 ? after_squaring(a, Form::kSquares) : Claim{};
    case MomentStep::kSum:
      return after_adding_up(a, Form::kSum);
    case MomentStep::kMean:
      return after_adding_up(a, Form::kMeanOfSquares);
    case MomentStep::kNorm:
      return a.number(1, 2) == 2 ? after_squaring(a, Form::kNorm) : Claim{};
    default:
      return {};
  }
}

// lerp(m, g, w): a rounding is relative to |m| + |g|.
Claim Moments::after_average(const RuleArguments& a) {
  const at::Tensor* m = a.tensor(0);
  const at::Tensor* g = a.tensor(1);
  const double w = a.number(2, NAN);
  if (!(w > 0 && w < 1) || !match({m, g})) return {};
  const double zero = 2 * range_of(m->scalar_type()).tiny;
  const uint64_t previous = a.max_abs(0) <= zero ? kFromZero : a.source().stamp_of(*m);
  const uint64_t gradient = previous == 0 ? 0 : stamp_gradient(*g, a.source());
  if (gradient == 0) return {};
  find(storage_of(*g))->claim.mean_of = storage_of(*m);
  const double rounding = 8 * a.range().unit;
  return {
      .form = Form::kMean, .previous = previous, .gradient = gradient, .kept = 1 - w + rounding, .taken = w + rounding};
}

// addcmul(v, g, g, c)
Claim Moments::after_square(const RuleArguments& a) {
  const at::Tensor* v = a.tensor(0);
  const at::Tensor* g = a.tensor(1);
  const double c = a.number(3, 1);
  if (!(c > 0 && c <= 1) || !a.same(1, 2) || !match({v, g}) || !a.nonnegative(0)) return {};
  const uint64_t stamp = stamp_gradient(*g, a.source());
  if (stamp == 0) return {};
  const Claim* square = valid(v, Form::kSquare, a.source());
  const double taken = c * rounded_down(a);
  const double before = std::max(square == nullptr ? 0 : square->slack, flushed(*v));
  Claim after{.form = Form::kSquare, .slack = before + flushed(*v)};
  after.of_gradient = {stamp, 1 / std::sqrt(taken)};
  after.mean = mean_of_gradient(stamp, valid(g, Form::kGradient, a.source()), square, rounded_down(a), taken);
  return after;
}

// The k' of the average that the gradient went into, if the squares before refer to the average before. If both were
// zero, possibly by flushing, any claim with some slack holds.
Moments::Numerator Moments::mean_of_gradient(uint64_t gradient_stamp, const Claim* gradient, const Claim* square,
                                             double keeps, double takes) const {
  if (gradient == nullptr || gradient->mean_of == nullptr) return {};
  const Slot* slot = find(gradient->mean_of);
  if (slot == nullptr || slot->claim.form != Form::kMean || slot->claim.gradient != gradient_stamp) return {};
  const Claim& mean = slot->claim;
  constexpr double kAnything = 0x1p-60;
  const bool is_known = square != nullptr && square->mean.stamp == mean.previous;
  if (mean.previous != kFromZero && !is_known) return {};
  const double ratio = mean.previous == kFromZero ? kAnything : square->mean.ratio;
  return {slot->stamp, ratio_after(ratio, mean.kept, mean.taken, keeps, takes)};
}

// Multiplies by a number between least and most: x' >= b x, minus flushing. For squares, the root of b counts.
Claim Moments::after_scaling(const RuleArguments& a, double least, double most) const {
  if (!(least > 0x1p-60 && most < 0x1p60) || !match({a.tensor(0)})) return {};
  const Claim* square = valid(a.tensor(0), Form::kSquare, a.source());
  const Claim* known = square != nullptr ? square : valid(a.tensor(0), Form::kRoot, a.source());
  if (known == nullptr) return {};
  Claim after = *known;
  const double b = least * rounded_down(a);
  const double divisor = square != nullptr ? std::sqrt(b) : b;
  after.mean.ratio /= divisor;
  after.of_gradient.ratio /= divisor;
  after.slack = known->slack * most + flushed(*a.tensor(0));
  after.floor = std::max(0.0, known->floor * b - flushed(*a.tensor(0)));
  return after;
}

// sqrt(v + slack) <= sqrt(v) + sqrt(slack)
Claim Moments::after_root(const RuleArguments& a) const {
  const Claim* square = valid(a.tensor(0), Form::kSquare, a.source());
  if (square == nullptr || !match({a.tensor(0)})) return {};
  Claim after = *square;
  after.form = Form::kRoot;
  after.mean.ratio *= rounded_up(a);
  after.of_gradient.ratio *= rounded_up(a);
  after.slack = std::sqrt(square->slack) + std::sqrt(flushed(*a.tensor(0)));
  return after;
}

// s + eps: neither is negative.
Claim Moments::after_adding(const RuleArguments& a) const {
  if (slots_.empty() || !is_number(a, 1) || !a.nonnegative(1) || a.number(2, 1) != 1) return {};
  const Claim* root = valid(a.tensor(0), Form::kRoot, a.source());
  if (root == nullptr || !match({a.tensor(0)})) return {};
  Claim after = *root;
  after.mean.ratio *= rounded_up(a);
  after.of_gradient.ratio *= rounded_up(a);
  after.slack += flushed(*a.tensor(0));
  after.floor = std::max(0.0, (root->floor + a.min_abs(1)) * rounded_down(a) - flushed(*a.tensor(0)));
  return after;
}

// maximum(x, v) is at least v.
Claim Moments::after_largest(const RuleArguments& a) const {
  if (!match({a.tensor(0), a.tensor(1)})) return {};
  const Claim* square = valid(a.tensor(1), Form::kSquare, a.source());
  if (square == nullptr) square = valid(a.tensor(0), Form::kSquare, a.source());
  return square == nullptr ? Claim{} : *square;
}

uint64_t Moments::stamp(const at::Tensor& tensor, const BoundSource& source) {
  if (const uint64_t known = source.stamp_of(tensor)) return known;
  bound_cache().stamp(tensor, ++next_stamp_);
  return source.stamp_of(tensor);
}

// The squares of x, or their norm.
Claim Moments::after_squaring(const RuleArguments& a, Form form) {
  const at::Tensor* x = a.tensor(0);
  if (x == nullptr || !x->is_cpu() || !match({x}) || !are_wide(*x)) return {};
  const uint64_t stamp = this->stamp(*x, a.source());
  return stamp == 0 ? Claim{} : Claim{.form = form, .squared = storage_of(*x), .squared_stamp = stamp};
}

// Of all the squares: those that a slice leaves out may be larger than the total.
Claim Moments::after_adding_up(const RuleArguments& a, Form form) const {
  const Claim* squares = valid(a.tensor(0), Form::kSquares, a.source());
  if (squares == nullptr || !covers_whole_storage(*a.tensor(0), *storage_of(*a.tensor(0)))) return {};
  const auto terms = static_cast<double>(a.numel(0));
  return {.form = form, .squared = squares->squared, .squared_stamp = squares->squared_stamp, .terms = terms};
}

// A sum of nonnegative numbers is at least as large as each of them, even when rounded. Terms flushed to zero were
// below the smallest normal number.
void Moments::bound_squared(const at::Tensor& total, const Claim& claim) {
  const BoundCache::Entry known = bound_cache().find(total);
  if (known.state != BoundCache::State::kFinite || !are_wide(total) || total.numel() == 0) return;
  const DtypeRange range = range_of(c10::ScalarType::Float);  // a finer range is not needed
  double square = known.bound.max_abs + range.tiny;
  if (claim.form == Form::kNorm) square *= square;
  if (claim.form == Form::kMeanOfSquares) square *= claim.terms / static_cast<double>(total.numel());
  const double largest = std::sqrt(square * (1 + 64 * range.unit) + 4 * range.tiny);
  bound_cache().record_tightened(claim.squared, claim.squared_stamp, largest);
}

MomentHistory Moments::history_of(const at::Tensor& first, const at::Tensor& second, const BoundSource& source) const {
  const Claim* square = valid(&second, Form::kSquare, source);
  const uint64_t stamp = square == nullptr ? 0 : source.stamp_of(first);
  if (stamp == 0 || square->mean.stamp != stamp || !match({&first, &second})) return {};
  return {square->mean.ratio, square->slack};
}

void Moments::record_history(const at::Tensor& first, const at::Tensor& second, const MomentHistory& history) {
  record(first, claim_of_mean());
  record(second, claim_of_squares(bound_cache().find(first).stamp, history));
}

double Moments::floor_of(const at::Tensor& denominator, const BoundSource& source) const {
  const Claim* root = valid(&denominator, Form::kRoot, source);
  return root == nullptr ? 0 : root->floor;
}

double Moments::quotient(const at::Tensor& numerator, const at::Tensor& denominator, const BoundSource& source) const {
  const Claim* root = valid(&denominator, Form::kRoot, source);
  if (root == nullptr || !(root->floor > 0) || !match({&numerator, &denominator})) return RuleArguments::kUnknown;
  const uint64_t stamp = source.stamp_of(numerator);
  if (stamp == 0) return RuleArguments::kUnknown;
  for (const Numerator& known : {root->mean, root->of_gradient}) {
    if (known.stamp == stamp) return known.ratio * (1 + root->slack / root->floor);
  }
  return RuleArguments::kUnknown;
}

bool Moments::has_drifted(const at::Tensor& weight, double before, double after) {
  constexpr double kTooMuch = 1.5;
  Claim& known = make(storage_of(weight)).claim;
  if (known.form != Form::kWeight) known = {.form = Form::kWeight, .floor = before};
  if (after <= kTooMuch * known.floor) return false;
  known.form = Form::kNothing;
  return true;
}

}  // namespace torchnan
