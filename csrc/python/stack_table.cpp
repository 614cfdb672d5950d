#include "python/stack_table.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <string_view>
#include <utility>

#include "python/call_python.h"

namespace py = pybind11;

namespace torchnan {
namespace {

uint64_t mix(uint64_t h, uint64_t value) {
  h = (h ^ value) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}

// Never destroyed: it holds Python objects, and Python may have ended by then.
StackTable& of_process = *new StackTable;

// None if the object was freed; read without the GIL, like the stacks.
PyObject* referred_to(const py::object& reference) {
  return reinterpret_cast<PyWeakReference*>(reference.ptr())->wr_object;
}

bool is_other(const py::object& reference, const void* object) { return reference && referred_to(reference) != object; }

std::string_view ascii_of(PyObject* text) {
  if (!PyUnicode_IS_COMPACT_ASCII(text)) return {};
  return {reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(text)), static_cast<size_t>(PyUnicode_GET_LENGTH(text))};
}

// Whether Dynamo has generated the code: it calls compiled functions, or what follows a graph break.
bool is_generated(const PyCodeObject* code) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i) {
    const std::string_view name = ascii_of(PyTuple_GET_ITEM(code->co_names, i));
    if (name.starts_with("__compiled_fn_") || name.starts_with("__resume_at_")) return true;
  }
  return false;
}

}  // namespace

StackTable& StackTable::instance() { return of_process; }

uint64_t StackTable::hash(const Stack& stack, size_t depth) const noexcept {
  uint64_t h = depth;
  for (size_t i = 0; i < depth; ++i) {
    const RawFrame& frame = stack[i];
    h = mix(h, reinterpret_cast<uintptr_t>(frame.code) + static_cast<uint64_t>(frame.instruction));
    if (is_module_call(frame)) h = mix(h, reinterpret_cast<uintptr_t>(frame.first_local));
  }
  return h;
}

SiteId StackTable::current_stack_id() noexcept {
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
  if (slot.hash != h || slot.deaths != deaths) slot = {h, deaths, intern(h, stack, depth, deaths)};
  return slot.id;
}

SiteId StackTable::intern(uint64_t hash, const Stack& stack, size_t depth, uint64_t deaths) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      const auto known = ids_.find(hash);
      // Without a death, no module has got the address of another. The frames would be far from the processor's caches.
      if (known != ids_.end() && (known->second.deaths == deaths || has_objects_of(sites_[known->second.id], stack))) {
        known->second.deaths = deaths;
        return known->second.id;
      }
    }
    if (is_python_ending() || is_full()) return 0;
    const Gil gil;
    const py::error_scope keep_error;
    evict();
    std::vector<Frame> frames;
    frames.reserve(depth);
    for (size_t i = 0; i < depth; ++i) frames.push_back(frame_of(stack[i]));
    const std::lock_guard lock(mutex_);
    const SiteId id = add(frames);
    ids_[hash] = {id, deaths};
    return id;
  } catch (...) {  // out of memory: the site stays unknown
    return 0;
  }
}

SiteId StackTable::add(const std::vector<Frame>& frames) {
  sites_.try_emplace(newest_ + 1, frames.begin(), frames.end());
  known_ += frames.size();
  return ++newest_;
}

void StackTable::evict() {
  if (known_ < evict_at_) return;
  const auto has_died = [](const Frame& frame) {
    return (frame.module && referred_to(frame.module) == Py_None) ||
           (frame.generated && referred_to(frame.generated) == Py_None);
  };
  std::vector<Frame> forgotten;  // until the lock is released
  const std::lock_guard lock(mutex_);
  forgotten.reserve(known_);  // so that nothing fails halfway
  deaths_swept_ = deaths_.load();
  std::erase_if(sites_, [&](auto& site) {
    if (std::none_of(site.second.begin(), site.second.end(), has_died)) return false;
    known_ -= site.second.size();
    std::move(site.second.begin(), site.second.end(), std::back_inserter(forgotten));
    return true;
  });
  const auto is_gone = [&](SiteId site) { return sites_.count(site) == 0; };
  std::erase_if(ids_, [&](const auto& entry) { return is_gone(entry.second.id); });
  std::erase_if(nested_, [&](const auto& entry) {
    return is_gone(entry.second) || is_gone(static_cast<SiteId>(entry.first));  // the outer one
  });
  evict_at_ = std::clamp(2 * known_, kFewFrames, kMaxFrames);
}

bool StackTable::has_objects_of(const std::pmr::vector<Frame>& site, const Stack& stack) const noexcept {
  for (size_t i = 0; i < site.size(); ++i) {
    if (is_other(site[i].module, stack[i].first_local) || is_other(site[i].generated, stack[i].code)) return false;
  }
  return true;
}

StackTable::Frame StackTable::frame_of(const RawFrame& frame) {
  auto code = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(frame.code));
  auto module = is_module_call(frame) ? refer_to(frame.first_local) : py::object();
  if (!is_generated(frame.code)) return {std::move(code), frame.instruction, std::move(module), py::object()};
  py::object copy = code.attr("replace")();
  return {std::move(copy), frame.instruction, std::move(module), refer_to(code.ptr())};
}

// Null for an object without weak references.
py::object StackTable::refer_to(PyObject* object) {
  static PyMethodDef definition = {"on_death", &StackTable::on_death, METH_O, nullptr};
  if (death_callback_ == nullptr) death_callback_ = PyCFunction_New(&definition, nullptr);
  auto reference = py::reinterpret_steal<py::object>(PyWeakref_NewRef(object, death_callback_));
  if (!reference) PyErr_Clear();
  return reference;
}

PyObject* StackTable::on_death(PyObject*, PyObject*) noexcept {
  ++instance().deaths_;
  Py_RETURN_NONE;
}

SiteId StackTable::nest_stack(SiteId live, SiteId outer) noexcept {
  try {
    const uint64_t key = (uint64_t{live} << 32) | outer;
    {
      const std::lock_guard lock(mutex_);
      const auto known = nested_.find(key);
      if (known != nested_.end()) return known->second;
    }
    if (is_python_ending() || is_full()) return live;
    const Gil gil;
    evict();
    std::vector<Frame> joined;
    for (Frame& frame : frames(live)) {
      if (frame.code.ptr() == reinterpret_cast<PyObject*>(engine_)) break;
      joined.push_back(std::move(frame));
    }
    const bool nothing_inside = joined.empty();
    if (!nothing_inside) {
      for (Frame& frame : frames(outer)) joined.push_back(std::move(frame));
    }
    const std::lock_guard lock(mutex_);
    const SiteId id = nothing_inside ? live : add(joined);
    nested_.emplace(key, id);
    return id;
  } catch (...) {  // out of memory
    return live;
  }
}

std::vector<StackTable::Frame> StackTable::frames(SiteId site) {
  const std::lock_guard lock(mutex_);
  const auto known = sites_.find(site);
  if (known == sites_.end()) return {};
  return {known->second.begin(), known->second.end()};
}

}  // namespace torchnan
