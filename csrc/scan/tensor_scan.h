// Is a tensor finite, and if not, what is in it? Reads memory directly: dispatches no operation.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>
#include <torchnan/finding.h>

#include "scan/nonfinite_kinds.h"

namespace torchnan {

// Why a tensor was passed by.
enum class Skip : uint8_t {
  kNone,
  kNotFloating,  // its dtype cannot hold a NaN
  kEmpty,        // no elements
  kMeta,         // no data by nature
  kFake,         // a FakeTensor: no data by nature
  kSubclass,     // a Python subclass: the operations inside it are seen on their own
  kFunctorch,    // wrapped by vmap, grad, jvp or functionalize: likewise
  kQuantized,
  kZeroTensor,   // zeros by definition, without memory
  kOpaque,       // no strided memory: mkldnn, xla
  kUnallocated,  // its storage has been freed or not yet filled
  kDevice,       // on a device torchnan cannot read
  kCollective,   // still being written by a collective
  kCount,
};
const char* name_of(Skip skip);

struct ScanResult {
  Skip skip = Skip::kNone;
  bool finite = true;
  int64_t bytes = 0;   // looked at
  double max_abs = 0;  // the largest |x|, if all are finite; infinite for dtypes that bounds say nothing of
};

// The tensor whose memory tells about `tensor`: itself, or the values of a sparse or nested one. Undefined if the
// tensor is to be passed by.
TORCHNAN_API at::Tensor scannable_values(const at::Tensor& tensor);

// The same for a tensor on a device: whose memory there tells about it. Undefined if there is none.
at::Tensor readable_on_device(const at::Tensor& tensor);

// Why check_finite() would pass a tensor by; kNone if it would not. Touches no memory.
Skip reason_to_skip(const at::Tensor& tensor);

// Whether its values lie in memory, the host's or a device's, as its sizes say, and its sizes are numbers. Touches no
// memory.
bool is_plain(const at::Tensor& tensor);

// Sparse and nested tensors are judged by their values.
ScanResult check_finite(const at::Tensor& tensor);

// The masked word (scan/float_format.h) of a number of at least zero, rounded down; only for dtypes with bounds.
uint64_t encode_magnitude(double magnitude, c10::ScalarType dtype);

// A masked word as the number that it stands for; infinite for dtypes without bounds.
double decode_magnitude(uint64_t word, c10::ScalarType dtype);

// The largest finite |x| of a tensor that may hold infinities; for dtypes that have bounds.
double largest_finite(const at::Tensor& tensor);

// The value of a tensor of one element; absent as below.
TORCHNAN_API std::optional<double> scalar_value(const at::Tensor& tensor);

// Absent for a tensor that check_finite() would pass by, has no bounds, or is not finite.
struct Smallest {
  double value = 0;
  double magnitude = 0;
};
std::optional<Smallest> smallest_of(const at::Tensor& tensor);

// Which kinds a tensor holds; none for a tensor that check_finite() would pass by.
NonfiniteKinds kinds_of(const at::Tensor& tensor);

// How many words of each kind; a complex element has two. None for a tensor that check_finite() would pass by.
Counts counts_of(const at::Tensor& tensor);

// Everything the report tells about a tensor's values, in the logical order of its elements (for sparse and
// nested tensors: of their values). A complex element counts as NaN if either part is one, as Inf if none is and
// either part is infinite, with the sign of the first infinite part; its range is that of both parts.
struct TensorStats {
  Tally tally;
  std::vector<int64_t> first_index;  // of the first non-finite element
  NonfiniteKinds kinds() const;
};
TensorStats compute_stats(const at::Tensor& tensor);

}  // namespace torchnan
