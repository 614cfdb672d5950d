// Limits the length of a finding: names come from user code and may be of any length.
#pragma once

#include <cstddef>

#include <torchnan/finding.h>

namespace torchnan {

struct Length {
  size_t bytes;  // for a string; a longer one loses its middle, which is replaced by a mark
  size_t items;  // for a list, of which the first are kept; of the lineage and of a stack also the last
};

inline constexpr Length kKeptLength{1000, 64};

void truncate(Finding& finding, const Length& limit);

// Keeps the first steps and the last one, with room for the note about those left out. The note stands for at least
// two, because a single step would fit in its place.
void shorten_lineage(Finding& finding, size_t max_entries);

}  // namespace torchnan
