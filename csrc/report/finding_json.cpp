// Writes a finding as one line of strict JSON.
#include <torchnan/finding.h>

#include <cmath>
#include <string_view>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "report/finding_fields.h"
#include "report/truncate.h"
#include "base/strict_floats.h"
#include "base/printable.h"

namespace torchnan {
namespace {

constexpr size_t kLineBytes = 16384;  // any line is shorter than this, including its line break

// Writes text directly. A tree of values would be shorter code, but destroying one allocates memory, and a failed
// allocation in a destructor ends the process.
class JsonWriter {
 public:
  template <typename Field>
  void operator()(const char* name, const Field& field) {
    begin_item();
    text_ += '"';
    text_ += name;
    text_ += "\":";
    append(field);
  }

  template <typename Part>
  void append_object(const Part& part) {
    text_ += '{';
    for_each_field(part, *this);
    text_ += '}';
  }

  void append_finding(const Finding& finding) {
    text_ += '{';
    (*this)("schema", int64_t{Finding::kSchemaVersion});
    for_each_field(finding, *this);
    text_ += '}';
  }

  std::string take() { return std::move(text_); }

 private:
  using Json = nlohmann::ordered_json;

  void begin_item() {
    if (text_.back() != '{' && text_.back() != '[') text_ += ',';
  }

  // A number, a string, a boolean or null.
  void append_scalar(const Json& value) { text_ += value.dump(-1, ' ', true, Json::error_handler_t::replace); }

  // already cut by truncate()
  void append(const std::string& text) { append_scalar(to_valid_utf8(text, std::string::npos)); }
  void append(const OptionalText<const std::string>& text) {
    if (text.value.empty()) return append_scalar(nullptr);
    append(text.value);
  }
  void append(const Count<const int64_t>& count) { append_scalar(count.value); }

  // JSON has no NaN and no Infinity.
  void append(double x) {
    if (std::isnan(x)) return append_scalar("nan");
    if (std::isinf(x)) return append_scalar(x > 0 ? "inf" : "-inf");
    append_scalar(x);
  }

  template <typename T>
  void append(const std::optional<T>& value) {
    if (!value) return append_scalar(nullptr);
    append(*value);
  }

  template <typename T>
  void append(const std::vector<T>& items) {
    text_ += '[';
    for (const T& item : items) {
      begin_item();
      append(item);
    }
    text_ += ']';
  }

  template <typename T>
  void append(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      append_scalar(name_of(value));
    } else if constexpr (std::is_class_v<T>) {
      append_object(value);
    } else {
      append_scalar(value);
    }
  }

  std::string text_;
};

std::string dump(const Finding& finding) {
  JsonWriter writer;
  writer.append_finding(finding);
  return writer.take();
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
