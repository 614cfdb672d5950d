// The compiled region that a thread replays. Origins that the replay finds are reported as inside of it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torchnan/export.h>
#include <torchnan/finding.h>

#include "check/scan/nonfinite_kinds.h"

namespace torchnan {

class RegionMark;

// A kernel of the generated code that wrote non-finite values, and their kinds.
struct BadKernel {
  std::string name;
  NonfiniteKinds kinds;
};

struct ReplayedRegion {
  CompiledRegion facts;                // without the kernel
  std::vector<BadKernel> kernels{};    // in the order that they ran in
  bool is_backward = false;            // it is a backward pass, although no autograd engine runs it
  bool replays_gradients = false;      // its backward pass is replayed, after its forward pass
  int64_t step = 0;                    // the step of a call that is replayed later; 0 if it is the current one
  std::shared_ptr<RegionMark> mark{};  // set if a device finds that it made a bad value; null if no call is held

  bool is_in_backward_pass() const { return is_backward || replays_gradients; }

  // Whether only its border is known: it is not replayed.
  bool is_border() const { return facts.replay == Replay::kNone; }
};

// Returns the region that this thread replays; null if it replays none.
TORCHNAN_API const std::shared_ptr<const ReplayedRegion>& replayed_region() noexcept;
TORCHNAN_API void set_replayed_region(std::shared_ptr<const ReplayedRegion> region) noexcept;

// Returns the kernel that probably made values of these kinds by this operation: the first whose name contains the
// operation, preferring one that wrote such kinds. Empty if none wrote non-finite values.
std::string kernel_of(const ReplayedRegion& region, std::string_view op, NonfiniteKinds kinds);

}  // namespace torchnan
