// Formats the numbers of a tensor for a report.
#pragma once

#include <string>
#include <string_view>

namespace torchnan {

// Returns a number with six digits, or with as many as its dtype has if six would hide the difference to a rounder
// number: 1.0000001 is not shown as 1.
std::string format_number(double number, std::string_view dtype);

// Returns the largest finite number of a dtype ("float32"); for a complex dtype that of its parts. Infinite for an
// unknown dtype.
double largest_number(std::string_view dtype);

}  // namespace torchnan
