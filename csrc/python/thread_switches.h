// The counter of CPython that increases whenever the GIL passes from one thread to another.
#pragma once

namespace torchnan {

// Returns its address in CPython. Requires the GIL.
const unsigned long* python_thread_switches();

}  // namespace torchnan
