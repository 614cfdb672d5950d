#include <torchnan/options.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "detection/option_fields.h"
#include "base/format.h"
#include "base/printable.h"

namespace torchnan {
namespace {

template <typename Enum>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (int i = 0; *name_of(static_cast<Enum>(i)) != '\0'; ++i) names.emplace_back(name_of(static_cast<Enum>(i)));
  return names;
}

// Returns "raise, warn or log".
std::string alternatives(const std::vector<std::string>& names) {
  const std::vector<std::string> first(names.begin(), names.end() - 1);
  return format_text("{} or {}", join_text(first, ", "), names.back());
}

// Whether the text can be the name of an operator, or a glob for several. Anything else would never match.
bool is_pattern(const std::string& text) {
  const auto may_be_in = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_:*?[]!^-").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), may_be_in);
}

bool is_path(const std::string& text) {
  return text.find_first_not_of(" \t\n\r\f\v") != std::string::npos && text.find('\0') == std::string::npos;
}

std::string quoted(const std::string& text) { return format_text("'{}'", printable(text)); }

// invalid_value() returns the part of a value that its option does not accept, as text; nothing if the value is valid.
template <typename Enum>
std::optional<std::string> invalid_value(const OptionRow&, Enum value) {
  return *name_of(value) != '\0' ? std::nullopt : std::optional(std::to_string(static_cast<int>(value)));
}

std::optional<std::string> invalid_value(const OptionRow&, bool) { return std::nullopt; }

std::optional<std::string> invalid_value(const OptionRow& row, int64_t number) {
  return number >= row.minimum ? std::nullopt : std::optional(std::to_string(number));
}

std::optional<std::string> invalid_value(const OptionRow&, const std::vector<std::string>& patterns) {
  const auto bad = std::find_if_not(patterns.begin(), patterns.end(), is_pattern);
  return bad == patterns.end() ? std::nullopt : std::optional(quoted(*bad));
}

std::optional<std::string> invalid_value(const OptionRow&, const std::string& path) {
  return path.empty() || is_path(path) ? std::nullopt : std::optional(quoted(path));
}

}  // namespace

Accepted accepted(const OptionRow&, Action) {
  const auto names = names_of<Action>();
  return {format_text("'{}' or a callable that takes a Finding", join_text(names, "', '")), alternatives(names), names};
}

Accepted accepted(const OptionRow&, When) {
  const auto names = names_of<When>();
  return {format_text("'{}'", join_text(names, "' or '")), alternatives(names), names};
}

Accepted accepted(const OptionRow&, bool) { return {"True or False", "1, 0, true or false", {}}; }

Accepted accepted(const OptionRow& row, int64_t) {
  const std::string words = *row.integer != '\0' ? row.integer : format_text("an integer of at least {}", row.minimum);
  return {words, words, {}};
}

Accepted accepted(const OptionRow&, const std::vector<std::string>&) {
  return {"a sequence of operator names without overload, or globs, such as ('aten::log', '_foreach_*')",
          "operator names without overload, or globs, with commas between them, such as aten::log,_foreach_*",
          {}};
}

Accepted accepted(const OptionRow&, const std::string&) { return {"a path, or None", "a path", {}}; }

std::vector<std::string> contradictions(const Options& options) {
  if (options.check_nan || options.check_inf) return {};
  return {"check_nan and check_inf are both off: nothing would be checked."};
}

std::vector<std::string> Options::validate() const {
  std::vector<std::string> messages;
  for_each_option(*this, [&](const OptionRow& row, const auto& field) {
    if (const auto value = invalid_value(row, field)) {
      messages.push_back(
          format_text("{}={} cannot be used: {} takes {}.", row.name, *value, row.name, accepted(row, field).values));
    }
  });
  for (std::string& message : contradictions(*this)) messages.push_back(std::move(message));
  return messages;
}

}  // namespace torchnan
