#include "report/truncate.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "report/finding_fields.h"

namespace torchnan {
namespace {

constexpr std::string_view kMark = "...";

bool is_continuation_byte(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// Keeps more of the end than of the beginning, because the end of a path is more informative.
void cut(std::string& text, size_t limit) {
  if (text.size() <= limit) return;
  size_t head = (limit - kMark.size()) / 3;
  size_t tail = text.size() - (limit - kMark.size() - head);
  while (head > 0 && is_continuation_byte(text[head])) --head;
  while (tail < text.size() && is_continuation_byte(text[tail])) ++tail;
  text.replace(head, tail - head, kMark);
}

template <typename T>
void keep_first(std::vector<T>& items, size_t limit) {
  if (items.size() > limit) items.resize(limit);
}

// A visitor of for_each_field().
class Truncation {
 public:
  explicit Truncation(const Length& limit) : limit_(limit) {}

  void operator()(const char*, std::string& text) { cut(text, limit_.bytes); }
  void operator()(const char*, OptionalText<std::string> text) { cut(text.value, limit_.bytes); }
  void operator()(const char*, std::optional<std::string>& text) {
    if (text) cut(*text, limit_.bytes);
  }
  void operator()(const char*, std::vector<std::string>& texts) {
    for (std::string& text : texts) cut(text, limit_.bytes);
  }
  void operator()(const char*, std::vector<int64_t>& numbers) { keep_first(numbers, kKeptLength.items); }
  void operator()(const char*, Harm& harm) { for_each_field(harm, *this); }
  void operator()(const char*, std::optional<CompiledRegion>& compiled) {
    if (compiled) for_each_field(*compiled, *this);
  }
  // Keeps the outermost frame, too.
  void operator()(const char*, std::vector<Frame>& stack) {
    if (stack.size() > limit_.items) std::swap(stack[limit_.items - 1], stack.back());
    keep_first(stack, limit_.items);
    for (Frame& frame : stack) for_each_field(frame, *this);
  }
  template <typename Part>
  void operator()(const char*, std::vector<Part>& parts) {
    keep_first(parts, limit_.items);
    for (Part& part : parts) for_each_field(part, *this);
  }
  template <typename Number>
  void operator()(const char*, const Number&) {}

 private:
  const Length& limit_;
};

void shorten_others(Finding& finding, size_t max_entries) {
  const size_t kept = std::min(finding.others.size(), max_entries);
  finding.others_omitted += static_cast<int64_t>(finding.others.size() - kept);
  finding.others.resize(kept);
}

}  // namespace

void shorten_lineage(Finding& finding, size_t max_entries) {
  std::vector<LineageStep>& steps = finding.lineage;
  int64_t& omitted = finding.lineage_omitted;
  if (omitted == 0 && steps.size() <= max_entries) return;
  size_t kept = std::min(steps.size(), max_entries - 1);
  const bool is_one_alone = omitted + static_cast<int64_t>(steps.size() - kept) == 1;
  if (is_one_alone && kept > 1) --kept;
  if (kept == steps.size()) return;
  omitted += static_cast<int64_t>(steps.size() - kept);
  steps[kept - 1] = std::move(steps.back());
  steps.resize(kept);
}

void truncate(Finding& finding, const Length& limit) {
  shorten_lineage(finding, limit.items);
  shorten_others(finding, limit.items);
  for_each_field(finding, Truncation(limit));
}

}  // namespace torchnan
