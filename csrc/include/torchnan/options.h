// The options of a detection session. They have the names of the Python keywords; detection/option_fields.h has what
// each means and accepts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torchnan/export.h>
#include <torchnan/finding.h>

namespace torchnan {

// The action on a finding of level error.
enum class Action {
  kRaise,       // throw NonFiniteError
  kWarn,        // print the report once per origin, continue
  kLog,         // continue: it is in the log of the session (and in the log file, if there is one)
  kBreakpoint,  // stop in the debugger: that of Python, or the one attached to the program (SIGTRAP)
};

// When a non-finite value is reported.
enum class When {
  kHarm,    // where it does harm: no false alarms
  kOrigin,  // at once, at the operation that made it: for use with a debugger
};

TORCHNAN_API const char* name_of(Action action);
TORCHNAN_API const char* name_of(When when);

struct TORCHNAN_API Options {
  Action action = Action::kRaise;
  std::function<void(const Finding&)> callback;  // if set: called instead of the action
  bool check_nan = true;
  bool check_inf = true;
  When when = When::kHarm;
  bool backward = true;                      // check the backward pass
  bool stacks = true;                        // record the forward source line for the backward pass
  std::vector<std::string> skip_ops;         // "aten::log", "log" or globs such as "aten::_foreach_*": never checked
  int64_t rescan_every = 1000;               // N: scan also the results proved finite, each once in N steps; 0: never
  bool headroom = false;                     // record the largest |x| of each call site, for Detector::headroom()
  int64_t max_findings = 100;                // that are kept; further ones are only counted
  int64_t max_copied_bytes = 67108864;       // 64 MiB: by a compiled region in a call, so that it can be replayed
  int64_t max_preserved_bytes = 1073741824;  // 1 GiB: reserved on a device, see docs/gpu.md
  int64_t max_explanation_seconds = 10;      // for finding the origin of a value in a compiled region; 0: never look
  std::string log;                           // path of a JSON Lines file, readable by its owner only; empty: none

  // Returns one message for each invalid value. Detector calls it.
  std::vector<std::string> validate() const;
};

}  // namespace torchnan
