#include "base/thread_switches.h"

namespace torchnan {
namespace {

constexpr unsigned long kNone = 0;
const unsigned long* counter = &kNone;

}  // namespace

void set_thread_switches(const unsigned long* of_interpreter) {
  __atomic_store_n(&counter, of_interpreter, __ATOMIC_RELEASE);
}

uint64_t thread_switches() noexcept {
  return __atomic_load_n(__atomic_load_n(&counter, __ATOMIC_ACQUIRE), __ATOMIC_ACQUIRE);
}

}  // namespace torchnan
