#include "detection/session.h"

#include <fnmatch.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "check/bounds/bound_audit.h"
#include "base/environment.h"
#include "detection/user_notifier.h"
#include "check/operators/op_plan.h"
#include "report/operator_name.h"
#include "base/format.h"
#include "base/printable.h"
#include "detection/error_containment.h"

namespace torchnan {
namespace {

// A pattern without namespace matches the bare name: "log", "_foreach_*".
bool matches_any(const std::vector<std::string>& patterns, const std::string& op) {
  const std::string bare(without_namespace(op));
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    const std::string& name = pattern.find("::") == std::string::npos ? bare : op;
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

}  // namespace

DetectionSession::DetectionSession(Options options)
    : options_(std::move(options)),
      asks_for_finiteness_alone_(options_.backward && options_.skip_ops.empty() && !bound_audit().enabled() &&
                                 !options_.headroom),
      skipped_(options_.skip_ops.empty() ? nullptr : new std::atomic<Answer>[OpPlan::kMaxPlans] {}),
      headroom_(options_.headroom && !is_disabled() ? new HeadroomTable : nullptr),
      log_(options_.max_findings,
           [this](const std::exception_ptr& error) { count_failure(error, *this, "recording a finding"); }) {
  if (!options_.log.empty() && !is_disabled()) log_.add_sink(json_lines_sink(options_.log));
}

bool DetectionSession::is_skipped(const std::string& op, int index) const {
  const bool is_cached = index >= 0;
  if (is_cached && skipped_[index] != kUnknown) return skipped_[index] == kYes;
  const bool skipped = matches_any(options_.skip_ops, op);
  if (is_cached) skipped_[index] = skipped ? kYes : kNo;
  return skipped;
}

Counters& DetectionSession::counters_of(uint64_t thread) {
  const std::lock_guard lock(mutex_);
  return counters_[thread];
}

void DetectionSession::on_thread_exit(uint64_t thread) {
  const std::lock_guard lock(mutex_);
  auto own = counters_.extract(thread);
  if (own.empty()) return;
  own.key() = 0;  // allocates nothing: memory may have run out
  const auto left = counters_.insert(std::move(own));
  if (!left.inserted) left.position->second += left.node.mapped();
}

Stats DetectionSession::stats() const {
  Stats stats;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [thread, counters] : counters_) counters.add_to(stats);
  }
  stats.findings = static_cast<int64_t>(log_.findings().size());
  stats.repeats = log_.repeats();
  stats.dropped = log_.dropped();
  stats.log_failures = log_.log_failures();
  stats.headroom_dropped = headroom_ == nullptr ? 0 : headroom_->dropped();
  stats.internal_errors = internal_errors_;
  return stats;
}

void DetectionSession::count_internal_error(std::string_view part, std::string_view text) const {
  ++internal_errors_;
  try {
    const std::string shown = printable(text.substr(0, text.find('\n')));  // the following lines are a traceback
    const std::string warning =
        format_text("torchnan: {}. Detection continues; later failures are only counted.", shown);
    {
      const std::lock_guard lock(mutex_);
      if (!warned_.emplace(part).second) return;
    }
    user_notifier().warn(warning);
  } catch (...) {  // it is already counted
    rethrow_if_user_facing();
  }
}

// The first mark may precede the first step.
void DetectionSession::mark_step(int64_t k) {
  is_first_step_ = is_first_step_ && !step_marked_;
  step_ = k;
  step_marked_ = true;
}

void DetectionSession::count_step() {
  is_first_step_ = false;
  if (!step_marked_) ++step_;
}

// The turns of neighbouring results are far apart: a fault that many results of a step show is found with the first of
// them, and no step scans many. Each multiple of a prime number is another turn, for any N. The second step, whose
// counts are compared among releases, comes last.
bool DetectionSession::is_rescanned(int64_t index) const {
  constexpr int64_t kMostOfFirstStep = 10000;
  constexpr int64_t kSpread = 2654435761;
  const int64_t every = options_.rescan_every;
  if (every == 0) return false;
  if (every == 1 || (is_first_step() && index < kMostOfFirstStep)) return true;
  return ((index + 2) * kSpread + index / every + step() - 2) % every == 0;
}

void DetectionSession::count_skipped_step() {
  const int64_t k = step_;
  {
    const std::lock_guard lock(mutex_);
    const auto after = skipped_steps_.upper_bound(k);
    const auto before = after == skipped_steps_.begin() ? skipped_steps_.end() : std::prev(after);
    if (before != skipped_steps_.end() && before->second >= k - 1) {
      before->second = std::max(before->second, k);
    } else {
      skipped_steps_.emplace(k, k);
    }
  }
  count_step();
}

bool DetectionSession::is_skipped_step(int64_t k) const {
  const std::lock_guard lock(mutex_);
  const auto after = skipped_steps_.upper_bound(k);
  return after != skipped_steps_.begin() && std::prev(after)->second >= k;
}

void DetectionSession::name_tensor(const std::string& name, const at::Tensor& tensor, bool is_buffer) {
  if (!tensor.has_storage()) return;
  const std::lock_guard lock(mutex_);
  named_.insert_or_assign(tensor.storage().unsafeGetStorageImpl(),
                          NamedStorage{tensor.storage().getWeakStorageImpl(), Owner{is_buffer, name}});
}

std::optional<Owner> DetectionSession::named_owner(const c10::StorageImpl* storage) const {
  const std::lock_guard lock(mutex_);
  const auto named = named_.find(storage);
  if (named == named_.end() || named->second.storage.expired()) return std::nullopt;
  return named->second.owner;
}

void DetectionSession::defer(Finding finding) {
  const std::lock_guard lock(mutex_);
  if (!deferred_) deferred_ = std::move(finding);
  has_deferred_ = true;
}

std::optional<Finding> DetectionSession::take_deferred() {
  if (!has_deferred_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  has_deferred_ = false;
  return std::exchange(deferred_, std::nullopt);
}

void DetectionSession::forget_kept() {
  decltype(kept_) released;  // after the lock
  const std::lock_guard lock(kept_mutex_);
  released.swap(kept_);
}

std::string DetectionSession::report() const {
  std::vector<Finding> findings = log_.findings();
  if (findings.empty()) return "torchnan: no non-finite value has done harm";
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.level < b.level; });
  std::vector<std::string> parts;
  for (const Finding& finding : findings) parts.push_back(to_text(finding));
  if (log_.dropped() > 0) {
    parts.push_back(format_text("torchnan: {} more findings were counted, not kept (max_findings={})", log_.dropped(),
                                options_.max_findings));
  }
  return join_text(parts, "\n\n");
}

}  // namespace torchnan
