// What happened to memory on a device, in the order in which the host asked for it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>

#include <torchnan/bounds.h>
#include <torchnan/finding.h>

#include "scan/nonfinite_kinds.h"
#include "host/host_runtime.h"
#include "origin/provenance.h"
#include "device/session_number.h"

namespace torchnan {

class Scanner;

// Numbers of events begin at 1 and grow with every event of the process; 0 stands for none.
using EventNumber = uint64_t;

// A tensor as it was then, but for its shape.
struct TensorFacts {
  const c10::StorageImpl* storage = nullptr;
  c10::DispatchKeySet keys;
  const void* memory = nullptr;  // of the storage
  int64_t offset = 0;            // elements
  c10::Device device{c10::DeviceType::CPU};
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool is_parameter = false;
  bool has_shape = false;
  bool covers = true;  // all of the storage
  uint8_t dims = 0;
};

// A tensor as it was then, without keeping its memory alive. Of the shape no more is copied than there is: one is made
// for every event.
class TensorSnapshot : public TensorFacts {
 public:
  static constexpr size_t kMaxDims = 8;  // of tensors with more the shape is not kept

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

 private:
  void copy_shape(const TensorSnapshot& other) {
    for (size_t i = 0; i < size_t{2} * dims; ++i) shape_[i] = other.shape_[i];
  }

  std::array<int64_t, 2 * kMaxDims> shape_;  // sizes, then strides; the rest is not initialized
};

// A tensor that an operation has read.
struct EventInput {
  EventNumber event = 0;
  const c10::StorageImpl* storage = nullptr;
  int32_t element = -1;   // of a list
  uint16_t argument = 0;  // of the operator's schema
  bool overwritten = false;
  bool is_parameter = false;
};

// Where and for whom an operation runs: the same for all events of a call. Made without a lock, as a new call site and
// the name of a node of Python's need the GIL.
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
  // Describes where the calling thread is.
  EventContext(const OpPlan& of_plan, DetectionSession& in_session, uint64_t on_thread);
};

enum class EventType : uint8_t {
  kResult,        // an operation has written it
  kArgument,      // an operation reads it, and nobody has been seen writing it
  kAllocated,     // memory that nobody has written yet
  kPending,       // a collective has been started that will write it
  kUse,           // an operation reads it, and writes nothing that could be scanned
  kHarm,          // it does harm here if what the input holds is not finite
  kContinuation,  // inputs that an event had no room for
};

// What is new with every event, but for the tensor and the inputs.
struct EventFacts {
  EventNumber number = 0;
  EventType type = EventType::kResult;
  HarmKind harm = HarmKind::kNone;
  Scanner* scanner = nullptr;  // which scans it; null if none does
  bool is_proved = false;      // finite, by a bound
  bool is_rescanned = false;   // proved, and scanned all the same
  int64_t output = 0;

  // Infinities that are there on purpose: numbers that it was given, or values of a mask among its inputs.
  NonfiniteKinds intended;
  // The same of its inputs and numbers, whatever it makes of them; NaN if one of the numbers is.
  NonfiniteKinds intended_of_inputs;

  double assumed = std::numeric_limits<double>::infinity();  // that nothing it has written is above; the scan checks it
  Bound bound;                                               // proved or assumed, of all that its memory holds

  EventNumber previous = 0;  // the one before it, where that matters: whose values the rest of the storage holds, if it
                             // does not cover that, or which handed it out
  uint8_t inputs = 0;
  EventNumber more = 0;                     // of kind kContinuation, and so on
  std::shared_ptr<const Provenance> given;  // of what it was given on the host
};

struct Event : EventContext, EventFacts {
  static constexpr size_t kMaxInputs = 8;  // in one event; those of longer lists are in events of their own

  TensorSnapshot tensor;
  std::array<EventInput, kMaxInputs> input{};  // the first `inputs`; the rest may be of an event before

  Site site() const;

  // Masked words: the largest magnitude that is intended, and the largest that does not raise the alarm.
  uint64_t max_intended() const;
  uint64_t limit() const;
};

// Whether the values are there once the event has happened, and somebody looks at them.
inline bool is_seen(const Event* event) {
  return event != nullptr && event->type != EventType::kAllocated && event->type != EventType::kPending &&
         event->type != EventType::kContinuation;
}

}  // namespace torchnan
