// The lines that a thread is at inside of what the host has called: of scopes in C++.
#pragma once

#include <vector>

#include <torchnan/finding.h>

namespace torchnan {

// Innermost first. Allocates: only for what is to be reported.
std::vector<Frame> current_inner_frames();

}  // namespace torchnan
