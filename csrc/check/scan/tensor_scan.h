// Scans tensors. Reads memory directly, without dispatching operations.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>
#include <torchnan/finding.h>

#include "check/scan/nonfinite_kinds.h"

namespace torchnan {

// Why a tensor was not scanned.
enum class Skip : uint8_t {
  kNone,
  kNotFloating,  // its dtype cannot hold a NaN
  kEmpty,        // no elements
  kMeta,         // no data by nature
  kFake,         // a FakeTensor: no data by nature
  kSubclass,     // a Python subclass: the operations inside it are checked on their own
  kFunctorch,    // wrapped by vmap, grad, jvp or functionalize: likewise
  kQuantized,
  kZeroTensor,   // zeros by definition, without memory
  kOpaque,       // no strided memory: mkldnn, xla
  kUnallocated,  // its storage has been freed or not yet filled
  kDevice,       // on a device that torchnan cannot read
  kCollective,   // still being written by a collective
  kCount,
};
const char* name_of(Skip skip);

struct ScanResult {
  Skip skip = Skip::kNone;
  bool finite = true;
  int64_t bytes = 0;   // scanned
  double max_abs = 0;  // the largest |x|, if all are finite; infinite for dtypes without bounds
};

// Returns the tensor to scan for `tensor`: itself, or the values of a sparse or nested one. Undefined if the tensor is
// to be skipped.
TORCHNAN_API at::Tensor scannable_values(const at::Tensor& tensor);

// Returns the same for a tensor on a device.
at::Tensor readable_on_device(const at::Tensor& tensor);

// Returns why check_finite() would skip a tensor; kNone if it would not. Touches no memory.
Skip reason_to_skip(const at::Tensor& tensor);

// The keys of tensors without values.
inline constexpr c10::DispatchKeySet kFunctorchKeys({
    c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::Batched,
    c10::DispatchKey::Functionalize,
});
inline constexpr c10::DispatchKeySet kWrapperKeys =
    kFunctorchKeys | c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::ZeroTensor});

// Whether a tensor is strided, with this key. The keys decide this for nearly all tensors.
inline bool is_dense(const c10::TensorImpl& impl, c10::DispatchKey key) {
  const c10::DispatchKeySet keys = impl.key_set();
  return keys.has_all(c10::DispatchKeySet(key)) && !keys.has_any(kWrapperKeys) &&
         impl.unsafe_storage().unsafeGetStorageImpl() != nullptr && !impl.has_symbolic_sizes_strides();
}

// The same in memory of the host, and of a device that may have a scanner.
inline bool is_dense_on_host(const c10::TensorImpl& impl) { return is_dense(impl, c10::DispatchKey::CPU); }
inline bool is_dense_on_device(const c10::TensorImpl& impl) {
  return is_dense(impl, c10::DispatchKey::CUDA) || is_dense(impl, c10::DispatchKey::PrivateUse1);
}

// The rest of is_plain(): whether the values lie in memory of the host or a device as the sizes say, and the sizes are
// numbers. Touches no memory.
bool is_plain_elsewhere(const at::Tensor& tensor);
inline bool is_plain(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return is_dense_on_host(impl) || is_dense_on_device(impl) || is_plain_elsewhere(tensor);
}

// Scans a tensor, or the values of a sparse or nested one.
TORCHNAN_API ScanResult check_finite(const at::Tensor& tensor);

// Returns the magnitude (check/scan/float_encoding.h) of a nonnegative number, rounded down; only for dtypes with
// bounds.
uint64_t encode_magnitude(double magnitude, c10::ScalarType dtype);

// Returns the number that a magnitude encodes; infinite for dtypes without bounds.
double decode_magnitude(uint64_t word, c10::ScalarType dtype);

// Returns the largest finite |x| of a tensor that may hold infinities; only for dtypes with bounds.
double largest_finite(const at::Tensor& tensor);

// Returns which elements of a contiguous tensor are larger in magnitude than a number; only for dtypes with bounds.
// Nothing if they are more than `most`, or if the tensor is not contiguous.
std::optional<std::vector<int64_t>> elements_beyond(const at::Tensor& tensor, double limit, size_t most);

// Returns the value of a tensor of one element; absent under the conditions below.
TORCHNAN_API std::optional<double> scalar_value(const at::Tensor& tensor);

// The smallest x and |x|. Absent for a tensor that check_finite() would skip, that has no bounds, or that is not
// finite.
struct Smallest {
  double value = 0;
  double magnitude = 0;
};
std::optional<Smallest> smallest_of(const at::Tensor& tensor);

// Returns whether a finite tensor of float16, bfloat16, float32 or float64 holds a number below zero. False for others.
bool has_negative(const at::Tensor& tensor);

// Returns the kinds that a tensor holds; none for a tensor that check_finite() would skip.
TORCHNAN_API NonfiniteKinds kinds_of(const at::Tensor& tensor);

// Returns the number of words of each kind; a complex element has two. All are 0 for a tensor that check_finite() would
// skip.
Counts counts_of(const at::Tensor& tensor);

// The statistics of a tensor in the report, in the logical order of its elements (for sparse and nested tensors: of
// their values). A complex element counts as NaN if either part is NaN, and otherwise as Inf if either part is
// infinite, with the sign of the first infinite part; its range covers both parts.
struct TensorStats {
  Tally tally;
  std::vector<int64_t> first_index;  // of the first non-finite element
  NonfiniteKinds kinds() const;
};
TensorStats compute_stats(const at::Tensor& tensor);

// Returns the range of a tensor of integers or booleans; empty for any other, and for one without memory on the host.
Tally integer_range(const at::Tensor& tensor);

// Returns the tally of a number.
Tally tally_of(double number);

}  // namespace torchnan
