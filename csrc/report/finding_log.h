// The findings of one session: bounded in number, with repeats merged, and passed to the sinks. What one line does to
// many tensors, as in a loop over parameters, is one finding with the names of the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <torchnan/export.h>
#include <torchnan/finding.h>
#include <torchnan/sink.h>

#include "base/fork_safe_mutex.h"

namespace torchnan {

// Returns what made the value, and where: findings are the same if the same operation at the same line, called from the
// same line of user code, made the same kind in the same way, whichever tensors it did it to.
TORCHNAN_API std::string operation_of(const Finding& finding);

// Returns what it harmed, if that tells findings apart: a guard has its name from the user, to tell it from others.
TORCHNAN_API std::string told_apart_by(const Finding& finding);

class TORCHNAN_API FindingLog {
 public:
  FindingLog(int64_t max_findings, std::function<void(const std::exception_ptr&)> on_sink_error);

  // Keeps the finding, or counts it as a repeat of one with the same origin. Returns whether it is new. Throws if it
  // cannot be kept.
  bool add(const Finding& finding);

  // Tells the sinks which findings were found again, and how many were not kept. A session may end after each step: of
  // a finding that is told again, there are twice as many.
  void end();

  void add_sink(std::unique_ptr<Sink> sink);

  std::vector<Finding> findings() const;
  int64_t repeats() const;
  int64_t dropped() const;
  int64_t log_failures() const { return log_failures_; }  // findings that a sink could not store

 private:
  bool keep(const Finding& finding);
  // Calls use(sink) for each sink, and reports the failures afterwards: no lock is held while the user is warned.
  template <typename Use>
  void for_each_sink(Use&& use);

  const int64_t max_findings_;
  const std::function<void(const std::exception_ptr&)> on_sink_error_;
  mutable ForkSafeMutex mutex_;  // guards the list
  std::vector<Finding> findings_;
  std::unordered_map<std::string, size_t> index_;  // by level, operation_of() and told_apart_by()
  std::unordered_set<std::string> lines_;          // operations of the findings, with their lines
  std::map<size_t, int64_t> found_again_;          // how often, of the findings, when the sinks were last told
  int64_t repeats_ = 0;
  int64_t dropped_ = 0;
  int64_t dropped_told_ = 0;  // to the sinks
  std::atomic<int64_t> log_failures_{0};
  ForkSafeMutex sink_mutex_{ForkSafeMutex::kSlow};  // one emit at a time; locked only after the other was unlocked
  std::vector<std::unique_ptr<Sink>> sinks_;        // changed with both locked
};

}  // namespace torchnan
