// Hints: the likely cause in one factual sentence, by rules over the statistics of a finding.
#pragma once

#include <string>

#include <torchnan/finding.h>

namespace torchnan {

// Returns the hint, or an empty string if no rule applies.
std::string hint_for(const Finding& finding);

// Returns the hint for a value received from another rank.
std::string hint_for_collective(const std::string& collective);

}  // namespace torchnan
