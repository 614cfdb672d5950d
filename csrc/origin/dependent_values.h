// Finite values that depend on a NaN: the index of a largest element, a cast to integers, a number of matches.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "origin/provenance.h"

namespace torchnan {

// What depends on a NaN in one storage. An integer does not show it, so each byte has what tells it from an
// alternative: the value that would be there if another number had been in the place of the NaN.
struct DependentValues {
  c10::Storage difference;  // by XOR with the values; 0 where they do not depend on the NaN
  std::shared_ptr<const Provenance> provenance;
  bool is_verdict = false;  // came from comparisons by size alone: it ends where it selects elements
};

// Returns the whole storage as a tensor of bytes.
at::Tensor bytes_of(c10::intrusive_ptr<c10::StorageImpl> storage);

// Whether elements of this tensor, which is dense and on the host, depend on the NaN.
bool shows(const at::Tensor& tensor, const DependentValues& values);

// Whether these are results of comparisons by size, and user code has looked for the NaN besides: `err <= 1` in a
// program that asks isfinite(err), too.
bool is_checked_by_user(const DependentValues& values);

// Returns the provenance of what the tensor shows of such values; null if it shows none, or only what
// user code has checked.
std::shared_ptr<const Provenance> provenance_of_dependent(const at::Tensor& tensor);

// Returns a contiguous copy of the tensor with the alternatives in place of what depends on the NaN.
at::Tensor alternative_of(const at::Tensor& tensor, const DependentValues* values);

// Returns what is known of the storage of `tensor` once its elements have these alternatives, in a contiguous tensor of
// the same sizes and dtype; null if nothing in the storage depends on the NaN. `before`: what was known of the storage.
std::shared_ptr<const DependentValues> with_alternative(const at::Tensor& tensor, const at::Tensor& alternative,
                                                        const DependentValues* before,
                                                        std::shared_ptr<const Provenance> provenance, bool is_verdict);

}  // namespace torchnan
