#include "device/device_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "device/keys_above.h"

namespace torchnan {
namespace {

constexpr int64_t kPart = 1 << 21;  // elements that are counted at a time
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Part {
  at::Tensor values;
  std::vector<int64_t> begin;  // index of its first element in the whole tensor
};

// Splits in element order: halves the first dimension with more than one element.
void split(const at::Tensor& tensor, std::vector<int64_t> begin, std::vector<Part>& parts) {
  if (tensor.numel() <= kPart) return parts.push_back({tensor, std::move(begin)});
  int64_t d = 0;
  while (tensor.size(d) == 1) ++d;
  const int64_t half = tensor.size(d) / 2;
  split(tensor.narrow(d, 0, half), begin, parts);
  begin[d] += half;
  split(tensor.narrow(d, half, tensor.size(d) - half), std::move(begin), parts);
}

// The statistics of a part.
enum Column { kNan, kPosinf, kNeginf, kZeros, kMin, kMax, kMinAbs, kFirst, kColumns };

// Returns a tensor of kColumns numbers, on the device.
at::Tensor count(const at::Tensor& part) {
  const at::Tensor given = part.is_complex() ? at::view_as_real(part.resolve_conj()) : part.unsqueeze(-1);
  const at::Tensor values = given.to(given.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor real = values.select(-1, 0);
  const at::Tensor is_nan = values.isnan().any(-1);
  const at::Tensor shown = at::where(real.isinf(), real, values.select(-1, -1)).masked_fill(is_nan, 0);
  const at::Tensor is_bad = is_nan.logical_or(shown.isinf());
  const at::Tensor is_finite = values.isfinite();
  const at::Tensor is_zero = values.eq(0);

  std::vector<at::Tensor> counted(kColumns);
  counted[kNan] = is_nan.sum();
  counted[kPosinf] = shown.eq(kInfinity).sum();
  counted[kNeginf] = shown.eq(-kInfinity).sum();
  counted[kZeros] = is_zero.sum();
  counted[kMin] = at::where(is_finite, values, kInfinity).amin();
  counted[kMax] = at::where(is_finite, values, -kInfinity).amax();
  counted[kMinAbs] = at::where(is_finite.logical_and(is_zero.logical_not()), values.abs(), kInfinity).amin();
  counted[kFirst] = is_bad.flatten().to(at::kByte).argmax();  // the first of equal elements
  for (at::Tensor& number : counted) number = number.to(at::kDouble);
  return at::stack(counted);
}

std::vector<int64_t> index_of(const Part& part, int64_t element) {
  std::vector<int64_t> index = part.begin;
  for (int64_t d = part.values.dim(); d-- > 0;) {
    index[d] += element % part.values.size(d);
    element /= part.values.size(d);
  }
  return index;
}

void widen(Tally& tally, const double* counted) {
  if (counted[kMin] > counted[kMax]) return;  // no element is finite
  tally.min = std::min(tally.min.value_or(kInfinity), counted[kMin]);
  tally.max = std::max(tally.max.value_or(-kInfinity), counted[kMax]);
  tally.absmax = std::max(std::abs(*tally.min), std::abs(*tally.max));
  if (counted[kMinAbs] < tally.min_abs.value_or(kInfinity)) tally.min_abs = counted[kMinAbs];
}

void add(TensorStats& stats, const Part& part, const double* counted) {
  const bool had_none = stats.tally.nonfinite() == 0;
  stats.tally.nan += static_cast<int64_t>(counted[kNan]);
  stats.tally.posinf += static_cast<int64_t>(counted[kPosinf]);
  stats.tally.neginf += static_cast<int64_t>(counted[kNeginf]);
  stats.tally.zeros += static_cast<int64_t>(counted[kZeros]);
  widen(stats.tally, counted);
  if (had_none && stats.tally.nonfinite() > 0) {
    stats.first_index = index_of(part, static_cast<int64_t>(counted[kFirst]));
  }
}

}  // namespace

TensorStats compute_stats_on_device(const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(kKeysAbove);
  if (tensor.nbytes() <= kMaxCopiedBytes) return compute_stats(tensor.to(c10::DeviceType::CPU));
  std::vector<Part> parts;
  split(tensor, std::vector<int64_t>(static_cast<size_t>(tensor.dim())), parts);
  std::vector<at::Tensor> counted;
  counted.reserve(parts.size());
  for (const Part& part : parts) counted.push_back(count(part.values));
  const at::Tensor rows = at::stack(counted).to(c10::DeviceType::CPU);
  TensorStats stats;
  for (size_t i = 0; i < parts.size(); ++i) add(stats, parts[i], rows.const_data_ptr<double>() + i * kColumns);
  return stats;
}

}  // namespace torchnan
