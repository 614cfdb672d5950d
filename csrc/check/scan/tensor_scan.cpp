#include "check/scan/tensor_scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

#include "base/work_counters.h"
#include "check/scan/isa_dispatch.h"
#include "check/scan/finite_scan.h"
#include "check/scan/float_format.h"
#include "check/scan/strided_view.h"

namespace torchnan {

namespace {

// Returns the reason to skip a strided tensor before its memory is touched.
Skip reason_to_skip_strided(const c10::TensorImpl& impl) {
  const c10::DispatchKeySet keys = impl.key_set();
  if (keys.has_any(kWrapperKeys)) {
    if (keys.has_any(kFunctorchKeys)) return Skip::kFunctorch;
    if (keys.has(c10::DispatchKey::ZeroTensor)) return Skip::kZeroTensor;
    const bool fake = impl.has_storage() && impl.unsafe_storage().device().is_meta();
    return fake ? Skip::kFake : Skip::kSubclass;
  }
  if (impl.is_meta()) return Skip::kMeta;
  if (!impl.is_cpu()) return Skip::kDevice;
  if (impl.layout() != c10::kStrided || !impl.has_storage()) return Skip::kOpaque;
  return Skip::kNone;
}

// Returns the dense tensor with the values of a sparse or nested one; else the tensor itself.
at::Tensor values_of(const at::Tensor& tensor) {
  if (tensor.is_nested()) {
    return static_cast<const at::native::NestedTensorImpl*>(tensor.unsafeGetTensorImpl())->get_buffer();
  }
  switch (tensor.layout()) {
    case c10::kSparse:
      return static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl())->values();
    case c10::kSparseCsr:
    case c10::kSparseCsc:
    case c10::kSparseBsr:
    case c10::kSparseBsc:
      return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl())->values();
    default:
      return tensor;
  }
}

bool is_container(const at::Tensor& tensor) { return tensor.layout() != c10::kStrided || tensor.is_nested(); }

// The tensor whose memory is scanned, or the reason to skip it.
struct ScanTarget {
  Skip skip = Skip::kNone;
  FloatFormat format;
  at::Tensor values;  // defined only where it is not the tensor itself

  explicit ScanTarget(const at::Tensor& tensor) {
    const c10::ScalarType dtype = tensor.scalar_type();
    const FloatFormat* known = float_format(dtype);
    if (known == nullptr) {
      skip = c10::isQIntType(dtype) ? Skip::kQuantized : Skip::kNotFloating;
      return;
    }
    format = *known;
    const bool wrapped = tensor.unsafeGetTensorImpl()->key_set().has_any(kWrapperKeys);
    if (!wrapped && is_container(tensor)) values = values_of(tensor);
    const c10::TensorImpl& impl = *select(tensor).unsafeGetTensorImpl();
    skip = reason_to_skip_strided(impl);
    if (skip != Skip::kNone) return;
    if (impl.numel() == 0) {
      skip = Skip::kEmpty;
    } else if (impl.unsafe_storage().data() == nullptr) {
      skip = Skip::kUnallocated;
    }
  }

  const at::Tensor& select(const at::Tensor& tensor) const { return values.defined() ? values : tensor; }
};

// Calls visit(first word, words) for runs of memory that hold every element of the tensor at least once; ends
// early and returns false once visit does.
template <typename Visit>
bool for_each_span(const at::Tensor& tensor, const FloatFormat& format, Visit&& visit) {
  const auto* base = static_cast<const char*>(tensor.const_data_ptr());
  if (tensor.is_non_overlapping_and_dense()) {
    return visit(base, tensor.numel() * format.words_per_element);
  }
  const StridedView view(tensor.sizes(), tensor.strides());
  return view.for_each_run([&](int64_t offset) {
    const char* run = base + offset * format.element_bytes();
    if (view.inner_stride() == 1) return visit(run, view.run_length() * format.words_per_element);
    for (int64_t i = 0; i < view.run_length(); ++i) {
      if (!visit(run + i * view.inner_stride() * format.element_bytes(), int64_t{format.words_per_element})) {
        return false;
      }
    }
    return true;
  });
}

// Returns the value `offset` elements after the first.
double value_at(const at::Tensor& tensor, int64_t offset) {
  const void* base = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float:
      return static_cast<const float*>(base)[offset];
    case c10::ScalarType::Double:
      return static_cast<const double*>(base)[offset];
    case c10::ScalarType::BFloat16:
      return static_cast<const c10::BFloat16*>(base)[offset];
    case c10::ScalarType::Half:
      return static_cast<const c10::Half*>(base)[offset];
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

// Accumulates statistics, one element at a time.
class StatsCollector {
 public:
  explicit StatsCollector(TensorStats& stats) : stats_(stats) {}

  // Adds an element, whose one or two components are `parts`. Returns whether it is finite.
  bool element(const double* parts, int count) {
    bool nan = false;
    int inf_sign = 0;
    for (int i = 0; i < count; ++i) {
      if (std::isnan(parts[i])) {
        nan = true;
      } else if (std::isinf(parts[i])) {
        if (inf_sign == 0) inf_sign = parts[i] > 0 ? 1 : -1;
      } else {
        widen(parts[i]);
      }
    }
    if (nan) {
      ++stats_.tally.nan;
    } else if (inf_sign != 0) {
      ++(inf_sign > 0 ? stats_.tally.posinf : stats_.tally.neginf);
    }
    return !nan && inf_sign == 0;
  }

 private:
  void widen(double x) {
    Tally& t = stats_.tally;
    if (x == 0) {
      ++t.zeros;
    } else if (!t.min_abs || std::abs(x) < *t.min_abs) {
      t.min_abs = std::abs(x);
    }
    if (!t.min || x < *t.min) t.min = x;
    if (!t.max || x > *t.max) t.max = x;
    if (!t.absmax || std::abs(x) > *t.absmax) t.absmax = std::abs(x);
  }

  TensorStats& stats_;
};

template <typename Real>
void collect_strided(const at::Tensor& tensor, int parts, TensorStats& stats) {
  const auto* base = static_cast<const Real*>(tensor.const_data_ptr());
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  std::vector<int64_t> index(sizes.size(), 0);
  StatsCollector collector(stats);
  int64_t offset = 0;
  for (int64_t left = tensor.numel(); left > 0; --left) {
    double components[2] = {};
    for (int i = 0; i < parts; ++i) components[i] = static_cast<double>(base[offset * parts + i]);
    const bool finite = collector.element(components, parts);
    if (!finite && stats.tally.nonfinite() == 1) stats.first_index = index;
    for (size_t d = sizes.size(); d-- > 0;) {
      offset += strides[d];
      if (++index[d] < sizes[d]) break;
      offset -= strides[d] * sizes[d];
      index[d] = 0;
    }
  }
}

}  // namespace

const char* name_of(Skip skip) {
  static constexpr std::array<const char*, static_cast<size_t>(Skip::kCount)> kNames = {
      "none",      "not floating point", "empty",  "meta",        "fake",   "python subclass", "functorch",
      "quantized", "zero tensor",        "opaque", "unallocated", "device", "in a collective",
  };
  return kNames[static_cast<size_t>(skip)];
}

at::Tensor scannable_values(const at::Tensor& tensor) {
  const ScanTarget target(tensor);
  return target.skip == Skip::kNone ? target.select(tensor) : at::Tensor();
}

at::Tensor readable_on_device(const at::Tensor& tensor) {
  const ScanTarget target(tensor);
  if (target.skip != Skip::kDevice) return {};
  const at::Tensor& values = target.select(tensor);
  const c10::TensorImpl& impl = *values.unsafeGetTensorImpl();
  const bool has_memory = impl.layout() == c10::kStrided && impl.has_storage() && impl.numel() > 0 &&
                          !impl.has_symbolic_sizes_strides() && impl.unsafe_storage().data() != nullptr;
  return has_memory ? values : at::Tensor();
}

Skip reason_to_skip(const at::Tensor& tensor) { return ScanTarget(tensor).skip; }

bool is_plain_elsewhere(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const Skip skip = reason_to_skip_strided(impl);
  const bool has_values =
      skip == Skip::kNone || (skip == Skip::kDevice && impl.layout() == c10::kStrided && impl.has_storage());
  return has_values && !tensor.is_nested() && !impl.has_symbolic_sizes_strides();
}

uint64_t encode_magnitude(double magnitude, c10::ScalarType dtype) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude));
  switch (dtype) {
    case c10::ScalarType::Double:
      return std::bit_cast<uint64_t>(magnitude);
    case c10::ScalarType::BFloat16:
      return bits >> 16;
    case c10::ScalarType::Half:
      return c10::Half(static_cast<float>(magnitude)).x;
    default:
      return bits;
  }
}

// A thread that flushes subnormal numbers converts them to 0; other threads compute with them.
static double decode_float(uint32_t word) {
  constexpr uint32_t kSmallestNormal = 0x00800000;
  return word < kSmallestNormal ? word * 0x1p-149 : std::bit_cast<float>(word);
}

double decode_magnitude(uint64_t word, c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return decode_float(static_cast<uint32_t>(word));
    case c10::ScalarType::Double:
      return std::bit_cast<double>(word);
    case c10::ScalarType::BFloat16:
      return decode_float(static_cast<uint32_t>(word) << 16);
    case c10::ScalarType::Half:
      return c10::Half(static_cast<uint16_t>(word), c10::Half::from_bits());
    default:
      return std::numeric_limits<double>::infinity();
  }
}

// Checks a tensor without gaps in memory.
static ScanResult check_dense(const c10::TensorImpl& impl, const FloatFormat& format) {
  const int64_t elements = impl.numel();
  if (elements == 0) return {Skip::kEmpty};
  const void* memory = impl.unsafe_storage().data();
  if (memory == nullptr) return {Skip::kUnallocated};
  const char* data = static_cast<const char*>(memory) + impl.storage_offset() * format.element_bytes();
  const uint64_t largest = max_magnitude_shared(data, elements * format.words_per_element, format);
  return {Skip::kNone, largest < format.infinity, elements * format.element_bytes(),
          decode_magnitude(largest, c10::typeMetaToScalarType(impl.dtype()))};
}

// Checks a tensor of any kind. Not inlined: few need it, and all would pay for its frame.
[[gnu::noinline]] static ScanResult check_any(const at::Tensor& tensor) {
  const ScanTarget target(tensor);
  if (target.skip != Skip::kNone) return {target.skip};
  const at::Tensor& values = target.select(tensor);
  uint64_t largest = 0;
  const bool finite = for_each_span(values, target.format, [&](const char* data, int64_t words) {
    largest = std::max(largest, max_magnitude_shared(data, words, target.format));
    return largest < target.format.infinity;
  });
  const int64_t bytes = values.numel() * target.format.element_bytes();
  return {Skip::kNone, finite, bytes, decode_magnitude(largest, tensor.scalar_type())};
}

[[gnu::flatten]] ScanResult check_finite(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const FloatFormat* format = float_format(tensor.scalar_type());
  if (format != nullptr && is_dense_on_host(impl) && impl.is_non_overlapping_and_dense()) [[likely]]
    return check_dense(impl, *format);
  return check_any(tensor);
}

double largest_finite(const at::Tensor& tensor) {
  const ScanTarget target(tensor);
  if (target.skip != Skip::kNone) return 0;
  uint64_t largest = 0;
  for_each_span(target.select(tensor), target.format, [&](const char* data, int64_t words) {
    largest = std::max(largest, max_finite_magnitude(data, words, target.format));
    return true;
  });
  return decode_magnitude(largest, tensor.scalar_type());
}

std::optional<std::vector<int64_t>> elements_beyond(const at::Tensor& tensor, double limit, size_t most) {
  constexpr int64_t kBlock = 4096;  // words that are read at once: few blocks have such an element
  const ScanTarget target(tensor);
  if (target.skip != Skip::kNone || !tensor.is_contiguous()) return std::nullopt;
  const FloatFormat& format = target.format;
  const uint64_t last = encode_magnitude(limit, tensor.scalar_type());
  const auto* base = static_cast<const char*>(tensor.const_data_ptr());
  const int64_t words = tensor.numel() * format.words_per_element;
  std::vector<int64_t> beyond;
  for (int64_t first = 0; first < words; first += kBlock) {
    const int64_t end = std::min(first + kBlock, words);
    if (max_magnitude(base + first * format.word_bytes, end - first, format) <= last) continue;
    for (int64_t word = first; word < end; ++word) {
      if (max_magnitude(base + word * format.word_bytes, 1, format) <= last) continue;
      const int64_t element = word / format.words_per_element;
      if (!beyond.empty() && beyond.back() == element) continue;
      if (beyond.size() == most) return std::nullopt;
      beyond.push_back(element);
    }
  }
  return beyond;
}

// The value of a tensor of one element, also in a thread that flushes subnormal numbers.
static double exact_value_of(const at::Tensor& tensor) {
  const auto with_sign = [](uint32_t word) {
    const double magnitude = decode_float(word & 0x7fffffff);
    return word >> 31 == 0 ? magnitude : -magnitude;
  };
  const void* const memory = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float:
      return with_sign(std::bit_cast<uint32_t>(*static_cast<const float*>(memory)));
    case c10::ScalarType::BFloat16:
      return with_sign(uint32_t{static_cast<const c10::BFloat16*>(memory)->x} << 16);
    default:
      return value_at(tensor, 0);
  }
}

std::optional<double> scalar_value(const at::Tensor& tensor) {
  if (ScanTarget(tensor).skip != Skip::kNone) return std::nullopt;
  const double value = exact_value_of(tensor);
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::optional<Smallest> smallest_of(const at::Tensor& tensor) {
  if (ScanTarget(tensor).skip != Skip::kNone) return std::nullopt;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Smallest smallest{kInfinity, kInfinity};
  const StridedView view(tensor.sizes(), tensor.strides());
  const bool finite = view.for_each_run([&](int64_t offset) {
    for (int64_t i = 0; i < view.run_length(); ++i) {
      const double x = value_at(tensor, offset + i * view.inner_stride());
      if (!std::isfinite(x)) return false;
      smallest.value = std::min(smallest.value, x);
      smallest.magnitude = std::min(smallest.magnitude, std::abs(x));
    }
    return true;
  });
  return finite ? std::optional(smallest) : std::nullopt;
}

namespace {

// A number is below zero if its sign bit and at least one other bit are set; -0 is not below zero. As an integer it is
// then negative, but not the minimum.
template <typename Word>
[[gnu::always_inline]] inline bool has_negative_word(const Word* words, int64_t count, int64_t stride) {
  constexpr Word kMinusZero = std::numeric_limits<Word>::min();
  Word is_any = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Word word = words[i * stride];
    is_any |= static_cast<Word>(word & (word == kMinusZero ? Word{0} : Word{-1}));
  }
  return is_any < 0;
}

template <typename Word>
[[gnu::always_inline]] inline bool has_negative_dense(const Word* words, int64_t count) {
  return has_negative_word(words, count, 1);
}

template <typename Word>
constexpr IsaDispatch<&has_negative_dense<Word>> kHasNegative;

template <typename Word>
bool has_negative_word(const at::Tensor& tensor) {
  const auto* words = static_cast<const Word*>(tensor.const_data_ptr());
  const StridedView view(tensor.sizes(), tensor.strides());
  return !view.for_each_run([&](int64_t offset) {
    return !(view.inner_stride() == 1 ? kHasNegative<Word>(words + offset, view.run_length())
                                      : has_negative_word(words + offset, view.run_length(), view.inner_stride()));
  });
}

}  // namespace

bool has_negative(const at::Tensor& tensor) {
  if (ScanTarget(tensor).skip != Skip::kNone) return false;
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
      return has_negative_word<int16_t>(tensor);
    case c10::ScalarType::Float:
      return has_negative_word<int32_t>(tensor);
    case c10::ScalarType::Double:
      return has_negative_word<int64_t>(tensor);
    default:
      return false;
  }
}

NonfiniteKinds TensorStats::kinds() const {
  NonfiniteKinds kinds;
  if (tally.nan > 0) kinds |= NonfiniteKinds::only_nan();
  if (tally.posinf > 0) kinds |= NonfiniteKinds::only_posinf();
  if (tally.neginf > 0) kinds |= NonfiniteKinds::only_neginf();
  return kinds;
}

NonfiniteKinds kinds_of(const at::Tensor& tensor) {
  const ScanTarget target(tensor);
  NonfiniteKinds kinds;
  if (target.skip != Skip::kNone) return kinds;
  for_each_span(target.select(tensor), target.format, [&](const char* data, int64_t words) {
    kinds |= kinds_in(data, words, target.format);
    return true;
  });
  return kinds;
}

Counts counts_of(const at::Tensor& tensor) {
  const ScanTarget target(tensor);
  Counts counts;
  if (target.skip != Skip::kNone) return counts;
  for_each_span(target.select(tensor), target.format, [&](const char* data, int64_t words) {
    counts += count_words(data, words, target.format);
    return true;
  });
  return counts;
}

TensorStats compute_stats(const at::Tensor& tensor) {
  ++work_counters().stats;
  TensorStats stats;
  const ScanTarget target(tensor);
  if (target.skip != Skip::kNone) return stats;
  const at::Tensor& values = target.select(tensor);
  const int parts = target.format.words_per_element;
  switch (values.scalar_type()) {
    case c10::ScalarType::Half:
    case c10::ScalarType::ComplexHalf:
      collect_strided<c10::Half>(values, parts, stats);
      break;
    case c10::ScalarType::BFloat16:
      collect_strided<c10::BFloat16>(values, parts, stats);
      break;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      collect_strided<double>(values, parts, stats);
      break;
    case c10::ScalarType::Float8_e5m2:
      collect_strided<c10::Float8_e5m2>(values, parts, stats);
      break;
    case c10::ScalarType::Float8_e4m3fn:
      collect_strided<c10::Float8_e4m3fn>(values, parts, stats);
      break;
    case c10::ScalarType::Float8_e5m2fnuz:
      collect_strided<c10::Float8_e5m2fnuz>(values, parts, stats);
      break;
    case c10::ScalarType::Float8_e4m3fnuz:
      collect_strided<c10::Float8_e4m3fnuz>(values, parts, stats);
      break;
    case c10::ScalarType::Float8_e8m0fnu:
      collect_strided<c10::Float8_e8m0fnu>(values, parts, stats);
      break;
    default:
      collect_strided<float>(values, parts, stats);
  }
  return stats;
}

Tally integer_range(const at::Tensor& tensor) {
  TensorStats stats;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const bool is_readable = reason_to_skip_strided(impl) == Skip::kNone && is_plain(tensor) && impl.numel() > 0 &&
                           impl.unsafe_storage().data() != nullptr;
  if (!is_readable) return {};
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Bool:
    case c10::ScalarType::Byte:
      collect_strided<uint8_t>(tensor, 1, stats);
      break;
    case c10::ScalarType::Char:
      collect_strided<int8_t>(tensor, 1, stats);
      break;
    case c10::ScalarType::Short:
      collect_strided<int16_t>(tensor, 1, stats);
      break;
    case c10::ScalarType::Int:
      collect_strided<int32_t>(tensor, 1, stats);
      break;
    case c10::ScalarType::Long:
      collect_strided<int64_t>(tensor, 1, stats);
      break;
    default:
      return {};
  }
  return stats.tally;
}

Tally tally_of(double number) {
  TensorStats stats;
  StatsCollector(stats).element(&number, 1);
  return stats.tally;
}

}  // namespace torchnan
