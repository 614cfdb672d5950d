// Numbers of a tensor as a report shows them.
#pragma once

#include <string>
#include <string_view>

namespace torchnan {

// Returns a number with six digits; with as many as its dtype has where six would round it to a rounder one, so that
// 1.0000001 is not shown as 1.
std::string format_number(double number, std::string_view dtype);

// Returns the largest finite number of a dtype ("float32"); of a complex one that of its parts. Infinite for a dtype
// that is not known.
double largest_number(std::string_view dtype);

}  // namespace torchnan
