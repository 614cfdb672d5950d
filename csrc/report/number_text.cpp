#include "report/number_text.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/strict_floats.h"
#include "base/format.h"

namespace torchnan {
namespace {

constexpr int kDigits = 6;

int significant_digits(std::string_view text) {
  text = text.substr(0, text.find('e'));
  text.remove_prefix(std::min(text.find_first_of("123456789"), text.size()));
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }));
}

}  // namespace

std::string format_number(double number, std::string_view dtype) {
  const std::string brief = format_text("{:.{}g}", number, kDigits);
  if (!std::isfinite(number) || std::strtod(brief.c_str(), nullptr) == number) return brief;
  if (significant_digits(brief) >= kDigits) return brief;
  const auto narrow = static_cast<float>(number);
  const bool is_narrow = dtype != "float64" && dtype != "complex128" && static_cast<double>(narrow) == number;
  return is_narrow ? format_text("{}", narrow) : format_text("{}", number);
}

double largest_number(std::string_view dtype) {
  static constexpr std::pair<std::string_view, double> kLargest[] = {
      {"float16", 65504},
      {"complex32", 65504},
      {"bfloat16", 3.3895313892515355e38},
      {"float32", std::numeric_limits<float>::max()},
      {"complex64", std::numeric_limits<float>::max()},
      {"float64", std::numeric_limits<double>::max()},
      {"complex128", std::numeric_limits<double>::max()},
      {"float8_e4m3fn", 448},
      {"float8_e5m2", 57344},
  };
  for (const auto& [name, largest] : kLargest) {
    if (dtype == name) return largest;
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace torchnan
