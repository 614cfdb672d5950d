#include "report/finding_log.h"

#include <cxxabi.h>

#include <exception>
#include <mutex>
#include <utility>

#include <c10/util/SmallVector.h>

#include "report/own_frame.h"
#include "text/format.h"

namespace torchnan {
namespace {

// Two findings are the same if the same operation at the same line, called from the same line of user code, made the
// same kind in the same way.
std::string identity(const Finding& f) {
  const Frame where = f.stack.empty() ? Frame{} : f.stack.front();
  const Frame* found = own_frame(f.stack);
  const Frame own = found == nullptr ? Frame{} : *found;
  return format_text("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", name_of(f.level), name_of(f.kind), name_of(f.origin), f.op,
                     f.node, f.module.value_or("-"), f.name, where.file, where.line, own.file, own.line, f.harm.name);
}

}  // namespace

FindingLog::FindingLog(int64_t max_findings, std::function<void(const std::exception_ptr&)> on_sink_error)
    : max_findings_(max_findings), on_sink_error_(std::move(on_sink_error)) {}

bool FindingLog::add(const Finding& finding) {
  try {
    if (!keep(finding)) return false;
  } catch (...) {
    const std::lock_guard lock(mutex_);
    ++dropped_;
    throw;
  }
  for_each_sink([&](Sink& sink) {
    try {
      sink.emit(finding);
    } catch (...) {
      ++log_failures_;
      throw;
    }
  });
  return true;
}

bool FindingLog::keep(const Finding& finding) {
  const std::lock_guard lock(mutex_);
  std::string id = identity(finding);
  if (const auto same = index_.find(id); same != index_.end()) {
    ++repeats_;
    ++findings_[same->second].repeats;
    return false;
  }
  if (static_cast<int64_t>(findings_.size()) >= max_findings_) {
    ++dropped_;
    return false;
  }
  const auto entry = index_.emplace(std::move(id), findings_.size()).first;
  try {
    findings_.push_back(finding);
  } catch (...) {  // out of memory
    index_.erase(entry);
    throw;
  }
  return true;
}

template <typename Use>
void FindingLog::for_each_sink(Use&& use) {
  c10::SmallVector<std::exception_ptr, 4> errors;
  {
    const std::lock_guard lock(sink_mutex_);
    for (const auto& sink : sinks_) {
      try {
        use(*sink);
      } catch (const abi::__forced_unwind&) {  // the thread is ending
        throw;
      } catch (...) {
        errors.push_back(std::current_exception());
      }
    }
  }
  for (const std::exception_ptr& error : errors) on_sink_error_(error);
}

void FindingLog::add_sink(std::unique_ptr<Sink> sink) {
  const std::lock_guard lock(sink_mutex_);
  const std::lock_guard no_fork_in_between(mutex_);
  sinks_.push_back(std::move(sink));
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
