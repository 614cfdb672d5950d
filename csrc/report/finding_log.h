// The findings of one watch: bounded, repeats folded, handed on to sinks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <torchnan/export.h>
#include <torchnan/finding.h>
#include <torchnan/sink.h>

#include "process/fork.h"

namespace torchnan {

class TORCHNAN_API FindingLog {
 public:
  FindingLog(int64_t max_findings, std::function<void(const char*)> on_sink_error);

  // Keeps the finding, or counts it as a repeat of one with the same origin. True if it is new.
  bool add(Finding finding);

  void add_sink(std::unique_ptr<Sink> sink);
  void flush();

  std::vector<Finding> findings() const;
  int64_t repeats() const;
  int64_t dropped() const;

 private:
  void emit(const Finding& finding);

  const int64_t max_findings_;
  const std::function<void(const char*)> on_sink_error_;
  mutable Mutex mutex_;  // the list
  std::vector<Finding> findings_;
  std::unordered_map<std::string, size_t> index_;  // by what makes two findings the same
  int64_t repeats_ = 0;
  int64_t dropped_ = 0;
  Mutex sink_mutex_{Mutex::kSink};            // one emit at a time; taken after the list's is given back
  std::vector<std::unique_ptr<Sink>> sinks_;  // changed with both
};

}  // namespace torchnan
