// What to look for, and what to do about it. The names are those of the Python keywords.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torchnan/export.h>
#include <torchnan/finding.h>

namespace torchnan {

// What a finding of level error does.
enum class Action {
  kRaise,  // throw NonFiniteError
  kWarn,   // print the report once per origin, go on
  kLog,    // keep it (and write it to the log file, if there is one), go on
};

// When a non-finite value is judged.
enum class When {
  kHarm,    // where it does harm: no false alarm
  kOrigin,  // at once, at the operation that made it: for a debugger
};

struct TORCHNAN_API Options {
  Action action = Action::kRaise;
  std::function<void(const Finding&)> callback;  // if set: called instead of the action
  bool check_nan = true;
  bool check_inf = true;
  When when = When::kHarm;
  bool backward = true;               // session the backward pass
  bool stacks = true;                 // keep the forward source line for the backward pass
  std::vector<std::string> skip_ops;  // "aten::log", "log" or globs such as "aten::_foreach_*": never judged
  bool exact = false;                 // read every result, whether or not it is known to be finite
  int64_t sample = 0;                 // N > 0: read what is known to be finite too, every result once in N steps
  bool headroom = false;              // keep the largest |x| of each call site, for Detector::headroom()
  int64_t max_findings = 100;         // kept; the rest is counted
  std::string log;                    // path of a JSON-lines file, created owner-only; empty: none

  // One message for each value that cannot be used; empty if all is well.
  std::vector<std::string> validate() const;
};

}  // namespace torchnan
