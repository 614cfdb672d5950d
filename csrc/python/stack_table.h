// Interns Python call stacks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory_resource>
#include <unordered_map>
#include <vector>

#include <pybind11/pybind11.h>

#include "base/runtime.h"
#include "base/fork_safe_mutex.h"
#include "base/own_memory.h"
#include "python/frame_walk.h"

namespace torchnan {

// A known stack costs a walk and a lookup in a table of the thread: no lock, no GIL, no allocation. A new stack takes
// the GIL once, to keep its code objects alive and to create weak references to the modules whose __call__ is on it.
// Code that Dynamo has generated is copied instead: when it is freed, Dynamo frees what it has compiled for it.
class StackTable {
 public:
  // Copied and destroyed with the GIL.
  struct Frame {
    pybind11::object code;
    int instruction;
    pybind11::object module;     // a weak reference, or null
    pybind11::object generated;  // a weak reference to the code of which `code` is a copy, or null
  };

  static StackTable& instance();

  // Sets the code whose frames have a module as their first argument.
  void set_module_call(PyCodeObject* code) { module_call_ = code; }
  // The same for the code that replaces it when a compiled region is replayed.
  void set_replayed_module_call(PyCodeObject* code) { replayed_module_call_ = code; }

  SiteId current_stack_id() noexcept;

  // Returns the frames of `live` inside the autograd engine, followed by those of `outer`; `live` if there are none.
  SiteId nest_stack(SiteId live, SiteId outer) noexcept;
  void set_engine(PyCodeObject* code) { engine_ = code; }

  // Returns the frames of a site, innermost first; empty for 0. Requires the GIL.
  std::vector<Frame> frames(SiteId site);

 private:
  static constexpr size_t kMaxDepth = 96;        // frames between the innermost and the outermost of these are left out
  static constexpr size_t kMaxFrames = 1 << 20;  // 32 MB; further stacks of live modules are unknown
  static constexpr size_t kFewFrames = 1 << 14;  // with fewer, dead objects are not evicted
  static constexpr uint64_t kWorthSweeping = 64;  // number of freed objects that make an eviction worthwhile

  using Stack = std::array<RawFrame, kMaxDepth>;
  struct Known {
    SiteId id;
    uint64_t deaths;  // the count when the objects of the site were last known to live
  };

  uint64_t hash(const Stack& stack, size_t depth) const noexcept;
  // `deaths` is the count at the time when the stack was walked.
  SiteId intern(uint64_t hash, const Stack& stack, size_t depth, uint64_t deaths) noexcept;
  // Whether the table is full, and so few objects were freed that evict() would gain almost nothing.
  bool is_full() const noexcept { return known_ >= kMaxFrames && deaths_ - deaths_swept_ < kWorthSweeping; }
  // Evicts the stacks of freed objects if they may fill half of the table. Their ids mean unknown from then on, and are
  // never reused. Requires the GIL.
  void evict();
  SiteId add(const std::vector<Frame>& frames);  // requires the lock
  // Whether the modules and the code on a stack are those of the site, rather than new ones at the addresses of freed
  // ones.
  bool has_objects_of(const std::pmr::vector<Frame>& site, const Stack& stack) const noexcept;
  static PyObject* on_death(PyObject* self, PyObject* reference) noexcept;
  pybind11::object refer_to(PyObject* object);
  Frame frame_of(const RawFrame& frame);  // requires the GIL
  bool is_module_call(const RawFrame& frame) const noexcept {
    return frame.code == module_call_ || frame.code == replayed_module_call_;
  }

  PyCodeObject* module_call_ = nullptr;
  PyCodeObject* replayed_module_call_ = nullptr;
  PyCodeObject* engine_ = nullptr;
  PyObject* death_callback_ = nullptr;
  std::atomic<uint64_t> deaths_{
      0};                // count of freed modules and generated code; if it changes, threads repeat earlier lookups
  ForkSafeMutex mutex_;  // never locked while waiting for the GIL or dropping a last reference
  OwnMemory memory_;     // of the tables; both are changed under the lock only
  std::pmr::unordered_map<uint64_t, Known> ids_{&memory_};
  std::pmr::unordered_map<uint64_t, SiteId> nested_{&memory_};  // by (live, outer)
  std::pmr::unordered_map<SiteId, std::pmr::vector<Frame>> sites_{&memory_};
  SiteId newest_ = 0;             // 0 means unknown
  std::atomic<size_t> known_{0};  // frames of all sites
  size_t evict_at_ = kFewFrames;  // the number of frames at which to look for freed objects
  std::atomic<uint64_t> deaths_swept_{0};
};

}  // namespace torchnan
