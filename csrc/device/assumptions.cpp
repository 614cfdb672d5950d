#include "device/assumptions.h"

#include <c10/util/hash.h>

#include "check/bounds/dtype_range.h"
#include "check/operators/op_plan.h"

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

// In a parameter every infinity is harm, and those of a compiled region lead to its replay. A gradient must keep its
// bound for the steps of the optimizer.
bool Assumptions::may_expect_infinity(const Event& event) {
  return event.type == EventType::kResult && event.tensor.covers && !event.tensor.is_parameter &&
         event.node == nullptr && !event.plan->writes_in_place() && event.region == nullptr;
}

void Assumptions::count_harmless(const Event& event) {
  if (!may_expect_infinity(event)) return;
  if (harmless_.size() == kMaxCalls) harmless_.clear();
  ++harmless_[key_of(event)];
}

}  // namespace torchnan
