#include "report/truncate.h"

#include <string_view>

namespace torchnan {
namespace {

constexpr std::string_view kMark = "...";

bool is_inside_of_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// The end of a path says more than its beginning.
void cut(std::string& text, size_t most) {
  if (text.size() <= most) return;
  size_t head = (most - kMark.size()) / 3;
  size_t tail = text.size() - (most - kMark.size() - head);
  while (head > 0 && is_inside_of_character(text[head])) --head;
  while (tail < text.size() && is_inside_of_character(text[tail])) ++tail;
  text.replace(head, tail - head, kMark);
}

template <typename T>
void keep_first(std::vector<T>& items, size_t most) {
  if (items.size() > most) items.resize(most);
}

void shorten_lineage(Finding& finding, const Length& most) {
  std::vector<LineageStep>& steps = finding.lineage;
  if (steps.size() > most.items) {
    finding.lineage_omitted += static_cast<int64_t>(steps.size() - most.items);
    steps[most.items - 1] = std::move(steps.back());
    steps.resize(most.items);
  }
  for (LineageStep& step : steps) {
    cut(step.op, most.bytes);
    cut(step.file, most.bytes);
  }
}

}  // namespace

void truncate(Finding& f, const Length& most) {
  for (std::string* text :
       {&f.op, &f.overload, &f.node, &f.name, &f.device, &f.dtype, &f.hint, &f.harm.name, &f.harm.file}) {
    cut(*text, most.bytes);
  }
  if (f.module) cut(*f.module, most.bytes);
  for (std::vector<int64_t>* numbers : {&f.shape, &f.strides, &f.first_index}) keep_first(*numbers, kKeptLength.items);
  keep_first(f.stack, most.items);
  for (Frame& frame : f.stack) {
    cut(frame.file, most.bytes);
    cut(frame.function, most.bytes);
  }
  keep_first(f.inputs, most.items);
  for (InputSummary& input : f.inputs) {
    for (std::string* text : {&input.name, &input.dtype, &input.constant}) cut(*text, most.bytes);
    keep_first(input.shape, kKeptLength.items);
  }
  shorten_lineage(f, most);
}

}  // namespace torchnan
