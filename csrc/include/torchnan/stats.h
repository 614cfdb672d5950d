// What a detector has counted.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace torchnan {

// Counts since the detector was made. Exact, not sampled.
struct Stats {
  int64_t ops = 0;                         // operations that passed the interceptor
  int64_t checked = 0;                     // tensors judged
  int64_t proved = 0;                      // of these: known to be finite from bounds, not read
  int64_t bytes = 0;                       // bytes read
  int64_t bytes_rescanned = 0;             // of these: results whose bound had left their dtype's range
  int64_t bytes_scanned_unknown = 0;       // of these: arguments read for a bound of theirs
  int64_t bytes_proved = 0;                // bytes of what was proved
  int64_t nonfinite = 0;                   // tensors found to hold a NaN or an Inf
  int64_t findings = 0;                    // findings, folded repeats not counted
  int64_t repeats = 0;                     // findings folded into an earlier one
  int64_t dropped = 0;                     // findings beyond max_findings, or without memory
  int64_t log_failures = 0;                // findings that the log file, or another sink, could not take
  int64_t call_sites = 0;                  // call sites noted for the backward pass
  int64_t headroom_dropped = 0;            // results at call sites beyond those that headroom has room for
  int64_t internal_errors = 0;             // failures of the detector itself, each warned about once
  std::map<std::string, int64_t> skipped;  // tensors passed by, by reason
};

}  // namespace torchnan
