#include "base/scope_table.h"

#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include <torchnan/scope.h>

#include "base/fork_safe_mutex.h"

namespace torchnan {
namespace {

constexpr size_t kMaxScopes = 1 << 16;

struct Opened {
  uint32_t outer;
  Frame frame;
};

struct Table {
  ForkSafeMutex mutex;
  std::map<std::tuple<uint32_t, std::string, int64_t, std::string>, uint32_t> ids;
  std::vector<Opened> scopes;
};

Table& table = *new Table;  // never destroyed: threads may outlive static destructors
thread_local uint32_t innermost = 0;

// Returns the id of a scope inside the innermost one; that of the innermost one when there are too many.
uint32_t intern_scope(const Frame& frame) {
  const std::lock_guard lock(table.mutex);
  const auto key = std::make_tuple(innermost, frame.file, frame.line, frame.function);
  const auto known = table.ids.find(key);
  if (known != table.ids.end()) return known->second;
  if (table.scopes.size() == kMaxScopes) return innermost;
  table.scopes.push_back({innermost, frame});
  const auto id = static_cast<uint32_t>(table.scopes.size());
  table.ids.emplace(key, id);
  return id;
}

}  // namespace

uint32_t current_scope() noexcept { return innermost; }

std::vector<Frame> frames_of_scope(uint32_t scope) {
  std::vector<Frame> frames;
  const std::lock_guard lock(table.mutex);
  for (; scope != 0 && scope <= table.scopes.size(); scope = table.scopes[scope - 1].outer) {
    frames.push_back(table.scopes[scope - 1].frame);
  }
  return frames;
}

Scope::Scope(std::string name, const std::source_location& where) : outer_(innermost) {
  if (name.empty()) name = where.function_name();
  innermost = intern_scope({where.file_name(), static_cast<int64_t>(where.line()), std::move(name)});
}

Scope::~Scope() { innermost = outer_; }

}  // namespace torchnan
