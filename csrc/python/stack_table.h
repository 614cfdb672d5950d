// Python call stacks, interned.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include <pybind11/pybind11.h>

#include "host/host_runtime.h"
#include "process/fork_safe_mutex.h"
#include "python/frame_walk.h"

namespace torchnan {

// A stack seen before costs a walk and a look-up in a table of the thread's own: no lock, no GIL, no allocation. A
// new one takes the GIL once, to keep its code objects alive and to note by weak reference the modules whose
// __call__ is on it.
class StackTable {
 public:
  // Copied and let go of with the GIL.
  struct Frame {
    pybind11::object code;
    int instruction;
    pybind11::object module;  // a weak reference, or null
  };

  static StackTable& instance();

  // Frames that run this code have a module as their first argument.
  void set_module_call(PyCodeObject* code) { module_call_ = code; }

  SiteId current_stack_id() noexcept;

  // The frames of `live` that this code has called, and then those of `outer`; `live` if there are none.
  SiteId nest_stack(SiteId live, SiteId outer) noexcept;
  void set_engine(PyCodeObject* code) { engine_ = code; }

  // With the GIL. The frames of a site, innermost first; empty for 0.
  std::vector<Frame> frames(SiteId site);

 private:
  static constexpr size_t kMaxDepth = 96;         // frames beyond the innermost of these are left out
  static constexpr size_t kMaxFrames = 1 << 20;   // 24 MB; more stacks of living modules are not told apart
  static constexpr size_t kFewFrames = 1 << 14;   // not worth a look for dead ones
  static constexpr uint64_t kWorthSweeping = 64;  // deaths of modules since the last time

  using Stack = std::array<RawFrame, kMaxDepth>;

  uint64_t hash(const Stack& stack, size_t depth) const noexcept;
  SiteId intern(uint64_t hash, const Stack& stack, size_t depth) noexcept;
  // Whether it takes no new site: so few modules have died that evict() would hardly make any.
  bool is_full() const noexcept { return known_ >= kMaxFrames && deaths_ - deaths_swept_ < kWorthSweeping; }
  // With the GIL: a table that may be half of dead modules forgets their stacks. Their ids then stand for "not known",
  // and for nothing else ever.
  void evict();
  SiteId add(std::vector<Frame>&& frames);  // with the lock; leaves them to the caller if it throws
  // Whether the modules on a stack are those of the site, and not others at the addresses of dead ones.
  bool has_modules_of(const std::vector<Frame>& site, const Stack& stack) const noexcept;
  static PyObject* note_death(PyObject* self, PyObject* reference) noexcept;
  pybind11::object refer_to(PyObject* module);
  bool is_module_call(const RawFrame& frame) const noexcept { return frame.code == module_call_; }

  PyCodeObject* module_call_ = nullptr;
  PyCodeObject* engine_ = nullptr;
  PyObject* death_callback_ = nullptr;
  std::atomic<uint64_t> deaths_{0};  // of modules; what was looked up before the last one is looked up again
  ForkSafeMutex mutex_;              // never held while the GIL is awaited, or a last reference is let go of
  std::unordered_map<uint64_t, SiteId> ids_;
  std::unordered_map<uint64_t, SiteId> nested_;  // by both halves
  std::unordered_map<SiteId, std::vector<Frame>> sites_;
  SiteId newest_ = 0;                  // 0 stands for "not known"
  std::atomic<size_t> known_{0};       // frames of all sites
  size_t look_at_known_ = kFewFrames;  // for dead modules
  std::atomic<uint64_t> deaths_swept_{0};
};

}  // namespace torchnan
