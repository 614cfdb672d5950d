// Why it happened, in one factual sentence, by rules over what was measured. No rule fits: no sentence.
#pragma once

#include <string>

#include <torchnan/finding.h>

namespace torchnan {

std::string hint_for(const Finding& finding);

// Of a value that came from another rank.
std::string hint_for_collective(const std::string& collective);

}  // namespace torchnan
