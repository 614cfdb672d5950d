// Headroom: how close the results of the forward pass come to the end of the range of their dtype.
#pragma once

#include <optional>
#include <string>

#include <torchnan/export.h>

namespace torchnan {

// The headroom of one module and dtype, or of one operator and dtype if no module is known.
struct TORCHNAN_API Headroom {
  std::optional<std::string> module;  // "layers.11.mlp.down_proj"
  std::string op;                     // the operator with the largest result: "aten::addmm"
  std::string dtype;                  // "float16", "bfloat16" or "float32"
  double absmax = 0;                  // the largest |x| that was scanned; a bound if none was
  bool exact = false;                 // whether absmax was measured
  double bound = 0;                   // no |x| is larger; above absmax where results were proved, not scanned
  double limit = 0;                   // the largest number of the dtype

  double used() const { return absmax / limit; }
};

}  // namespace torchnan
