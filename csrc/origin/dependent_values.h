// Finite values that depend on a NaN: the index of a largest element, a cast to integers, a number of matches.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "origin/provenance.h"

namespace torchnan {

// The values in one storage that depend on a NaN. An integer does not show this, so each byte has its difference to an
// alternative: the value that would be there if another number had replaced the NaN.
struct DependentValues {
  c10::Storage difference;  // XOR with the alternatives; 0 for values that do not depend on the NaN
  std::shared_ptr<const Provenance> provenance;
  bool is_verdict = false;  // came only from ordered comparisons: the dependence ends where it selects elements
};

// Returns the whole storage as a tensor of bytes.
at::Tensor bytes_of(c10::intrusive_ptr<c10::StorageImpl> storage);

// Whether elements of this tensor, which is dense and on the host, depend on the NaN.
bool shows(const at::Tensor& tensor, const DependentValues& values);

// Whether these are results of ordered comparisons, and user code has also checked for the NaN: `err <= 1` in a program
// that calls isfinite(err), too.
bool is_checked_by_user(const DependentValues& values);

// Returns the provenance of such values that the tensor exposes; null if it exposes none, or only values that user code
// has checked.
std::shared_ptr<const Provenance> provenance_of_dependent(const at::Tensor& tensor);

// Forgets what these elements depended on, because they are overwritten.
void forget_dependent(const at::Tensor& tensor);

// Returns a contiguous copy of the tensor in which the alternatives replace the dependent values.
at::Tensor alternative_of(const at::Tensor& tensor, const DependentValues* values);

// Returns the new record for the storage of `tensor` after its elements got these alternatives, in a contiguous tensor
// of the same sizes and dtype. Returns null if no value in the storage depends on the NaN. `before`: the old record.
std::shared_ptr<const DependentValues> with_alternative(const at::Tensor& tensor, const at::Tensor& alternative,
                                                        const DependentValues* before,
                                                        std::shared_ptr<const Provenance> provenance, bool is_verdict);

}  // namespace torchnan
