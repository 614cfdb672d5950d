// The findings of one session: bounded in number, with repeats merged, and passed to the sinks.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <torchnan/export.h>
#include <torchnan/finding.h>
#include <torchnan/sink.h>

#include "process/fork_safe_mutex.h"

namespace torchnan {

class TORCHNAN_API FindingLog {
 public:
  FindingLog(int64_t max_findings, std::function<void(const std::exception_ptr&)> on_sink_error);

  // Keeps the finding, or counts it as a repeat of one with the same origin. Returns whether it is new. Throws if it
  // cannot be kept.
  bool add(const Finding& finding);

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
  std::unordered_map<std::string, size_t> index_;  // by identity()
  int64_t repeats_ = 0;
  int64_t dropped_ = 0;
  std::atomic<int64_t> log_failures_{0};
  ForkSafeMutex sink_mutex_{ForkSafeMutex::kSlow};  // one emit at a time; locked only after the other was unlocked
  std::vector<std::unique_ptr<Sink>> sinks_;        // changed with both locked
};

}  // namespace torchnan
