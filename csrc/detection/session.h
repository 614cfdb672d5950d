// A detection session: its options, counters and findings. Shared by every thread that takes part.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <typeindex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>
#include <torchnan/finding.h>
#include <torchnan/options.h>
#include <torchnan/sink.h>
#include <torchnan/stats.h>

#include "base/runtime.h"
#include "base/fork_safe_mutex.h"
#include "report/finding_log.h"
#include "check/scan/nonfinite_kinds.h"
#include "detection/counters.h"
#include "detection/headroom_table.h"

namespace torchnan {

class TORCHNAN_API DetectionSession : public std::enable_shared_from_this<DetectionSession> {
 public:
  explicit DetectionSession(Options options);  // the options are valid

  const Options& options() const { return options_; }
  // Whether values of any of these kinds are reported.
  bool checks(NonfiniteKinds kinds) const {
    return (kinds.nan() && options_.check_nan) || (kinds.inf() && options_.check_inf);
  }
  // Whether a value is reported at once, at the operation that made it, and not only where it does harm.
  bool reports_origins() const {
    switch (options_.when) {
      case When::kHarm:
        return false;
      case When::kOrigin:
        return true;
    }
    return false;
  }
  // Whether the options need only to know whether a result is finite.
  bool asks_for_finiteness_alone() const { return asks_for_finiteness_alone_; }
  // Whether skip_ops names this operator. `index` is that of its plan: the answer is computed once.
  bool is_skipped_op(const std::string& op, int index) const {
    return !options_.skip_ops.empty() && is_skipped(op, index);
  }

  // The block of counters that only the thread with this id writes.
  Counters& counters_of(uint64_t thread);
  // Called by that thread when it ends or leaves: its counts are kept, its block is freed.
  void on_thread_exit(uint64_t thread);
  Stats stats() const;
  // Counts a failure inside a part of torchnan. Warns once for each part.
  void count_internal_error(std::string_view part, std::string_view text) const;
  void count_unreported_error() const { ++internal_errors_; }

  // Null unless the option is set.
  HeadroomTable* headroom() const { return headroom_.get(); }

  // No thread records into a closed session.
  bool is_open() const { return open_.load(std::memory_order_relaxed); }
  void open() { open_ = true; }
  void close() { open_ = false; }

  void mark_step(int64_t k);
  // Counts an optimizer step that has ended, unless user code marks the steps.
  void count_step();
  // The same for a step that a loss scaler has skipped.
  void count_skipped_step();
  bool is_skipped_step(int64_t k) const;
  int64_t step() const { return step_; }  // 1-based
  bool is_first_step() const { return is_first_step_; }

  // The number that identifies the session in events (device/session_number.h); 0 before its first event.
  std::atomic<uint64_t> event_number{0};

  bool scans_everything() const { return options_.rescan_every == 1; }
  // Whether a proved result is scanned as well: each once in N steps, in turn, and all of the first step. In a program
  // that counts no steps, one result in N, each time another one. `index`: its number within the thread's step.
  bool is_rescanned(int64_t index) const;

  void name_tensor(const std::string& name, const at::Tensor& tensor, bool is_buffer);
  std::optional<Owner> named_owner(const c10::StorageImpl* storage) const;

  void add_sink(std::unique_ptr<Sink> sink) { log_.add_sink(std::move(sink)); }
  // Returns all findings as text, most serious first.
  std::string report() const;
  FindingLog& log() { return log_; }
  const FindingLog& log() const { return log_; }

  // Keeps the first error that is to be raised later; take_deferred() returns it, and removes it.
  void defer(Finding finding);
  std::optional<Finding> take_deferred();

  // Returns use(kept), called with a lock held: `kept` is the object of type T that a part of torchnan keeps for this
  // session. Whatever `use` takes out of it must be destroyed after the call.
  template <typename T, typename Use>
  auto with_kept(Use&& use) const {
    const std::lock_guard lock(kept_mutex_);
    std::shared_ptr<void>& kept = kept_[std::type_index(typeid(T))];
    if (kept == nullptr) kept = std::make_shared<T>();
    return use(*static_cast<T*>(kept.get()));
  }
  // Destroys these objects: the session has ended.
  void forget_kept();

 private:
  struct NamedStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Owner owner;
  };

  bool is_skipped(const std::string& op, int index) const;

  enum Answer : int8_t { kUnknown, kYes, kNo };

  const Options options_;
  const bool asks_for_finiteness_alone_;
  const std::unique_ptr<std::atomic<Answer>[]> skipped_;  // by index; null without skip_ops
  const std::unique_ptr<HeadroomTable> headroom_;
  FindingLog log_;
  std::atomic<bool> open_{true};
  std::atomic<int64_t> step_{1};
  std::atomic<bool> step_marked_{false};
  std::atomic<bool> is_first_step_{true};
  mutable std::atomic<int64_t> internal_errors_{0};
  mutable ForkSafeMutex mutex_;
  // by thread; references stay valid. Entry 0 sums up the threads that have left
  std::map<uint64_t, Counters> counters_;
  std::unordered_map<const c10::StorageImpl*, NamedStorage> named_;
  mutable std::set<std::string, std::less<>> warned_;  // parts that have failed
  std::map<int64_t, int64_t> skipped_steps_;           // runs of them: the first and the last
  std::optional<Finding> deferred_;
  std::atomic<bool> has_deferred_{false};
  mutable ForkSafeMutex kept_mutex_;
  mutable std::map<std::type_index, std::shared_ptr<void>> kept_;
};

}  // namespace torchnan
