#include "python/site_table.h"

#include <algorithm>
#include <utility>

#include <pybind11/pybind11.h>

#include "python/call_python.h"

namespace torchnan {
namespace {

uint64_t mix(uint64_t h, uint64_t value) {
  h = (h ^ value) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}

}  // namespace

SiteTable& SiteTable::instance() {
  static auto* made = new SiteTable;  // never destroyed: holds Python objects, and Python may be gone by then
  return *made;
}

uint64_t SiteTable::hash(const Stack& stack, size_t depth) const noexcept {
  uint64_t h = depth;
  for (size_t i = 0; i < depth; ++i) {
    const RawFrame& frame = stack[i];
    h = mix(h, reinterpret_cast<uintptr_t>(frame.code) + static_cast<uint64_t>(frame.instruction));
    if (is_module_call(frame)) h = mix(h, reinterpret_cast<uintptr_t>(frame.first_local));
  }
  return h;
}

SiteId SiteTable::capture() noexcept {
  struct Slot {
    uint64_t hash = 0;
    uint64_t deaths = 0;
    SiteId id = 0;
  };
  thread_local std::array<Slot, 1024> seen;
  Stack stack;
  const size_t depth = walk_frames(stack.data(), stack.size());
  if (depth == 0) return 0;
  const uint64_t h = hash(stack, depth);
  Slot& slot = seen[h % seen.size()];
  const uint64_t deaths = deaths_.load(std::memory_order_relaxed);
  if (slot.hash != h || slot.deaths != deaths) slot = {h, deaths, intern(h, stack, depth)};
  return slot.id;
}

SiteId SiteTable::intern(uint64_t hash, const Stack& stack, size_t depth) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      const auto known = ids_.find(hash);
      if (known != ids_.end() && has_modules_of(sites_[known->second], stack)) return known->second;
    }
    if (is_python_ending()) return 0;
    if (known_ >= kMaxSites && deaths_ - deaths_swept_ < kWorthSweeping) return 0;
    const pybind11::gil_scoped_acquire gil;
    const pybind11::error_scope keep_error;
    make_room();
    std::vector<Frame> frames;
    frames.reserve(depth);
    for (size_t i = 0; i < depth; ++i) {
      PyObject* module = is_module_call(stack[i]) ? refer_to(stack[i].first_local) : nullptr;
      frames.push_back({Py_NewRef(reinterpret_cast<PyObject*>(stack[i].code)), stack[i].instruction, module});
    }
    const std::lock_guard lock(mutex_);
    return ids_[hash] = add(std::move(frames));
  } catch (...) {  // out of memory: the site stays unknown
    return 0;
  }
}

SiteId SiteTable::add(std::vector<Frame> frames) {
  sites_.push_back(std::move(frames));
  ++known_;
  return static_cast<SiteId>(sites_.size() - 1);
}

void SiteTable::make_room() {
  if (known_ < kMaxSites) return;
  const auto has_died = [](const Frame& frame) {
    return frame.module != nullptr && reinterpret_cast<PyWeakReference*>(frame.module)->wr_object == Py_None;
  };
  std::vector<std::vector<Frame>> forgotten;
  {
    const std::lock_guard lock(mutex_);
    forgotten.reserve(sites_.size());  // nothing fails half way
    deaths_swept_ = deaths_.load();
    for (std::vector<Frame>& site : sites_) {
      if (std::any_of(site.begin(), site.end(), has_died)) forgotten.push_back(std::exchange(site, {}));
    }
    known_ -= forgotten.size();
    std::erase_if(ids_, [&](const auto& entry) { return sites_[entry.second].empty(); });
    std::erase_if(nested_, [&](const auto& entry) { return sites_[entry.second].empty(); });
  }
  for (const std::vector<Frame>& site : forgotten) {
    for (const Frame& frame : site) {
      Py_DECREF(frame.code);
      Py_XDECREF(frame.module);
    }
  }
}

bool SiteTable::has_modules_of(const std::vector<Frame>& site, const Stack& stack) const noexcept {
  for (size_t i = 0; i < site.size(); ++i) {
    if (site[i].module == nullptr) continue;
    // What a dead reference refers to is None: read without the GIL, as the frames are.
    if (reinterpret_cast<PyWeakReference*>(site[i].module)->wr_object != stack[i].first_local) return false;
  }
  return true;
}

// Null for something that cannot be referred to weakly.
PyObject* SiteTable::refer_to(PyObject* module) {
  static PyMethodDef definition = {"note_death", &SiteTable::note_death, METH_O, nullptr};
  if (death_callback_ == nullptr) death_callback_ = PyCFunction_New(&definition, nullptr);
  PyObject* reference = PyWeakref_NewRef(module, death_callback_);
  if (reference == nullptr) PyErr_Clear();
  return reference;
}

PyObject* SiteTable::note_death(PyObject*, PyObject*) noexcept {
  ++instance().deaths_;
  Py_RETURN_NONE;
}

SiteId SiteTable::within(SiteId live, SiteId outer) noexcept {
  try {
    const uint64_t key = (uint64_t{live} << 32) | outer;
    {
      const std::lock_guard lock(mutex_);
      const auto known = nested_.find(key);
      if (known != nested_.end()) return known->second;
    }
    if (is_python_ending()) return live;
    if (known_ >= kMaxSites && deaths_ - deaths_swept_ < kWorthSweeping) return live;
    const pybind11::gil_scoped_acquire gil;
    make_room();
    std::vector<Frame> joined;
    for (const Frame& frame : frames(live)) {
      if (frame.code == reinterpret_cast<PyObject*>(engine_)) break;
      joined.push_back(frame);
    }
    const bool nothing_inside = joined.empty();
    if (!nothing_inside) {
      for (const Frame& frame : frames(outer)) joined.push_back(frame);
    }
    for (const Frame& frame : joined) {
      Py_INCREF(frame.code);
      Py_XINCREF(frame.module);
    }
    const std::lock_guard lock(mutex_);
    const SiteId id = nothing_inside ? live : add(std::move(joined));
    nested_.emplace(key, id);
    return id;
  } catch (...) {  // out of memory
    return live;
  }
}

std::vector<SiteTable::Frame> SiteTable::frames(SiteId site) {
  const std::lock_guard lock(mutex_);
  return site < sites_.size() ? sites_[site] : std::vector<Frame>{};
}

}  // namespace torchnan
