#include "origin/reported_causes.h"

#include <cctype>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "process/fork_safe_mutex.h"
#include "report/operator_name.h"

namespace torchnan {
namespace {

constexpr size_t kMaxCalls = 1 << 12;  // of one session

struct Reported {
  std::map<std::pair<SiteId, std::string>, int64_t> calls;             // in the forward pass, with the last step
  std::map<std::string, int64_t> lines;                                // the same, by file and line
  std::map<std::string, int64_t> calls_in_modules;                     // the same, by line, operator and module
  std::map<std::string, std::shared_ptr<OriginRecord>> common_causes;  // each with the last step that had it
};

struct Registry {
  ForkSafeMutex mutex;
  std::map<const DetectionSession*, Reported> by_session;
};

Registry& registry = *new Registry;  // never destroyed: threads may outlive static destructors

// "aten::_log_softmax_" and "LogSoftmaxBackward0" -> "logsoftmax".
std::string letters_of(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c != '_') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters;
}

std::string letters_of_operator(std::string_view op) { return letters_of(without_namespace(op)); }

std::string letters_of_node(std::string_view node) { return letters_of(node.substr(0, node.rfind("Backward"))); }

std::string line_of(const OriginRecord& origin) {
  const std::vector<Frame>& stack = origin.facts.stack;
  return stack.empty() ? "" : fmt::format("{}:{}", stack.front().file, stack.front().line);
}

std::string call_in_module(const OriginRecord& origin) {
  return fmt::format("{} {} in {}", line_of(origin), origin.facts.op, origin.facts.module.value_or(""));
}

// Whether the step that the map has for a key is that of the origin.
template <class Key>
bool is_of_step(const std::map<Key, int64_t>& steps, const Key& key, const OriginRecord& origin) {
  const auto found = steps.find(key);
  return found != steps.end() && found->second == origin.site.step;
}

bool is_operation(const OriginRecord& origin) { return origin.source == OriginRecord::Source::kOperation; }

}  // namespace

void record_reported(const DetectionSession& session, const OriginRecord& origin) {
  if (!is_operation(origin) || !origin.site.node.empty() || origin.site.live == 0) return;
  const std::lock_guard lock(registry.mutex);
  auto& [calls, lines, calls_in_modules, common_causes] = registry.by_session[&session];
  if (calls.size() >= kMaxCalls) calls.clear();
  if (lines.size() >= kMaxCalls) lines.clear();
  if (calls_in_modules.size() >= kMaxCalls) calls_in_modules.clear();
  calls[{origin.site.live, letters_of_operator(origin.facts.op)}] = origin.site.step;
  lines[line_of(origin)] = origin.site.step;
  calls_in_modules[call_in_module(origin)] = origin.site.step;
}

bool is_reported_in_forward_pass(const DetectionSession& session, const OriginRecord& origin) {
  if (!is_operation(origin) || origin.site.node.empty()) return false;
  // A checkpoint runs the forward pass again, in whichever node asks for its values.
  const bool is_recomputed = origin.facts.phase == Phase::kForward && !origin.facts.stack.empty();
  if (!is_recomputed && origin.site.forward == 0) return false;
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.by_session.find(&session);
  if (found == registry.by_session.end()) return false;
  const Reported& reported = found->second;
  if (is_recomputed) return is_of_step(reported.calls_in_modules, call_in_module(origin), origin);
  // A whole graph: each of its operations has the line of its forward call.
  if (origin.site.node == kCompiledNode) return is_of_step(reported.lines, line_of(origin), origin);
  return is_of_step(reported.calls, {origin.site.forward, letters_of_node(origin.site.node)}, origin);
}

std::shared_ptr<OriginRecord> one_origin_of(const std::string& cause, const DetectionSession& session,
                                            std::shared_ptr<OriginRecord> origin) {
  std::shared_ptr<OriginRecord> released;  // after the lock
  const std::lock_guard lock(registry.mutex);
  auto& known = registry.by_session[&session].common_causes[cause];
  if (known != nullptr && known->site.step == origin->site.step) return known;
  released = std::exchange(known, origin);
  return origin;
}

void forget_reported(const DetectionSession& session) {
  Reported released;  // after the lock
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.by_session.find(&session);
  if (found == registry.by_session.end()) return;
  released = std::move(found->second);
  registry.by_session.erase(found);
}

}  // namespace torchnan
