// Names come from the program and may be of any length: a finding is kept, and written, with what fits.
#pragma once

#include <cstddef>

#include <torchnan/finding.h>

namespace torchnan {

struct Length {
  size_t bytes;  // of a string; what is longer loses its middle, with a mark
  size_t items;  // of a list, of which the first are kept; of the lineage the last, too
};

inline constexpr Length kKeptLength{1000, 64};

void truncate(Finding& finding, const Length& most);

}  // namespace torchnan
