// How near the results of the forward pass have come to the end of their dtype's range.
#pragma once

#include <optional>
#include <string>

#include <torchnan/export.h>

namespace torchnan {

// Of one module and dtype; of one operator and dtype where no module is known.
struct TORCHNAN_API Headroom {
  std::optional<std::string> module;  // "layers.11.mlp.down_proj"
  std::string op;                     // that made the largest: "aten::addmm"
  std::string dtype;                  // "float16", "bfloat16" or "float32"
  double absmax = 0;                  // the largest |x| that was read; if nothing was, a bound of all
  bool exact = false;                 // something was read
  double bound = 0;                   // no |x| is above it: more than absmax where something was proved, not read
  double limit = 0;                   // the dtype's largest number

  double used() const { return absmax / limit; }
};

}  // namespace torchnan
