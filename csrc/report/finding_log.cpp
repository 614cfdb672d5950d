#include "report/finding_log.h"

#include <cxxabi.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include <c10/util/SmallVector.h>

#include "report/own_frame.h"
#include "base/format.h"

namespace torchnan {
namespace {

constexpr size_t kMostOthers = 256;  // names that a finding holds

// What tells findings apart that one line of the program made: nothing, or the parameters whose gradients it computed.
// A value that no operation made, or that has no line, has its own cause in each parameter.
bool is_of_one_line(const Finding& f) { return f.origin == Origin::kOp && !f.stack.empty(); }

std::string line_of(const Finding& f) {
  const Frame where = innermost(f.stack);
  return format_text("{} {}:{}", f.op, where.file, where.line);
}

int64_t times_found(const Finding& f) {
  return 1 + f.repeats + static_cast<int64_t>(f.others.size()) + f.others_omitted;
}

// Adds a finding to the one that it is the same as.
void fold(const Finding& again, Finding& first) {
  const bool is_of_other_parameter = !again.harm.name.empty() && again.harm.name != first.harm.name;
  const std::string& name = is_of_other_parameter ? again.harm.name : again.name;
  const bool is_known = name.empty() || name == first.harm.name || name == first.name ||
                        std::find(first.others.begin(), first.others.end(), name) != first.others.end();
  if (is_known) {
    ++first.repeats;
  } else if (first.others.size() < kMostOthers) {
    first.others.push_back(name);
  } else {
    ++first.others_omitted;
  }
}

}  // namespace

std::string operation_of(const Finding& f) {
  const Frame where = innermost(f.stack);
  const Frame* found = own_frame(f.stack);
  const Frame own = found == nullptr ? Frame{} : *found;
  return format_text("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", name_of(f.kind), name_of(f.origin), f.op, f.node,
                     f.module.value_or("-"), is_of_one_line(f) ? "" : f.name, where.file, where.line, own.file,
                     own.line);
}

std::string told_apart_by(const Finding& f) {
  return f.harm.kind == HarmKind::kGuard || f.stack.empty() ? f.harm.name : "";
}

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
  std::string id = format_text("{}|{}|{}", name_of(finding.level), operation_of(finding), told_apart_by(finding));
  if (const auto same = index_.find(id); same != index_.end()) {
    ++repeats_;
    found_again_.emplace(same->second, 1);
    fold(finding, findings_[same->second]);
    return false;
  }
  const auto is_full = [&](size_t size) { return static_cast<int64_t>(size) >= max_findings_; };
  const std::string line = line_of(finding);
  if (is_full(findings_.size()) && (is_full(lines_.size()) || lines_.count(line) != 0)) {
    ++dropped_;
    return false;
  }
  const auto entry = index_.emplace(std::move(id), findings_.size()).first;
  try {
    findings_.push_back(finding);
    lines_.insert(line);
  } catch (...) {  // out of memory
    findings_.resize(entry->second);
    index_.erase(entry);
    throw;
  }
  return true;
}

void FindingLog::end() {
  std::vector<Finding> found_again;
  int64_t dropped = 0;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [i, told] : found_again_) {
      const int64_t times = times_found(findings_[i]);
      if (times < 2 * told) continue;
      told = times;
      found_again.push_back(findings_[i]);
    }
    dropped = dropped_ - std::exchange(dropped_told_, dropped_);
  }
  if (found_again.empty() && dropped == 0) return;
  for_each_sink([&](Sink& sink) { sink.end(found_again, dropped); });
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
