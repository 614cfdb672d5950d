#include "origin/written_part.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <c10/core/DynamicCast.h>

#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

// The lengths are a list of integers or a tensor.
std::vector<int64_t> lengths_in(const c10::IValue& value) {
  if (value.isIntList()) return value.toIntVector();
  std::vector<int64_t> lengths;
  if (!value.isTensor()) return lengths;
  const at::Tensor& tensor = value.toTensor();
  const bool is_readable = tensor.defined() && tensor.is_cpu() && tensor.is_contiguous() &&
                           c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
  if (!is_readable) return lengths;
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i)
    lengths.push_back(
        c10::fetch_and_cast<int64_t>(tensor.scalar_type(), data + i * static_cast<int64_t>(tensor.itemsize())));
  return lengths;
}

std::vector<int64_t> lengths_of(const CallContext& call, std::string_view name) {
  for (size_t k = 0; k < call.saved.size(); ++k) {
    if (call.plan.argument_names[call.plan.saved_arguments[k]] == name) return lengths_in(call.saved[k]);
  }
  return {};
}

// Returns the first `times` rows and `states` columns of a sample. Dispatches nothing.
at::Tensor part_of(const at::Tensor& table, int64_t sample, int64_t times, int64_t states) {
  const c10::TensorImpl& impl = *table.unsafeGetTensorImpl();
  at::Tensor part(impl.shallow_copy_and_detach(c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
  const std::array<int64_t, 2> sizes{times, states}, strides{table.stride(1), table.stride(2)};
  part.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(sizes), c10::IntArrayRef(strides),
                                                    table.storage_offset() + sample * table.stride(0));
  return part;
}

}  // namespace

NonfiniteKinds kinds_in_written_part(const CallContext& call, const at::Tensor& table) {
  const std::vector<int64_t> times = lengths_of(call, "input_lengths"), targets = lengths_of(call, "target_lengths");
  const auto samples = table.dim() == 3 ? static_cast<size_t>(table.size(0)) : 0;
  if (samples == 0 || times.size() != samples || targets.size() != samples) return kinds_of(table);
  NonfiniteKinds kinds;
  for (size_t i = 0; i < samples; ++i) {
    const int64_t rows = std::clamp<int64_t>(times[i], 0, table.size(1));
    const int64_t columns = std::clamp<int64_t>(2 * targets[i] + 1, 0, table.size(2));
    kinds |= kinds_of(part_of(table, static_cast<int64_t>(i), rows, columns));
  }
  return kinds;
}

}  // namespace torchnan
