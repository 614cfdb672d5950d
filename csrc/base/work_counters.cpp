#include "base/work_counters.h"

namespace torchnan {

WorkCounters& work_counters() {
  static WorkCounters counters;
  return counters;
}

}  // namespace torchnan
