// The counter of CPython that increases whenever the GIL passes from one thread to another.
#pragma once

namespace torchnan {

// Returns where CPython keeps it. With the GIL.
const unsigned long* python_thread_switches();

}  // namespace torchnan
