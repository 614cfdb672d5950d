// The findings of one session: bounded, repeats folded, handed on to sinks.
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

  // Keeps the finding, or counts it as a repeat of one with the same origin. True if it is new. Throws if it cannot be
  // kept.
  bool add(const Finding& finding);

  void add_sink(std::unique_ptr<Sink> sink);
  void flush();

  std::vector<Finding> findings() const;
  int64_t repeats() const;
  int64_t dropped() const;
  int64_t log_failures() const { return unlogged_; }  // that a sink could not take

 private:
  bool keep(const Finding& finding);
  // Calls use(sink) for each, and then tells of those that failed: no lock is held while the program is warned.
  template <typename Use>
  void for_each_sink(Use&& use);

  const int64_t max_findings_;
  const std::function<void(const std::exception_ptr&)> on_sink_error_;
  mutable Mutex mutex_;  // the list
  std::vector<Finding> findings_;
  std::unordered_map<std::string, size_t> index_;  // by what makes two findings the same
  int64_t repeats_ = 0;
  int64_t dropped_ = 0;
  std::atomic<int64_t> unlogged_{0};
  Mutex sink_mutex_{Mutex::kSink};            // one emit at a time; taken after the list's is given back
  std::vector<std::unique_ptr<Sink>> sinks_;  // changed with both
};

}  // namespace torchnan
