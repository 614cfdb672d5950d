#include "origin/reported_causes.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "origin/current_call_site.h"
#include "detection/session.h"
#include "origin/inference_turn.h"
#include "origin/origin_records.h"
#include "origin/replayed_region.h"
#include "report/operator_name.h"
#include "base/format.h"

namespace torchnan {
namespace {

// The last step in which the call with a key was reported. Forgets all when it is full.
template <class Key>
class LastSteps {
 public:
  void record(Key key, int64_t step) {
    if (steps_.size() >= kMaxCalls) steps_.clear();
    steps_[std::move(key)] = step;
  }

  bool is_of(const Key& key, int64_t step) const {
    const auto found = steps_.find(key);
    return found != steps_.end() && found->second == step;
  }

 private:
  static constexpr size_t kMaxCalls = 1 << 12;
  std::map<Key, int64_t> steps_;
};

// The last origin of values with a common cause, and its turn in a program without steps.
struct CommonCause {
  std::shared_ptr<OriginRecord> origin;
  int64_t turn = 0;
};

struct Reported {                                    // in one session
  LastSteps<std::pair<SiteId, std::string>> calls;   // in the forward pass
  LastSteps<std::string> lines;                      // the same, by file and line
  LastSteps<std::string> calls_in_modules;           // the same, by line, operator and module
  LastSteps<std::string> calls_in_nodes;             // in nodes that a forward region computes
  std::map<std::string, CommonCause> common_causes;  // each with the last step that had it
  std::optional<int64_t> bad_weights;                // the last step that had them, of another rank
  std::vector<ReadNan> reads;                        // of the first few origins, in order
};

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
  return stack.empty() ? "" : format_text("{}:{}", stack.front().file, stack.front().line);
}

std::string call_in_module(const OriginRecord& origin) {
  return format_text("{} {} in {}", line_of(origin), origin.facts.op, origin.facts.module.value_or(""));
}

std::string call_in_node(const OriginRecord& origin) {
  return format_text("{} {} in {}", line_of(origin), origin.facts.op, origin.site.node);
}

bool is_operation(const OriginRecord& origin) { return origin.source == OriginRecord::Source::kOperation; }

}  // namespace

void record_reported(const DetectionSession& session, const OriginRecord& origin) {
  if (!is_operation(origin) || origin.site.live == 0) return;
  const bool is_in_node = !origin.site.node.empty();
  const bool is_in_forward_region = origin.region != nullptr && !origin.region->is_in_backward_pass();
  if (is_in_node && !is_in_forward_region) return;
  session.with_kept<Reported>([&](Reported& reported) {
    if (is_in_node) return reported.calls_in_nodes.record(call_in_node(origin), origin.site.step);
    reported.calls.record({origin.site.live, letters_of_operator(origin.facts.op)}, origin.site.step);
    reported.lines.record(line_of(origin), origin.site.step);
    reported.calls_in_modules.record(call_in_module(origin), origin.site.step);
  });
}

bool is_reported_in_forward_pass(const DetectionSession& session, const OriginRecord& origin) {
  if (!is_operation(origin) || origin.site.node.empty()) return false;
  // A checkpoint runs the forward pass again, in whichever node asks for its values.
  const bool is_recomputed = origin.facts.phase == Phase::kForward && !origin.facts.stack.empty();
  // The backward pass of a region may compute again what its forward pass has computed.
  const bool is_in_backward_region = origin.region != nullptr && origin.region->is_in_backward_pass();
  const bool has_forward_call = is_recomputed || origin.site.forward != 0;
  if (!has_forward_call && !is_in_backward_region) return false;
  return session.with_kept<Reported>([&](const Reported& reported) {
    const int64_t step = origin.site.step;
    if (is_in_backward_region && reported.calls_in_nodes.is_of(call_in_node(origin), step)) return true;
    if (!has_forward_call) return false;
    if (is_recomputed) return reported.calls_in_modules.is_of(call_in_module(origin), step);
    // A whole graph: each of its operations has the line of its forward call.
    if (origin.site.node == kCompiledNode) return reported.lines.is_of(line_of(origin), step);
    return reported.calls.is_of({origin.site.forward, letters_of_node(origin.site.node)}, step);
  });
}

std::shared_ptr<OriginRecord> one_origin_of(const std::string& cause, const DetectionSession& session,
                                            std::shared_ptr<OriginRecord> origin) {
  CommonCause released;  // after the lock
  const int64_t turn = inference_turn(session);
  return session.with_kept<Reported>([&](Reported& reported) {
    CommonCause& known = reported.common_causes[cause];
    const bool is_same = known.origin != nullptr && known.origin->site.step == origin->site.step && known.turn == turn;
    if (!is_same) released = std::exchange(known, {origin, turn});
    return known.origin;
  });
}

void record_bad_weights(const DetectionSession& session) {
  session.with_kept<Reported>([&](Reported& reported) { reported.bad_weights = session.step(); });
}

bool is_beside_bad_weights(const DetectionSession& session, const OriginRecord& origin) {
  const auto bad = session.with_kept<Reported>([](const Reported& reported) { return reported.bad_weights; });
  return bad && (origin.site.step == *bad || origin.site.step == *bad + 1);
}

void record_read(const DetectionSession& session, const std::shared_ptr<const OriginRecord>& origin) {
  constexpr size_t kMost = 64;
  if (!is_operation(*origin)) return;
  const SiteId site = current_nested_stack();
  session.with_kept<Reported>([&](Reported& reported) {
    std::vector<ReadNan>& reads = reported.reads;
    const auto is_same = [&](const ReadNan& one) { return one.origin == origin; };
    if (reads.size() == kMost || std::any_of(reads.begin(), reads.end(), is_same)) return;
    reads.push_back({origin, site, next_origin_sequence()});
  });
}

std::optional<ReadNan> read_before(const DetectionSession& session, const OriginRecord& origin) {
  return session.with_kept<Reported>([&](const Reported& reported) {
    const auto is_earlier = [&](const ReadNan& one) { return one.sequence <= origin.sequence; };
    const auto last = std::find_if(reported.reads.rbegin(), reported.reads.rend(), is_earlier);
    return last == reported.reads.rend() ? std::nullopt : std::optional(*last);
  });
}

}  // namespace torchnan
