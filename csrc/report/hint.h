// Hints: the likely cause in one factual sentence, by rules over the statistics of a finding.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <torchnan/finding.h>

namespace torchnan {

struct Hint {
  std::string text;                 // empty if no rule fits
  std::optional<size_t> suspect{};  // which of the inputs it is about
};

// Returns a hint, empty if no rule fits.
Hint hint_for(const Finding& finding);

// Returns the hint for a value whose origin is older than the recorded operations on devices.
std::string hint_for_evicted_origin();

}  // namespace torchnan
