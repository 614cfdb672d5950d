#include "process/work_counters.h"

namespace torchnan {

WorkCounters& work_counters() {
  static WorkCounters spent;
  return spent;
}

}  // namespace torchnan
