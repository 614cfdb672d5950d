// The section of docs/why_nan.md on the cause of a finding.
#pragma once

#include <string_view>

#include <torchnan/finding.h>

namespace torchnan {

// Returns the title of the section, with its number; empty if the page has none on this cause.
std::string_view cookbook_section(const Finding& finding);

}  // namespace torchnan
