// Events: the operations on device memory, in the order in which the host issued them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>

#include <torchnan/bounds.h>
#include <torchnan/export.h>
#include <torchnan/finding.h>

#include "check/scan/nonfinite_kinds.h"
#include "base/runtime.h"
#include "origin/provenance.h"
#include "device/session_number.h"

namespace torchnan {

class Scanner;
struct ReplayedRegion;

// Numbers of events begin at 1 and grow with every event of the process; 0 stands for none.
using EventNumber = uint64_t;

// Bytes of a storage.
struct ByteSpan {
  int64_t begin = 0;
  int64_t end = 0;

  bool contains(const ByteSpan& other) const { return begin <= other.begin && other.end <= end; }
  bool overlaps(const ByteSpan& other) const { return begin < other.end && other.begin < end; }
};

// A tensor at the time of the event, without its shape.
struct TensorFacts {
  const c10::StorageImpl* storage = nullptr;
  c10::DispatchKeySet keys;
  const void* memory = nullptr;  // address of the storage
  int64_t offset = 0;            // elements
  c10::Device device{c10::DeviceType::CPU};
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool is_parameter = false;
  bool has_shape = false;
  bool covers = true;  // whether the tensor covers all of the storage
  uint8_t dims = 0;
};

// A tensor at the time of the event; does not keep its memory alive. Copies only as many sizes as there are, because
// one is made for every event.
class TORCHNAN_API TensorSnapshot : public TensorFacts {
 public:
  static constexpr size_t kMaxDims = 8;  // the shape of a tensor with more is not kept

  TensorSnapshot() = default;
  explicit TensorSnapshot(const at::Tensor& tensor) { *this = tensor; }
  TensorSnapshot& operator=(const at::Tensor& tensor);
  TensorSnapshot(const TensorSnapshot& other) : TensorFacts(other) { copy_shape(other); }
  TensorSnapshot& operator=(const TensorSnapshot& other) {
    TensorFacts::operator=(other);
    copy_shape(other);
    return *this;
  }

  c10::IntArrayRef sizes() const { return {shape_.data(), dims}; }
  c10::IntArrayRef strides() const { return {shape_.data() + dims, dims}; }

  // Returns the bytes of the storage that the tensor reaches over; all of them if its shape is not kept.
  ByteSpan span() const;
  bool fills_span() const;                               // without gaps
  bool has_place_of(const TensorSnapshot& other) const;  // the same elements of the storage

 private:
  void copy_shape(const TensorSnapshot& other) {
    for (size_t i = 0; i < size_t{2} * dims; ++i) shape_[i] = other.shape_[i];
  }

  std::array<int64_t, 2 * kMaxDims> shape_;  // sizes, then strides; the rest is not initialized
};

// A tensor that an operation reads.
struct EventInput {
  EventNumber event = 0;
  const c10::StorageImpl* storage = nullptr;
  int32_t element = -1;   // index in a list
  uint16_t argument = 0;  // index in the operator's schema
  bool overwritten = false;
  bool is_parameter = false;
  bool is_alone = false;  // whether the event has written or scanned all of the tensor
};

// The call site and session of an operation: the same for all events of a call. Constructed without a lock, because a
// new call site and the name of a Python node need the GIL.
struct EventContext {
  const OpPlan* plan = nullptr;
  SessionNumber session;

  // As in Site.
  SiteId live = 0;
  SiteId forward = 0;
  const std::string* node = nullptr;  // never freed; null outside the backward pass
  uint64_t node_execution_id = 0;
  bool grad_mode = false;
  uint64_t thread = 0;
  int64_t step = 0;

  EventContext() = default;
  // Describes the current location of the calling thread. `noted`: the call site of the operation if it was looked up,
  // else 0.
  EventContext(const OpPlan& of_plan, DetectionSession& in_session, uint64_t on_thread, SiteId noted = 0);
};

enum class EventType : uint8_t {
  kResult,        // an operation has written it
  kArgument,      // an operation reads it, and no write was observed
  kAllocated,     // allocated memory that is not written yet
  kPending,       // a collective has been started that will write it
  kUse,           // an operation reads it, and writes nothing that can be scanned
  kHarm,          // it does harm here if the values of the input are non-finite
  kContinuation,  // inputs that did not fit into an event
};

// The facts that differ for every event, besides the tensor and the inputs.
struct EventFacts {
  EventNumber number = 0;
  EventType type = EventType::kResult;
  HarmKind harm = HarmKind::kNone;
  Scanner* scanner = nullptr;     // the scanner that scans it; null if it is not scanned
  bool is_proved = false;         // finite, by a bound
  bool is_rescanned = false;      // proved, and scanned all the same
  bool expects_infinity = false;  // an infinity raises no alarm
  bool has_waited = false;        // its scan has waited for a batch
  bool begins_anew = false;       // others may have written to the rest of the storage before it
  int64_t output = 0;

  // Intentional infinities: numbers that the operation received, or values of a mask among its inputs.
  NonfiniteKinds intended;
  // The same for its inputs and numbers, whatever the operation makes of them; NaN if one of the numbers is NaN.
  NonfiniteKinds intended_of_inputs;

  // an assumed upper bound of the written |x|; the scan checks it
  double assumed = std::numeric_limits<double>::infinity();
  Bound bound;  // proved or assumed, of all that its memory holds

  // the event before it, if needed: the one that wrote or scanned the rest of the storage if this event does not cover
  // it, or the one that handed it out
  EventNumber previous = 0;
  uint8_t inputs = 0;
  EventNumber more = 0;                     // the next event with more inputs, of kind kContinuation
  std::shared_ptr<const Provenance> given;  // causes that it received on the host
  // the compiled region that made the result, or that was replayed; null outside of regions
  std::shared_ptr<const ReplayedRegion> region;
};

struct Event : EventContext, EventFacts {
  static constexpr size_t kMaxInputs = 8;  // per event; longer lists use additional events

  TensorSnapshot tensor;
  // the first `inputs` are valid; the others may be left from an earlier event
  std::array<EventInput, kMaxInputs> input{};

  Site site() const;

  // Masked words: the largest magnitude that is intended, and the largest that does not raise the alarm.
  uint64_t max_intended() const;
  uint64_t limit() const;
};

// Whether the scan has seen the values of the event.
inline bool is_seen(const Event* event) {
  return event != nullptr && event->type != EventType::kAllocated && event->type != EventType::kPending &&
         event->type != EventType::kContinuation;
}

}  // namespace torchnan
