// Limits the length of a finding: names come from user code and may be of any length.
#pragma once

#include <cstddef>

#include <torchnan/finding.h>

namespace torchnan {

struct Length {
  size_t bytes;  // of a string; a longer one loses its middle, which a mark replaces
  size_t items;  // of a list, of which the first are kept; of the lineage also the last
};

inline constexpr Length kKeptLength{1000, 64};

void truncate(Finding& finding, const Length& limit);

// Keeps the first steps and the last one, with a place for the note that others are left out: of these there are two at
// least, because one alone would fit there itself.
void shorten_lineage(Finding& finding, size_t places);

}  // namespace torchnan
