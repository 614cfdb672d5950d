// The operator torchnan::measure: norms and largest magnitudes of many tensors, in one pass.
#include "check/scan/measure.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "base/dispatch_key.h"
#include "check/scan/float_format.h"
#include "check/scan/parallel_norms.h"

namespace torchnan {
namespace {

constexpr auto kResultDtype = c10::ScalarType::Double;

void require_measurable(at::TensorList xs) {
  for (size_t i = 0; i < xs.size(); ++i) {
    TORCH_CHECK(float_format(xs[i].scalar_type()) != nullptr,
                "torchnan::measure: floating-point or complex tensors have a norm; tensor ", i, " of ", xs.size(),
                " is of dtype ", xs[i].scalar_type());
    TORCH_CHECK(xs[i].device() == xs[0].device(), "torchnan::measure: the tensors of one call must be on one device; ",
                "tensor 0 is on ", xs[0].device(), " and tensor ", i, " on ", xs[i].device(),
                ": call it once for each device");
  }
}

// Returns a dense tensor with the nonzero values of a sparse one; else the tensor itself.
at::Tensor strided(const at::Tensor& x) {
  switch (x.layout()) {
    case c10::kSparse:
      return x.coalesce().values();
    case c10::kSparseCsr:
    case c10::kSparseCsc:
    case c10::kSparseBsr:
    case c10::kSparseBsc:
      return x.values();
    default:
      TORCH_CHECK(x.layout() == c10::kStrided, "torchnan::measure: strided or sparse tensors, not ", x.layout());
      return x;
  }
}

bool has_memory(const at::Tensor& x) { return x.numel() == 0 || x.storage().data() != nullptr; }

std::vector<std::pair<double, double>> rows_in_memory(at::TensorList xs) {
  std::vector<std::pair<double, double>> rows;
  rows.reserve(xs.size());
  for (const NormAndMax& norm_and_max : norms_of(xs)) rows.emplace_back(norm_and_max.norm(), norm_and_max.max_abs());
  return rows;
}

at::Tensor measure_in_memory(at::TensorList xs) {
  for (const at::Tensor& x : xs) {
    TORCH_CHECK(has_memory(x), "torchnan::measure: the memory of a tensor of shape ", x.sizes(), " has been freed");
  }
  const auto rows = rows_in_memory(xs);
  at::Tensor result = at::empty({static_cast<int64_t>(xs.size()), 2}, kResultDtype);
  auto* number = result.mutable_data_ptr<double>();
  for (const auto& [norm, max_abs] : rows) {
    *number++ = norm;
    *number++ = max_abs;
  }
  return result;
}

// Converts to a real dtype for which norms can be computed.
at::Tensor computable(const at::Tensor& x) {
  if (x.is_complex()) return at::view_as_real(x);
  return c10::isFloat8Type(x.scalar_type()) ? x.to(at::kFloat) : x;
}

// For values whose squares may not fit into a double.
at::Tensor norm_of_scaled(const at::Tensor& x, const at::Tensor& max_abs) {
  const at::Tensor scale = at::where(max_abs.isfinite().logical_and_(max_abs.gt(0)), max_abs, 1.0);
  return at::linalg_vector_norm(x.div(scale)).mul(scale);
}

at::Tensor measure(at::TensorList xs) {
  require_measurable(xs);
  std::vector<at::Tensor> values;
  for (const at::Tensor& x : xs) values.push_back(strided(x));
  return xs.empty() || xs[0].is_cpu() ? measure_in_memory(values) : measure_by_operations(values);
}

at::Tensor measure_meta(at::TensorList xs) {
  require_measurable(xs);
  return at::empty({static_cast<int64_t>(xs.size()), 2}, at::TensorOptions(kResultDtype).device(at::kMeta));
}

at::Tensor queue_measurement(at::TensorList xs) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("torchnan::measure", "").typed<at::Tensor(at::TensorList)>();
  return op.call(xs);
}

// Only pinned memory is written without the host. Not every device has any.
at::Tensor on_host_later(const at::Tensor& x) {
  at::TensorOptions options = x.options().device(at::kCPU);
  at::Tensor copied;
  try {
    copied = at::empty(x.sizes(), options.pinned_memory(true));
  } catch (const c10::Error&) {
    copied = at::empty(x.sizes(), options);
  }
  return copied.copy_(x, /*non_blocking=*/true);
}

// Whether the values lie where the tensor says, so that no operation of PyTorch is needed to read them.
bool is_plain_memory(const at::Tensor& x) {
  return x.is_cpu() && x.layout() == c10::kStrided && x.has_storage() && float_format(x.scalar_type()) != nullptr &&
         has_memory(x);
}

}  // namespace

at::Tensor measure_by_operations(at::TensorList xs) {
  const at::Tensor zero = at::zeros({}, xs[0].options().dtype(kResultDtype));
  std::vector<at::Tensor> norms(xs.size(), zero);
  std::vector<at::Tensor> largest(xs.size(), zero);
  std::vector<at::Tensor> values;
  std::vector<size_t> indices;
  for (size_t i = 0; i < xs.size(); ++i) {
    if (xs[i].numel() == 0) continue;
    values.push_back(computable(xs[i]));
    indices.push_back(i);
  }
  if (values.empty()) return at::zeros({static_cast<int64_t>(xs.size()), 2}, zero.options());
  const auto norms_there = at::_foreach_norm(values, 2, kResultDtype);
  const auto largest_there = at::_foreach_norm(values, std::numeric_limits<double>::infinity(), kResultDtype);
  for (size_t v = 0; v < values.size(); ++v) {
    const bool may_overflow = values[v].scalar_type() == at::kDouble;
    norms[indices[v]] = may_overflow ? norm_of_scaled(values[v], largest_there[v]) : norms_there[v];
    largest[indices[v]] = largest_there[v];
  }
  return at::stack({at::stack(norms), at::stack(largest)}, 1);
}

std::vector<std::pair<double, double>> norms_and_magnitudes(at::TensorList xs) {
  if (std::all_of(xs.begin(), xs.end(), is_plain_memory)) return rows_in_memory(xs);
  const c10::impl::ExcludeDispatchKeyGuard no_detection(kInterceptorKey);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  std::unordered_map<c10::Device, std::vector<size_t>> by_device;
  for (size_t i = 0; i < xs.size(); ++i) by_device[xs[i].device()].push_back(i);
  std::vector<std::pair<double, double>> rows(xs.size());
  for (const auto& [device, indices] : by_device) {
    std::vector<at::Tensor> there;
    for (const size_t i : indices) there.push_back(xs[i]);
    const at::Tensor table = queue_measurement(there).cpu();
    const double* row = table.const_data_ptr<double>();
    for (const size_t i : indices) {
      rows[i] = {row[0], row[1]};
      row += 2;
    }
  }
  return rows;
}

DeviceMeasurement::DeviceMeasurement(at::TensorList xs, at::TensorList numbers) : measured_(xs[0].device().type()) {
  const c10::impl::ExcludeDispatchKeyGuard no_detection(kInterceptorKey);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  table_ = queue_measurement(xs);
  rows_ = on_host_later(table_);
  for (const at::Tensor& number : numbers) numbers_.push_back(on_host_later(number));
  measured_.record(c10::impl::getDeviceGuardImpl(table_.device().type())->getStream(table_.device()));
}

void DeviceMeasurement::wait() const {
  if (!measured_.query()) measured_.synchronize();
}

std::vector<std::pair<double, double>> DeviceMeasurement::rows() const {
  wait();
  std::vector<std::pair<double, double>> rows;
  const auto* const number = rows_.const_data_ptr<double>();
  for (int64_t i = 0; i < rows_.size(0); ++i) rows.emplace_back(number[2 * i], number[2 * i + 1]);
  return rows;
}

const std::vector<at::Tensor>& DeviceMeasurement::numbers() const {
  wait();
  return numbers_;
}

TORCH_LIBRARY_FRAGMENT(torchnan, m) { m.def("measure(Tensor[] x) -> Tensor"); }

TORCH_LIBRARY_IMPL(torchnan, CompositeExplicitAutograd, m) { m.impl("measure", &measure); }
TORCH_LIBRARY_IMPL(torchnan, Meta, m) { m.impl("measure", &measure_meta); }
TORCH_LIBRARY_IMPL(torchnan, Autograd, m) { m.impl("measure", torch::autograd::autogradNotImplementedFallback()); }

}  // namespace torchnan
