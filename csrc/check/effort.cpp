#include "check/effort.h"

namespace torchnan {

Effort& effort() {
  static Effort spent;
  return spent;
}

}  // namespace torchnan
