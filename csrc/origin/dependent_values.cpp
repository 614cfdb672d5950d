#include "origin/dependent_values.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <c10/util/SmallVector.h>

#include "origin/nonfinite_registry.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

// Calls visit(byte offset in the storage, index in logical order) for each element.
template <typename Visit>
void for_each_element(const at::Tensor& tensor, Visit&& visit) {
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  const auto item = static_cast<int64_t>(tensor.itemsize());
  c10::SmallVector<int64_t, 6> index(sizes.size(), 0);
  int64_t offset = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    visit(offset * item, i);
    for (size_t d = sizes.size(); d-- > 0;) {
      offset += strides[d];
      if (++index[d] < sizes[d]) break;
      offset -= strides[d] * sizes[d];
      index[d] = 0;
    }
  }
}

const char* bytes(const c10::Storage& storage) { return static_cast<const char*>(storage.data()); }

char* mutable_bytes(const c10::Storage& storage) { return static_cast<char*>(storage.mutable_data()); }

// The storage may have been resized since.
bool fits(const DependentValues& values, const at::Tensor& tensor) {
  return values.difference.nbytes() == storage_of(tensor)->nbytes();
}

bool is_any_nonzero(const char* first, size_t count) {
  return std::any_of(first, first + count, [](char byte) { return byte != 0; });
}

std::shared_ptr<const Provenance> both(const std::shared_ptr<const Provenance>& a,
                                       const std::shared_ptr<const Provenance>& b) {
  if (a == nullptr || b == nullptr || a == b) return a == nullptr ? b : a;
  std::vector<Cause> causes = a->causes();
  causes.insert(causes.end(), b->causes().begin(), b->causes().end());
  return std::make_shared<Provenance>(std::move(causes));
}

}  // namespace

at::Tensor bytes_of(c10::intrusive_ptr<c10::StorageImpl> storage) {
  const auto size = static_cast<int64_t>(storage->nbytes());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({size});
  return tensor;
}

bool shows(const at::Tensor& tensor, const DependentValues& values) {
  if (!is_dense_on_host(*tensor.unsafeGetTensorImpl()) || !fits(values, tensor)) return false;
  bool found = false;
  for_each_element(tensor, [&](int64_t offset, int64_t) {
    found = found || is_any_nonzero(bytes(values.difference) + offset, tensor.itemsize());
  });
  return found;
}

bool is_checked_by_user(const DependentValues& values) {
  const auto& causes = values.provenance->causes();
  return values.is_verdict &&
         std::all_of(causes.begin(), causes.end(), [](const Cause& cause) { return cause.origin->looked_for.load(); });
}

std::shared_ptr<const Provenance> provenance_of_dependent(const at::Tensor& tensor) {
  const auto values = tensor.defined() ? nonfinite_registry().find_dependent(tensor) : nullptr;
  if (values == nullptr || is_checked_by_user(*values)) return nullptr;
  return shows(tensor, *values) ? values->provenance : nullptr;
}

void forget_dependent(const at::Tensor& tensor) {
  const auto before = nonfinite_registry().find_dependent(tensor);
  if (before == nullptr || !is_dense_on_host(*tensor.unsafeGetTensorImpl())) return;
  auto values = with_alternative(tensor, alternative_of(tensor, nullptr), before.get(), nullptr, false);
  nonfinite_registry().remember_dependent(tensor, std::move(values));
}

at::Tensor alternative_of(const at::Tensor& tensor, const DependentValues* values) {
  at::Tensor copy = at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type());
  const size_t item = tensor.itemsize();
  const char* from = bytes(tensor.storage());
  char* to = mutable_bytes(copy.storage());
  const char* difference = values != nullptr && fits(*values, tensor) ? bytes(values->difference) : nullptr;
  for_each_element(tensor, [&](int64_t offset, int64_t i) {
    char* element = to + static_cast<size_t>(i) * item;
    std::memcpy(element, from + offset, item);
    for (size_t b = 0; difference != nullptr && b < item; ++b)
      element[b] ^= difference[offset + static_cast<int64_t>(b)];
  });
  return copy;
}

std::shared_ptr<const DependentValues> with_alternative(const at::Tensor& tensor, const at::Tensor& alternative,
                                                        const DependentValues* before,
                                                        std::shared_ptr<const Provenance> provenance, bool is_verdict) {
  const size_t size = storage_of(tensor)->nbytes();
  const bool is_known = before != nullptr && fits(*before, tensor);
  const c10::Storage difference = at::detail::empty_cpu({static_cast<int64_t>(size)}, at::kByte).storage();
  if (size == 0) return nullptr;
  if (is_known) {
    std::memcpy(mutable_bytes(difference), bytes(before->difference), size);
  } else {
    std::memset(mutable_bytes(difference), 0, size);
  }
  const size_t item = tensor.itemsize();
  const char* now = bytes(tensor.storage());
  const char* other = bytes(alternative.storage());
  bool is_added = false;
  for_each_element(tensor, [&](int64_t offset, int64_t i) {
    for (size_t b = 0; b < item; ++b) {
      const auto index = offset + static_cast<int64_t>(b);
      const char bits = static_cast<char>(now[index] ^ other[static_cast<size_t>(i) * item + b]);
      mutable_bytes(difference)[index] = bits;
      is_added = is_added || bits != 0;
    }
  });
  if (!is_any_nonzero(bytes(difference), size)) return nullptr;
  if (!is_known) return std::make_shared<DependentValues>(difference, std::move(provenance), is_verdict);
  if (!is_added) return std::make_shared<DependentValues>(difference, before->provenance, before->is_verdict);
  return std::make_shared<DependentValues>(difference, both(before->provenance, provenance),
                                           before->is_verdict && is_verdict);
}

}  // namespace torchnan
