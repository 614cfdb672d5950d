#include "device/assumptions.h"

#include <c10/util/hash.h>

#include "bounds/dtype_range.h"

namespace torchnan {
namespace {

constexpr double kMargin = 0x1p6;      // room for values that grow from step to step
constexpr size_t kMaxCalls = 1 << 14;  // a limit for programs that generate code as they run

}  // namespace

// Identifies the call in the program: the same from step to step.
uint64_t Assumptions::key_of(const Event& event) {
  return c10::get_hash(event.plan, event.live, event.forward, event.node, event.output, event.tensor.dtype);
}

void Assumptions::raise(const Event& event, double max_abs) {
  if (raised_.size() == kMaxCalls) raised_.clear();
  const double assumed = max_abs * kMargin;
  const bool is_of_use = assumed < range_of(event.tensor.dtype).limit;
  raised_[key_of(event)] = is_of_use ? assumed : std::numeric_limits<double>::infinity();
}

}  // namespace torchnan
