// Any bytes, as a line of a log and as the names in a finding. A fuzzer with libFuzzer's main() in front of it; the C++
// tests run it over the corpus.
#include <torchnan/finding.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "base/printable.h"

namespace torchnan {
namespace {

void want(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::abort();
}

// A written finding can be read again, and its text is safe for a terminal.
void want_safe(const Finding& finding) {
  const std::string line = to_json(finding);
  for (const char c : line) want(c >= 0x20 && c < 0x7f, "a line is printable ASCII");
  want(to_json(finding_from_json(line)) == line, "a line is read as what was written");
  std::istringstream report(to_text(finding));
  for (std::string row; std::getline(report, row);) {
    want(printable(row, std::string::npos) == row, "a report has nothing invisible in it");
  }
}

// Hands out pieces of the input.
class Pieces {
 public:
  Pieces(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  // As long as the preceding byte says.
  std::string text() {
    if (left_.empty()) return "";
    const size_t length = static_cast<unsigned char>(left_.front());
    return take(1, length);
  }

  template <typename Number>
  Number number() {
    Number made = {};
    const std::string bytes = take(0, sizeof made);
    std::memcpy(&made, bytes.data(), bytes.size());
    return made;
  }

  int64_t count() { return number<int64_t>() & INT64_MAX; }

 private:
  std::string take(size_t skipped, size_t length) {
    left_.remove_prefix(skipped);
    const std::string taken(left_.substr(0, length));
    left_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view left_;
};

Finding named_with(Pieces pieces) {
  Finding f;
  f.op = pieces.text();
  f.overload = pieces.text();
  f.node = pieces.text();
  f.module = pieces.text();
  f.name = pieces.text();
  f.device = pieces.text();
  f.dtype = pieces.text();
  f.hint = pieces.text();
  f.harm = {HarmKind::kGuard, pieces.text(), pieces.text(), pieces.number<int64_t>()};
  f.stack = {{pieces.text(), pieces.number<int64_t>(), pieces.text()}};
  f.lineage = {{pieces.text(), pieces.text(), pieces.number<int64_t>()}};
  f.inputs.resize(1);
  f.inputs[0].name = pieces.text();
  f.inputs[0].dtype = pieces.text();
  f.inputs[0].constant = pieces.text();
  f.inputs[0].tally.min = pieces.number<double>();
  f.inputs[0].tally.max = pieces.number<double>();
  f.step = pieces.number<int64_t>();
  f.thread = pieces.number<uint64_t>();
  f.shape = f.first_index = {pieces.count()};
  f.nan = pieces.count();
  return f;
}

}  // namespace
}  // namespace torchnan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torchnan;
  try {
    want_safe(finding_from_json({reinterpret_cast<const char*>(data), size}));
  } catch (const std::invalid_argument& refusal) {
    want(printable(refusal.what(), std::string::npos) == refusal.what(), "a refusal has nothing invisible in it");
  }
  want_safe(named_with(Pieces(data, size)));
  return 0;
}
