// Reads one line of a log as a finding. Lines may come from anywhere: a line that to_json() would not write is
// rejected.
#include <torchnan/finding.h>

#include <limits>
#include <set>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "report/enum_names.h"
#include "report/finding_fields.h"
#include "base/strict_floats.h"
#include "base/format.h"
#include "base/printable.h"

namespace torchnan {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxLineBytes = size_t{1} << 20;
constexpr size_t kMaxDepth = 4;  // a finding, its inputs, one of them, its shape
constexpr size_t kShown = 80;

std::invalid_argument wrong(const std::string& where, const std::string& expected, const Json& found) {
  const std::string text = found.dump(-1, ' ', true, Json::error_handler_t::replace);
  return std::invalid_argument(format_text("{} must be {} but is {}", where, expected, printable(text, kShown)));
}

// Rejects input that the parser accepts: two entries of one name, and unlimited nesting. (The parser's own callback
// visits all elements of a list each time one of them ends.)
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
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }  // parse() reports it

  bool key(std::string& name) override {
    if (names_.back().insert(name).second) return true;
    throw std::invalid_argument(format_text("'{}' occurs twice", printable(name, kShown)));
  }

 private:
  bool enter() {
    if (names_.size() == kMaxDepth) {
      throw std::invalid_argument(format_text("it is nested deeper than {} levels", kMaxDepth));
    }
    names_.emplace_back();
    return true;
  }

  bool leave() {
    names_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> names_;  // of the enclosing objects
};

Json parsed(std::string_view line) {
  if (line.size() > kMaxLineBytes) {
    throw std::invalid_argument(
        format_text("it has {} bytes, and a finding has at most {}", line.size(), kMaxLineBytes));
  }
  Strictness strictness;
  Json::sax_parse(line, &strictness);
  try {
    return Json::parse(line);
  } catch (const Json::exception& error) {
    throw std::invalid_argument(format_text("it is not JSON: {}", printable(error.what())));
  }
}

// Reads the fields of an object into a part of a finding: a visitor of for_each_field(). Every field must be present,
// and no other.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw wrong(where_.empty() ? "a finding" : where_, "an object", object);
  }

  template <typename Field>
  void operator()(const char* name, Field&& field) {
    read(at(name), path(name), field);
  }

  void expect_schema() {
    int64_t schema = 0;
    (*this)("schema", schema);
    if (schema == Finding::kSchemaVersion) return;
    throw std::invalid_argument(format_text("schema is {}, and this torchnan reads {}{}", schema,
                                            Finding::kSchemaVersion,
                                            schema > Finding::kSchemaVersion ? ": update torchnan" : ""));
  }

  void expect_end() const {
    for (const auto& [name, value] : object_.items()) {
      if (taken_.count(name) == 0) {
        throw std::invalid_argument(format_text("{} is not known", printable(path(name), kShown)));
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

  static void read(const Json& value, const std::string& where, std::string& text) {
    if (!value.is_string()) throw wrong(where, "a string", value);
    text = value.get<std::string>();
  }

  static void read(const Json& value, const std::string& where, std::optional<std::string>& text) {
    if (value.is_null()) return text.reset();
    if (!value.is_string()) throw wrong(where, "a string or null", value);
    text = value.get<std::string>();
  }

  static void read(const Json& value, const std::string& where, OptionalText<std::string>& field) {
    std::optional<std::string> text;
    read(value, where, text);
    field.value = std::move(text).value_or("");
  }

  static void read(const Json& value, const std::string& where, bool& flag) {
    if (!value.is_boolean()) throw wrong(where, "true or false", value);
    flag = value.get<bool>();
  }

  static void read(const Json& value, const std::string& where, std::optional<bool>& flag) {
    if (value.is_null()) return flag.reset();
    if (!value.is_boolean()) throw wrong(where, "true, false or null", value);
    flag = value.get<bool>();
  }

  static void read(const Json& value, const std::string& where, int64_t& number) { read_integer(value, where, number); }
  static void read(const Json& value, const std::string& where, uint64_t& number) {
    read_integer(value, where, number);
  }
  static void read(const Json& value, const std::string& where, Count<int64_t>& count) {
    read_integer(value, where, count.value, int64_t{0});
  }

  static void read(const Json& value, const std::string& where, std::optional<int64_t>& number) {
    if (value.is_null()) return number.reset();
    read_integer(value, where, number.emplace());
  }

  static void read(const Json& value, const std::string& where, std::vector<int64_t>& counts) {
    read_list(value, where, counts, [](const Json& item, const std::string& at, int64_t& count) {
      read_integer(item, at, count, int64_t{0});
    });
  }

  // Numbers that JSON does not have are strings.
  static void read(const Json& value, const std::string& where, std::optional<double>& number) {
    if (value.is_null()) {
      number.reset();
    } else if (value.is_number()) {
      number = value.get<double>();
    } else if (value == "nan") {
      number = std::numeric_limits<double>::quiet_NaN();
    } else if (value == "inf") {
      number = std::numeric_limits<double>::infinity();
    } else if (value == "-inf") {
      number = -std::numeric_limits<double>::infinity();
    } else {
      throw wrong(where, "a number, 'nan', 'inf', '-inf' or null", value);
    }
  }

  template <typename Part>
  static void read(const Json& value, const std::string& where, std::optional<Part>& part) {
    if (value.is_null()) return part.reset();
    read(value, where, part.emplace());
  }

  template <typename Part>
  static void read(const Json& value, const std::string& where, std::vector<Part>& parts) {
    read_list(value, where, parts, [](const Json& item, const std::string& at, Part& part) { read(item, at, part); });
  }

  template <typename T>
  static void read(const Json& value, const std::string& where, T& field) {
    if constexpr (std::is_enum_v<T>) {
      const auto found = value.is_string() ? enum_from_name<T>(value.get_ref<const std::string&>()) : std::nullopt;
      if (!found) throw wrong(where, "one of " + names_of<T>(), value);
      field = *found;
    } else {
      ObjectReader reader(value, where);
      for_each_field(field, reader);
      reader.expect_end();
    }
  }

  template <typename Enum>
  static std::string names_of() {
    std::vector<std::string_view> names;
    for (int i = 0; *name_of(static_cast<Enum>(i)) != '\0'; ++i) names.emplace_back(name_of(static_cast<Enum>(i)));
    return join_text(names, ", ");
  }

  template <typename Number>
  static void read_integer(const Json& value, const std::string& where, Number& number,
                           Number min = std::numeric_limits<Number>::min()) {
    const auto fits = [&](auto x) { return std::in_range<Number>(x) && std::cmp_greater_equal(x, min); };
    const bool is_one = value.is_number_unsigned() ? fits(value.get<uint64_t>())
                                                   : value.is_number_integer() && fits(value.get<int64_t>());
    if (!is_one) {
      throw wrong(where, format_text("a whole number from {} to {}", min, std::numeric_limits<Number>::max()), value);
    }
    number = value.get<Number>();
  }

  template <typename T, typename ReadItem>
  static void read_list(const Json& value, const std::string& where, std::vector<T>& items, ReadItem&& read_item) {
    if (!value.is_array()) throw wrong(where, "a list", value);
    items.clear();
    for (size_t i = 0; i < value.size(); ++i) {
      read_item(value[i], format_text("{}[{}]", where, i), items.emplace_back());
    }
  }

  const Json& object_;
  const std::string where_;
  std::set<std::string> taken_;
};

}  // namespace

Finding finding_from_json(std::string_view line) {
  const Json json = parsed(line);
  ObjectReader reader(json, "");
  reader.expect_schema();
  Finding finding;
  for_each_field(finding, reader);
  reader.expect_end();
  return finding;
}

}  // namespace torchnan
