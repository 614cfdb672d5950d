// Operators: torchnan::all_finite, torchnan::count_nonfinite and torchnan::stats.
#include <algorithm>

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "check/scan/tensor_scan.h"
#include "detection/thread_state.h"

namespace torchnan {
namespace {

bool is_finite(const at::Tensor& x) {
  if (!x.is_cpu()) return at::isfinite(x).all().item<bool>();
  return check_finite(x).finite;
}

at::Tensor all_finite(const at::Tensor& x) { return at::scalar_tensor(is_finite(x), at::kBool); }

at::Tensor all_finite_list(at::TensorList xs) {
  return at::scalar_tensor(std::all_of(xs.begin(), xs.end(), is_finite), at::kBool);
}

void count_into(const at::Tensor& x, int64_t* counts) {
  const Tally tally = compute_stats(x.is_cpu() ? x : x.cpu()).tally;
  counts[0] = tally.nan;
  counts[1] = tally.posinf;
  counts[2] = tally.neginf;
}

at::Tensor count_nonfinite(const at::Tensor& x) {
  at::Tensor counts = at::zeros({3}, at::kLong);
  count_into(x, counts.mutable_data_ptr<int64_t>());
  return counts;
}

at::Tensor count_nonfinite_list(at::TensorList xs) {
  at::Tensor counts = at::zeros({static_cast<int64_t>(xs.size()), 3}, at::kLong);
  for (size_t i = 0; i < xs.size(); ++i) count_into(xs[i], counts.mutable_data_ptr<int64_t>() + 3 * i);
  return counts;
}

at::Tensor all_finite_meta(const at::Tensor&) { return at::empty({}, at::TensorOptions(at::kBool).device(at::kMeta)); }
at::Tensor all_finite_list_meta(at::TensorList xs) { return all_finite_meta(at::Tensor()); }
at::Tensor count_nonfinite_meta(const at::Tensor&) {
  return at::empty({3}, at::TensorOptions(at::kLong).device(at::kMeta));
}
at::Tensor count_nonfinite_list_meta(at::TensorList xs) {
  return at::empty({static_cast<int64_t>(xs.size()), 3}, at::TensorOptions(at::kLong).device(at::kMeta));
}

// Returns the counts of the session that is active on this thread; empty without one.
c10::Dict<std::string, int64_t> stats() {
  c10::Dict<std::string, int64_t> counts;
  const auto session = ThreadState::current().shared_session();
  if (session == nullptr) return counts;
  const Stats stats = session->stats();
  for_each_count(stats, [&](const char* name, int64_t count) { counts.insert(name, count); });
  for (const auto& [reason, count] : stats.skipped) counts.insert("skipped: " + reason, count);
  return counts;
}

}  // namespace

TORCH_LIBRARY(torchnan, m) {
  m.def("all_finite(Tensor x) -> Tensor");
  m.def("all_finite.list(Tensor[] x) -> Tensor");
  m.def("count_nonfinite(Tensor x) -> Tensor");
  m.def("count_nonfinite.list(Tensor[] x) -> Tensor");
  m.def("stats() -> Dict(str, int)", &stats);
}

TORCH_LIBRARY_IMPL(torchnan, CompositeExplicitAutograd, m) {
  m.impl("all_finite", &all_finite);
  m.impl("all_finite.list", &all_finite_list);
  m.impl("count_nonfinite", &count_nonfinite);
  m.impl("count_nonfinite.list", &count_nonfinite_list);
}

TORCH_LIBRARY_IMPL(torchnan, Meta, m) {
  m.impl("all_finite", &all_finite_meta);
  m.impl("all_finite.list", &all_finite_list_meta);
  m.impl("count_nonfinite", &count_nonfinite_meta);
  m.impl("count_nonfinite.list", &count_nonfinite_list_meta);
}

// The results are counts and booleans, so there is nothing to differentiate.
TORCH_LIBRARY_IMPL(torchnan, Autograd, m) {
  m.impl("all_finite", torch::autograd::autogradNotImplementedFallback());
  m.impl("all_finite.list", torch::autograd::autogradNotImplementedFallback());
  m.impl("count_nonfinite", torch::autograd::autogradNotImplementedFallback());
  m.impl("count_nonfinite.list", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace torchnan
