#include "report/finding_log.h"

#include <exception>
#include <mutex>

#include <fmt/format.h>

namespace torchnan {
namespace {

// Two findings are the same if the same operation at the same line made the same kind in the same way.
std::string identity(const Finding& f) {
  const Frame where = f.stack.empty() ? Frame{} : f.stack.front();
  return fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", name_of(f.level), name_of(f.kind), name_of(f.origin), f.op,
                     f.node, f.module.value_or("-"), f.name, where.file, where.line, f.harm.name);
}

}  // namespace

FindingLog::FindingLog(int64_t max_findings, std::function<void(const char*)> on_sink_error)
    : max_findings_(max_findings), on_sink_error_(std::move(on_sink_error)) {}

bool FindingLog::add(Finding finding) {
  {
    const std::lock_guard lock(mutex_);
    const auto [same, is_new] = index_.try_emplace(identity(finding), findings_.size());
    if (!is_new) {
      ++repeats_;
      ++findings_[same->second].repeats;
      return false;
    }
    if (static_cast<int64_t>(findings_.size()) >= max_findings_) {
      index_.erase(same);
      ++dropped_;
      return false;
    }
    findings_.push_back(finding);
  }
  emit(finding);
  return true;
}

void FindingLog::emit(const Finding& finding) {
  const std::lock_guard lock(sink_mutex_);
  for (const auto& sink : sinks_) {
    try {
      sink->emit(finding);
    } catch (const std::exception& error) {
      on_sink_error_(error.what());
    }
  }
}

void FindingLog::add_sink(std::unique_ptr<Sink> sink) {
  const std::lock_guard lock(sink_mutex_);
  const std::lock_guard no_fork_in_between(mutex_);
  sinks_.push_back(std::move(sink));
}

void FindingLog::flush() {
  const std::lock_guard lock(sink_mutex_);
  for (const auto& sink : sinks_) {
    try {
      sink->flush();
    } catch (const std::exception& error) {
      on_sink_error_(error.what());
    }
  }
}

std::vector<Finding> FindingLog::findings() const {
  const std::lock_guard lock(mutex_);
  return findings_;
}

int64_t FindingLog::repeats() const {
  const std::lock_guard lock(mutex_);
  return repeats_;
}

int64_t FindingLog::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace torchnan
