// One line of a log as a finding again. Lines may come from anywhere: what is not as to_json() writes it is refused.
#include <torchnan/finding.h>

#include <limits>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "scan/strict_floats.h"
#include "text/printable.h"

namespace torchnan {
namespace {

using Json = nlohmann::json;

constexpr size_t kLongestLine = size_t{1} << 20;
constexpr size_t kDeepest = 4;  // a finding, its inputs, one of them, its shape
constexpr size_t kShown = 80;

std::invalid_argument wrong(const std::string& where, const std::string& expected, const Json& found) {
  const std::string text = found.dump(-1, ' ', true, Json::error_handler_t::replace);
  return std::invalid_argument(fmt::format("{} must be {} but is {}", where, expected, printable(text, kShown)));
}

// Refuses what the parser would let pass: two entries of one name, and nesting without end. (The parser's own callback
// looks at all elements of a list when one of them ends.)
class Strictness final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool start_object(size_t) override { return enter(); }
  bool start_array(size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }  // the parser tells

  bool key(std::string& name) override {
    if (names_.back().insert(name).second) return true;
    throw std::invalid_argument(fmt::format("'{}' is there twice", printable(name, kShown)));
  }

 private:
  bool enter() {
    if (names_.size() == kDeepest) {
      throw std::invalid_argument(fmt::format("it is nested deeper than {} levels", kDeepest));
    }
    names_.emplace_back();
    return true;
  }

  bool leave() {
    names_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> names_;  // of the objects around
};

Json parsed(std::string_view line) {
  if (line.size() > kLongestLine) {
    throw std::invalid_argument(
        fmt::format("it has {} bytes, and no finding has more than {}", line.size(), kLongestLine));
  }
  Strictness strictness;
  Json::sax_parse(line, &strictness);
  try {
    return Json::parse(line);
  } catch (const Json::exception& error) {
    throw std::invalid_argument(fmt::format("it is not JSON: {}", printable(error.what())));
  }
}

// The entries of an object. Each must be there, and no other.
class Entries {
 public:
  Entries(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw wrong(where_.empty() ? "a finding" : where_, "an object", object);
  }

  std::string text(const std::string& name) {
    const Json& value = at(name);
    if (!value.is_string()) throw wrong(path(name), "a string", value);
    return value.get<std::string>();
  }

  std::optional<std::string> text_or_null(const std::string& name) {
    const Json& value = at(name);
    if (value.is_null()) return std::nullopt;
    if (!value.is_string()) throw wrong(path(name), "a string or null", value);
    return value.get<std::string>();
  }

  bool flag(const std::string& name) {
    const Json& value = at(name);
    if (!value.is_boolean()) throw wrong(path(name), "true or false", value);
    return value.get<bool>();
  }

  template <typename Number = int64_t>
  Number integer(const std::string& name, Number least = std::numeric_limits<Number>::min()) {
    return whole<Number>(at(name), path(name), least);
  }

  int64_t count(const std::string& name) { return integer<int64_t>(name, 0); }

  std::optional<int64_t> integer_or_null(const std::string& name) {
    const Json& value = at(name);
    return value.is_null() ? std::nullopt : std::optional(integer(name));
  }

  std::vector<int64_t> counts(const std::string& name) {
    std::vector<int64_t> made;
    each(name, [&](const Json& value, const std::string& where) { made.push_back(whole<int64_t>(value, where, 0)); });
    return made;
  }

  // Numbers that JSON does not have are words.
  std::optional<double> number_or_null(const std::string& name) {
    const Json& value = at(name);
    if (value.is_null()) return std::nullopt;
    if (value.is_number()) return value.get<double>();
    if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (value == "inf") return std::numeric_limits<double>::infinity();
    if (value == "-inf") return -std::numeric_limits<double>::infinity();
    throw wrong(path(name), "a number, 'nan', 'inf', '-inf' or null", value);
  }

  template <typename Word>
  Word word(const std::string& name) {
    const Json& value = at(name);
    std::string known;
    for (int i = 0; *name_of(static_cast<Word>(i)) != '\0'; ++i) {
      if (value == name_of(static_cast<Word>(i))) return static_cast<Word>(i);
      known += fmt::format("{}{}", i == 0 ? "" : ", ", name_of(static_cast<Word>(i)));
    }
    throw wrong(path(name), fmt::format("one of {}", known), value);
  }

  template <typename Read>
  auto object(const std::string& name, Read&& read) {
    return whole_object(at(name), path(name), read);
  }

  template <typename Read>
  auto objects(const std::string& name, Read&& read) {
    std::vector<decltype(read(*this))> made;
    each(name, [&](const Json& value, const std::string& where) { made.push_back(whole_object(value, where, read)); });
    return made;
  }

  void expect_end() const {
    for (const auto& [name, value] : object_.items()) {
      if (taken_.count(name) == 0) {
        throw std::invalid_argument(fmt::format("{} is not known", printable(path(name), kShown)));
      }
    }
  }

 private:
  std::string path(const std::string& name) const { return where_.empty() ? name : where_ + "." + name; }

  const Json& at(const std::string& name) {
    const auto found = object_.find(name);
    if (found == object_.end()) throw std::invalid_argument(path(name) + " is missing");
    taken_.insert(name);
    return *found;
  }

  template <typename Number>
  static Number whole(const Json& value, const std::string& where, Number least) {
    const auto fits = [&](auto x) { return std::in_range<Number>(x) && std::cmp_greater_equal(x, least); };
    const bool is_one = value.is_number_unsigned() ? fits(value.get<uint64_t>())
                                                   : value.is_number_integer() && fits(value.get<int64_t>());
    if (!is_one) {
      throw wrong(where, fmt::format("a whole number from {} to {}", least, std::numeric_limits<Number>::max()), value);
    }
    return value.get<Number>();
  }

  template <typename Take>
  void each(const std::string& name, Take&& take) {
    const Json& list = at(name);
    if (!list.is_array()) throw wrong(path(name), "a list", list);
    for (size_t i = 0; i < list.size(); ++i) take(list[i], fmt::format("{}[{}]", path(name), i));
  }

  template <typename Read>
  static auto whole_object(const Json& value, const std::string& where, Read&& read) {
    Entries entries(value, where);
    auto made = read(entries);
    entries.expect_end();
    return made;
  }

  const Json& object_;
  const std::string where_;
  std::set<std::string> taken_;
};

void expect_schema(Entries& in) {
  const int64_t schema = in.integer("schema");
  if (schema == Finding::kSchemaVersion) return;
  throw std::invalid_argument(fmt::format("schema is {}, and this torchnan reads {}{}", schema, Finding::kSchemaVersion,
                                          schema > Finding::kSchemaVersion ? ": update torchnan" : ""));
}

Frame frame(Entries& in) { return {in.text("file"), in.integer("line"), in.text("function")}; }

LineageStep lineage_step(Entries& in) {
  return {in.text("op"), in.text_or_null("file").value_or(""), in.integer("line")};
}

Harm harm(Entries& in) {
  return {in.word<HarmKind>("kind"), in.text_or_null("name").value_or(""), in.text_or_null("file").value_or(""),
          in.integer("line")};
}

InputSummary input(Entries& in) {
  InputSummary made;
  made.name = in.text("name");
  made.dtype = in.text("dtype");
  made.shape = in.counts("shape");
  made.tally.min = in.number_or_null("min");
  made.tally.max = in.number_or_null("max");
  made.tally.absmax = in.number_or_null("absmax");
  made.tally.nan = in.count("nan");
  made.tally.posinf = in.count("posinf");
  made.tally.neginf = in.count("neginf");
  made.overwritten = in.flag("overwritten");
  made.constant = in.text_or_null("constant").value_or("");
  return made;
}

}  // namespace

Finding finding_from_json(std::string_view line) {
  const Json json = parsed(line);
  Entries in(json, "");
  expect_schema(in);
  Finding f;
  f.level = in.word<Level>("level");
  f.kind = in.word<Kind>("kind");
  f.origin = in.word<Origin>("origin");
  f.phase = in.word<Phase>("phase");
  f.op = in.text("op");
  f.overload = in.text("overload");
  f.output = in.count("output");
  f.node = in.text_or_null("node").value_or("");
  f.module = in.text_or_null("module");
  f.name = in.text_or_null("name").value_or("");
  f.stack = in.objects("stack", frame);
  f.step = in.integer_or_null("step");
  f.rank = in.integer_or_null("rank");
  f.thread = in.integer<uint64_t>("thread");
  f.device = in.text("device");
  f.dtype = in.text("dtype");
  f.shape = in.counts("shape");
  f.strides = in.counts("strides");
  f.nan = in.count("nan");
  f.posinf = in.count("posinf");
  f.neginf = in.count("neginf");
  f.first_index = in.counts("first_index");
  f.inputs = in.objects("inputs", input);
  f.lineage = in.objects("lineage", lineage_step);
  f.lineage_omitted = in.count("lineage_omitted");
  f.harm = in.object("harm", harm);
  f.hint = in.text_or_null("hint").value_or("");
  f.repeats = in.count("repeats");
  in.expect_end();
  return f;
}

}  // namespace torchnan
