#include "report/truncate.h"

#include <string_view>

#include "report/finding_fields.h"

namespace torchnan {
namespace {

constexpr std::string_view kMark = "...";

bool is_continuation_byte(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// Keeps more of the end than of the beginning: the end of a path says more.
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

// Keeps the first steps and the last one.
void truncate_lineage(Finding& finding, const Length& limit) {
  std::vector<LineageStep>& steps = finding.lineage;
  if (steps.size() <= limit.items) return;
  finding.lineage_omitted += static_cast<int64_t>(steps.size() - limit.items);
  steps[limit.items - 1] = std::move(steps.back());
  steps.resize(limit.items);
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
  void operator()(const char*, std::vector<int64_t>& numbers) { keep_first(numbers, kKeptLength.items); }
  void operator()(const char*, Harm& harm) { for_each_field(harm, *this); }
  void operator()(const char*, std::optional<CompiledRegion>& compiled) {
    if (compiled) for_each_field(*compiled, *this);
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

}  // namespace

void truncate(Finding& finding, const Length& limit) {
  truncate_lineage(finding, limit);
  for_each_field(finding, Truncation(limit));
}

}  // namespace torchnan
