// One finding as one line of strict JSON.
#include <torchnan/finding.h>

#include <cmath>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "scan/strict_floats.h"
#include "text/printable.h"
#include "report/truncate.h"

namespace torchnan {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLineBytes = 16384;  // any line is shorter than this, its end included

// A number, a string, null. No tree of values is made: taking one down asks for memory, in a destructor.
std::string leaf(const Json& value) { return value.dump(-1, ' ', true, Json::error_handler_t::replace); }

std::string text(const std::string& given) {
  return leaf(to_valid_utf8(given, std::string::npos));
}  // shorten() has cut it

std::string object(std::initializer_list<std::pair<const char*, std::string>> fields) {
  std::string all;
  for (const auto& [name, value] : fields) all += fmt::format("{}\"{}\":{}", all.empty() ? "{" : ",", name, value);
  return all + "}";
}

template <typename T, typename Convert>
std::string list(const std::vector<T>& items, Convert&& convert) {
  std::string all = "[";
  for (const T& item : items) {
    if (all.size() > 1) all += ',';
    all += convert(item);
  }
  all += ']';
  return all;
}

std::string integers(const std::vector<int64_t>& items) {
  return list(items, [](int64_t n) { return std::to_string(n); });
}

// JSON has no NaN and no Infinity.
std::string number_or_null(const std::optional<double>& x) {
  if (!x) return "null";
  if (std::isnan(*x)) return leaf("nan");
  if (std::isinf(*x)) return leaf(*x > 0 ? "inf" : "-inf");
  return leaf(*x);
}

template <typename T>
std::string or_null(const std::optional<T>& value) {
  return value ? leaf(*value) : "null";
}

std::string text_or_null(const std::string& given) { return given.empty() ? "null" : text(given); }

std::string frame(const Frame& f) {
  return object({{"file", text(f.file)}, {"line", leaf(f.line)}, {"function", text(f.function)}});
}

std::string input(const InputSummary& in) {
  return object({{"name", text(in.name)},
                 {"dtype", text(in.dtype)},
                 {"shape", integers(in.shape)},
                 {"min", number_or_null(in.tally.min)},
                 {"max", number_or_null(in.tally.max)},
                 {"absmax", number_or_null(in.tally.absmax)},
                 {"nan", leaf(in.tally.nan)},
                 {"posinf", leaf(in.tally.posinf)},
                 {"neginf", leaf(in.tally.neginf)},
                 {"overwritten", leaf(in.overwritten)},
                 {"constant", text_or_null(in.constant)}});
}

std::string step(const LineageStep& s) {
  return object({{"op", text(s.op)}, {"file", text_or_null(s.file)}, {"line", leaf(s.line)}});
}

std::string harm(const Harm& h) {
  return object({{"kind", leaf(name_of(h.kind))},
                 {"name", text_or_null(h.name)},
                 {"file", text_or_null(h.file)},
                 {"line", leaf(h.line)}});
}

std::string dump(const Finding& f) {
  return object({{"schema", leaf(Finding::kSchemaVersion)},
                 {"level", leaf(name_of(f.level))},
                 {"kind", leaf(name_of(f.kind))},
                 {"origin", leaf(name_of(f.origin))},
                 {"phase", leaf(name_of(f.phase))},
                 {"op", text(f.op)},
                 {"overload", text(f.overload)},
                 {"output", leaf(f.output)},
                 {"node", text_or_null(f.node)},
                 {"module", f.module ? text(*f.module) : "null"},
                 {"name", text_or_null(f.name)},
                 {"stack", list(f.stack, frame)},
                 {"step", or_null(f.step)},
                 {"rank", or_null(f.rank)},
                 {"thread", leaf(f.thread)},
                 {"device", text(f.device)},
                 {"dtype", text(f.dtype)},
                 {"shape", integers(f.shape)},
                 {"strides", integers(f.strides)},
                 {"nan", leaf(f.nan)},
                 {"posinf", leaf(f.posinf)},
                 {"neginf", leaf(f.neginf)},
                 {"first_index", integers(f.first_index)},
                 {"inputs", list(f.inputs, input)},
                 {"lineage", list(f.lineage, step)},
                 {"lineage_omitted", leaf(f.lineage_omitted)},
                 {"harm", harm(f.harm)},
                 {"hint", text_or_null(f.hint)},
                 {"repeats", leaf(f.repeats)}});
}

}  // namespace

std::string to_json(const Finding& f) {
  std::string line = dump(f);
  for (Length length{512, 64}; line.size() + 1 >= kLineBytes && length.items > 1;
       length = {length.bytes / 2, length.items / 2}) {
    Finding brief = f;
    truncate(brief, length);
    line = dump(brief);
  }
  return line;
}

}  // namespace torchnan
