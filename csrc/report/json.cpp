// One finding as one line of strict JSON.
#include <torchnan/finding.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "check/strict_floats.h"
#include "report/printable.h"
#include "report/shorten.h"

namespace torchnan {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLineBytes = 16384;  // any line is shorter than this, its end included

// JSON has no NaN and no Infinity.
Json number(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return x;
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json number_or_null(const std::optional<double>& x) { return x ? number(*x) : Json(nullptr); }
Json text(const std::string& text) { return storable(text, std::string::npos); }  // shorten() has cut it
Json text_or_null(const std::string& given) { return given.empty() ? Json(nullptr) : text(given); }

Json frame(const Frame& f) { return {{"file", text(f.file)}, {"line", f.line}, {"function", text(f.function)}}; }

Json input(const InputSummary& in) {
  return {{"name", text(in.name)},
          {"dtype", in.dtype},
          {"shape", in.shape},
          {"min", number_or_null(in.tally.min)},
          {"max", number_or_null(in.tally.max)},
          {"absmax", number_or_null(in.tally.absmax)},
          {"nan", in.tally.nan},
          {"posinf", in.tally.posinf},
          {"neginf", in.tally.neginf},
          {"overwritten", in.overwritten},
          {"constant", text_or_null(in.constant)}};
}

template <typename T, typename Convert>
Json list(const std::vector<T>& items, Convert&& convert) {
  Json array = Json::array();
  for (const T& item : items) array.push_back(convert(item));
  return array;
}

std::string dump(const Finding& f) {
  Json json = {
      {"schema", Finding::kSchemaVersion},
      {"level", name_of(f.level)},
      {"kind", name_of(f.kind)},
      {"origin", name_of(f.origin)},
      {"phase", name_of(f.phase)},
      {"op", text(f.op)},
      {"overload", text(f.overload)},
      {"output", f.output},
      {"node", text_or_null(f.node)},
      {"module", f.module ? text(*f.module) : Json(nullptr)},
      {"name", text_or_null(f.name)},
      {"stack", list(f.stack, frame)},
      {"step", or_null(f.step)},
      {"rank", or_null(f.rank)},
      {"thread", f.thread},
      {"device", text(f.device)},
      {"dtype", f.dtype},
      {"shape", f.shape},
      {"strides", f.strides},
      {"nan", f.nan},
      {"posinf", f.posinf},
      {"neginf", f.neginf},
      {"first_index", f.first_index},
      {"inputs", list(f.inputs, input)},
      {"lineage", list(f.lineage,
                       [](const LineageStep& s) {
                         return Json{{"op", text(s.op)}, {"file", text_or_null(s.file)}, {"line", s.line}};
                       })},
      {"lineage_omitted", f.lineage_omitted},
      {"harm",
       {{"kind", name_of(f.harm.kind)},
        {"name", text_or_null(f.harm.name)},
        {"file", text_or_null(f.harm.file)},
        {"line", f.harm.line}}},
      {"hint", text_or_null(f.hint)},
      {"repeats", f.repeats},
  };
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace

std::string to_json(const Finding& f) {
  std::string line = dump(f);
  for (Length length{512, 64}; line.size() + 1 >= kLineBytes && length.items > 1;
       length = {length.bytes / 2, length.items / 2}) {
    Finding brief = f;
    shorten(brief, length);
    line = dump(brief);
  }
  return line;
}

}  // namespace torchnan
