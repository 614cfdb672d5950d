// The known facts about a result before it is scanned.
#pragma once

#include <torchnan/bounds.h>

#include "check/bounds/moments.h"

namespace torchnan {

struct Prediction {
  Bound bound;                            // of the values if they are finite; unknown where they may not be
  bool is_proved = false;                 // finite by this bound, without a scan
  bool is_rescanned = false;              // scanned all the same, to test the rule
  const Moments::Claim* claim = nullptr;  // the claim from an optimizer's history; null if there is none
};

}  // namespace torchnan
