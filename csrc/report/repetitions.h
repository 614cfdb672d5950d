// Finds repeated rows in a list, so that they are shown once.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <torchnan/export.h>

namespace torchnan {

// `length` rows from `begin` on, which repeat `times` times.
struct Repetition {
  size_t begin = 0;
  size_t length = 1;
  size_t times = 1;
};

// Returns the rows in parts of up to eight rows each. Chooses the parts that shorten the list most.
TORCHNAN_API std::vector<Repetition> repetitions(const std::vector<std::string>& rows);

}  // namespace torchnan
