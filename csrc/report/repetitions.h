// Finds what is repeated in a list of rows, so that it is shown once.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <torchnan/export.h>

namespace torchnan {

// `length` rows from `begin` on, that follow each other so many times.
struct Repetition {
  size_t begin = 0;
  size_t length = 1;
  size_t times = 1;
};

// Returns the rows in parts, each of up to eight rows. A part is the one that leaves most rows out.
TORCHNAN_API std::vector<Repetition> repetitions(const std::vector<std::string>& rows);

}  // namespace torchnan
