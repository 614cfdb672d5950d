#include "device/operator_scan.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include "base/strict_floats.h"
#include "device/kernel_scan.h"
#include "device/keys_above.h"

namespace torchnan {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();  // of the alarm: the device has no unsigned numbers

int64_t as_signed(uint64_t word) { return static_cast<int64_t>(std::min<uint64_t>(word, kNone)); }

// The dtype whose numbers a norm reads, and the integer of the same size. Float8 has no norms.
struct WordType {
  c10::ScalarType number;
  c10::ScalarType word;
  bool has_norm;
};

WordType type_of(FloatEncoding encoding) {
  switch (encoding) {
    case FloatEncoding::kFloat16:
      return {at::kHalf, at::kShort, true};
    case FloatEncoding::kBFloat16:
      return {at::kBFloat16, at::kShort, true};
    case FloatEncoding::kFloat32:
      return {at::kFloat, at::kInt, true};
    case FloatEncoding::kFloat64:
      return {at::kDouble, at::kLong, true};
    default:
      return {at::kByte, at::kByte, false};
  }
}

// Runs on a stream, as nobody's operations.
class OnStreamUnseen {
 public:
  explicit OnStreamUnseen(c10::Stream stream) : on_stream_(stream), unseen_(kKeysAbove) {}

 private:
  const c10::StreamGuard on_stream_;
  const c10::impl::ExcludeDispatchKeyGuard unseen_;
};

// Returns the words of an entry as a tensor that does not keep their memory: the order of the stream does. (A second
// reference to a storage that Python holds takes the GIL.)
at::Tensor words_in(const c10::StorageImpl* of, const cuda::Entry& entry, at::IntArrayRef sizes,
                    at::IntArrayRef strides, c10::Device device) {
  const WordType type = type_of(entry.encoding);
  c10::Storage storage(c10::Storage::use_byte_size_t(), of->nbytes(),
                       c10::DataPtr(const_cast<void*>(of->data()), device));
  const int64_t bytes = static_cast<const char*>(entry.data) - static_cast<const char*>(of->data());
  const c10::DispatchKeySet keys(c10::computeDispatchKey(std::nullopt, c10::kStrided, device));
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, c10::scalarTypeToTypeMeta(type.number));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides,
                                                      bytes / static_cast<int64_t>(c10::elementSize(type.number)));
  return tensor;
}

// Returns the largest magnitudes of tensors of one encoding, as one tensor of int64. (The bias only matters where a NaN
// is minus zero.)
at::Tensor magnitudes_of(const std::vector<at::Tensor>& tensors, FloatEncoding encoding) {
  const EncodingTraits& traits = traits_of(encoding);
  const WordType type = type_of(encoding);
  const auto mask = static_cast<int64_t>(traits.mask);
  if (type.has_norm) {
    const std::vector<at::Tensor> norms = at::_foreach_norm(tensors, std::numeric_limits<double>::infinity());
    return at::stack(norms).view(type.word).to(at::kLong).bitwise_and(mask);
  }
  std::vector<at::Tensor> largest;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor word = traits.bias == 0 ? tensor : tensor.add(static_cast<int64_t>(traits.bias));
    largest.push_back(word.bitwise_and(mask).amax());
  }
  return at::stack(largest).to(at::kLong);
}

// Not every release of PyTorch asks its devices for this, and not every device answers.
template <typename Streams>
bool is_captured(const Streams& streams, c10::Stream stream) {
  if constexpr (requires { streams.isStreamCapturing(stream); }) return streams.isStreamCapturing(stream);
  return false;
}

bool can_tell_captures(const c10::impl::DeviceGuardImplInterface& streams, c10::Stream stream) {
  try {
    is_captured(streams, stream);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// Not every device has more than one stream.
c10::Stream separate_stream(const c10::impl::DeviceGuardImplInterface& streams, c10::Device device) {
  try {
    return streams.getNewStream(device);
  } catch (const c10::Error&) {
    return streams.getDefaultStream(device);
  }
}

at::TensorOptions on_host() { return at::TensorOptions(at::kLong).device(at::kCPU); }

// The device copies to pinned memory without the host. Not every device has any.
at::Tensor pinned(int64_t count) {
  try {
    return at::empty({count}, on_host().pinned_memory(true));
  } catch (const c10::Error&) {
    return at::empty({count}, on_host());
  }
}

at::Tensor numbers(const std::vector<int64_t>& given, c10::Device device) {
  const at::Tensor made = pinned(static_cast<int64_t>(given.size()));
  std::copy(given.begin(), given.end(), made.mutable_data_ptr<int64_t>());
  return made.to(device, /*non_blocking=*/true);
}

}  // namespace

// Scans a number, so that a device without one of the operations has no scanner instead of failing in every call.
OperatorScan::OperatorScan(c10::Device device)
    : device_(device),
      streams_(*c10::impl::getDeviceGuardImpl(device.type())),
      own_stream_(separate_stream(streams_, device)),
      can_tell_captures_(can_tell_captures(streams_, own_stream_)) {
  const OnStreamUnseen here(own_stream_);
  try {
    slots_ = at::zeros({cuda::kSlots}, on_host().device(device));
    const at::Tensor number = at::zeros({1}, on_host().device(device).dtype(at::kFloat));
    Scanned scanned;
    scanned.add(0, cuda::kNoAlarm);
    scanned.magnitudes.push_back(magnitudes_of({number}, FloatEncoding::kFloat32));
    publish(scanned, own_stream_);
  } catch (const c10::OutOfMemoryError& error) {
    throw OutOfMemory(error.what_without_backtrace());
  }
  streams_.synchronizeStream(own_stream_);
}

OperatorScan::~OperatorScan() {
  for (std::atomic<StreamWords*>& words : words_) delete words.exchange(nullptr);
}

// The number of the stream: not every device has native handles. That of the default stream may be 0.
void* OperatorScan::handle_of(c10::Stream stream) const { return reinterpret_cast<void*>(stream.id()); }

c10::Stream OperatorScan::stream_of(void* handle) const {
  return c10::Stream(c10::Stream::UNSAFE, device_, reinterpret_cast<c10::StreamId>(handle));
}

bool OperatorScan::is_capturing(void* stream) const {
  return can_tell_captures_ && is_captured(streams_, stream_of(stream));
}

bool OperatorScan::answers() const {
  try {
    streams_.queryStream(own_stream_);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

OperatorScan::StreamWords& OperatorScan::words_of(c10::Stream stream) {
  for (std::atomic<StreamWords*>& slot : words_) {
    StreamWords* const words = slot.load(std::memory_order_acquire);
    if (words != nullptr && words->stream == stream) return *words;
    if (words != nullptr) continue;
    auto made = std::make_unique<StreamWords>(StreamWords{stream, {}, pinned(2)});
    std::fill_n(made->on_host.mutable_data_ptr<int64_t>(), 2, kNone);
    made->on_host.mutable_data_ptr<int64_t>()[1] = resets_;
    made->on_device = at::full({2}, kNone, on_host().device(device_));
    made->on_device.select(0, 1).fill_(resets_);
    slot.store(made.get(), std::memory_order_release);
    return *made.release();
  }
  throw std::runtime_error("more streams are in use than can be scanned");
}

void OperatorScan::scan(const cuda::Table& table, const c10::StorageImpl* const* storages, uint64_t first,
                        void* stream) {
  const OnStreamUnseen here(stream_of(stream));
  Scanned scanned;
  for (size_t encoding = 0; encoding < static_cast<size_t>(FloatEncoding::kCount); ++encoding) {
    std::vector<at::Tensor> tensors;
    for (uint32_t i = 0; i < table.entries; ++i) {
      const cuda::Entry& entry = table.entry[i];
      if (entry.encoding != static_cast<FloatEncoding>(encoding)) continue;
      tensors.push_back(words_in(storages[i], entry, {static_cast<int64_t>(entry.words)}, {1}, device_));
      scanned.add(first + entry.event_offset, entry.limit);
    }
    if (!tensors.empty()) scanned.magnitudes.push_back(magnitudes_of(tensors, static_cast<FloatEncoding>(encoding)));
  }
  publish(scanned, stream_of(stream));
}

void OperatorScan::scan(const cuda::StridedEntry& strided, const c10::StorageImpl* storage, uint64_t number,
                        void* stream) {
  const OnStreamUnseen here(stream_of(stream));
  c10::SmallVector<int64_t, cuda::kMaxDims + 1> sizes, strides;
  for (uint32_t d = 0; d < strided.dims; ++d) {
    sizes.push_back(static_cast<int64_t>(strided.size[d]));
    strides.push_back(strided.stride[d]);
  }
  sizes.push_back(static_cast<int64_t>(strided.entry.words));
  strides.push_back(static_cast<int64_t>(strided.run_stride));
  Scanned scanned;
  scanned.add(number, strided.entry.limit);
  const at::Tensor values = words_in(storage, strided.entry, sizes, strides, device_);
  scanned.magnitudes.push_back(magnitudes_of({values}, strided.entry.encoding));
  publish(scanned, stream_of(stream));
}

void OperatorScan::Scanned::add(uint64_t number, uint64_t limit) {
  given.insert(given.end(),
               {static_cast<int64_t>(number % cuda::kSlots), static_cast<int64_t>(number), as_signed(limit)});
}

// Writes the slots, and lowers the alarm of the stream.
void OperatorScan::publish(const Scanned& scanned, c10::Stream stream) {
  if (scanned.magnitudes.empty()) return;
  const at::Tensor magnitudes = at::cat(scanned.magnitudes);
  const at::Tensor given = numbers(scanned.given, device_).view({-1, 3});
  slots_.index_copy_(0, given.select(1, 0).contiguous(), magnitudes);
  const at::Tensor is_bad = magnitudes.gt(given.select(1, 2));
  const at::Tensor first = at::where(is_bad, given.select(1, 1), kNone).amin();
  StreamWords& words = words_of(stream);
  at::Tensor alarm = words.on_device.select(0, 0);
  at::minimum_out(alarm, alarm, first);
  words.on_host.copy_(words.on_device, /*non_blocking=*/true);
}

void OperatorScan::record_mark(void* stream, void** mark) {
  if (*mark == nullptr) *mark = new c10::Event(device_.type());
  static_cast<c10::Event*>(*mark)->record(stream_of(stream));
}

void OperatorScan::follow_mark(void* mark, void* stream) { static_cast<c10::Event*>(mark)->block(stream_of(stream)); }

void OperatorScan::clear(uint32_t first_slot, uint32_t slots, void* stream) {
  const OnStreamUnseen here(stream_of(stream));
  slots_.narrow(0, first_slot, slots).zero_();
}

// The alarms of other streams are higher, and were handled with it.
void OperatorScan::reset_alarm(uint64_t handled) {
  ++resets_;
  for (std::atomic<StreamWords*>& slot : words_) {
    StreamWords* const words = slot.load(std::memory_order_acquire);
    if (words == nullptr) break;
    const OnStreamUnseen here(words->stream);
    at::Tensor alarm = words->on_device.select(0, 0);
    alarm.masked_fill_(alarm.ge(as_signed(handled)), kNone);
    words->on_device.select(0, 1).add_(1);
    words->on_host.copy_(words->on_device, /*non_blocking=*/true);
  }
}

void OperatorScan::read(uint32_t first_slot, uint32_t slots, cuda::Slot* into) {
  const OnStreamUnseen here(own_stream_);
  if (slots == 0) return streams_.synchronizeStream(own_stream_);
  const at::Tensor read = slots_.narrow(0, first_slot, slots).to(at::kCPU);
  std::memcpy(into, read.const_data_ptr<int64_t>(), slots * sizeof(cuda::Slot));
}

uint64_t OperatorScan::alarm(uint64_t resets) const {
  int64_t lowest = kNone;
  for (const std::atomic<StreamWords*>& slot : words_) {
    const StreamWords* const words = slot.load(std::memory_order_acquire);
    if (words == nullptr) break;
    const auto* const on_host = words->on_host.const_data_ptr<int64_t>();
    if (__atomic_load_n(on_host + 1, __ATOMIC_ACQUIRE) != static_cast<int64_t>(resets)) continue;  // not yet reset
    lowest = std::min(lowest, __atomic_load_n(on_host, __ATOMIC_ACQUIRE));
  }
  return lowest == kNone ? cuda::kNoAlarm : static_cast<uint64_t>(lowest);
}

}  // namespace torchnan
