// The counters of a detection session.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace torchnan {

// The list of all counters: X(name) for each. First those that each thread keeps separately, then those of the session.
#define TORCHNAN_THREAD_COUNTS(X)                                                              \
  X(ops)                   /* operations that were intercepted */                              \
  X(checked)               /* tensors checked */                                               \
  X(proved)                /* of these: proved finite by a bound, not scanned */               \
  X(bytes)                 /* bytes scanned */                                                 \
  X(bytes_rescanned)       /* of these: results whose bound had left their dtype's range */    \
  X(bytes_scanned_unknown) /* of these: arguments scanned because their bound was not known */ \
  X(bytes_proved)          /* bytes of the tensors that were proved finite */                  \
  X(nonfinite)             /* tensors found to hold a NaN or an Inf */                         \
  X(device_bytes)          /* of the scanned bytes: those on devices */                        \
  X(device_alarms)         /* alarms of devices that this thread has handled */                \
  X(device_resolves)       /* how often it has read what the scans of the devices found */     \
  X(device_waits)          /* how often it has waited for a device to be read */               \
  X(call_sites)            /* call sites recorded for the backward pass */

#define TORCHNAN_SESSION_COUNTS(X)                                                      \
  X(findings)         /* findings, repeats not counted */                               \
  X(repeats)          /* findings folded into an earlier one */                         \
  X(dropped)          /* findings beyond max_findings, or without memory */             \
  X(log_failures)     /* findings that the log file, or another sink, could not take */ \
  X(headroom_dropped) /* results at call sites beyond the capacity of headroom */       \
  X(internal_errors)  /* failures of the detector itself, each warned about once */

// Counts since the session began. Exact, not sampled.
struct Stats {
#define TORCHNAN_DECLARE_COUNT(name) int64_t name = 0;
  TORCHNAN_THREAD_COUNTS(TORCHNAN_DECLARE_COUNT)
  TORCHNAN_SESSION_COUNTS(TORCHNAN_DECLARE_COUNT)
#undef TORCHNAN_DECLARE_COUNT
  std::map<std::string, int64_t> skipped;  // tensors that were not checked, by reason
};

// Calls visit(name, count) for every counter of `stats` except `skipped`.
template <typename Visitor>
void for_each_count(const Stats& stats, Visitor&& visit) {
#define TORCHNAN_VISIT_COUNT(name) visit(#name, stats.name);
  TORCHNAN_THREAD_COUNTS(TORCHNAN_VISIT_COUNT)
  TORCHNAN_SESSION_COUNTS(TORCHNAN_VISIT_COUNT)
#undef TORCHNAN_VISIT_COUNT
}

}  // namespace torchnan
