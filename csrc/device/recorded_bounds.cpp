#include "device/recorded_bounds.h"

#include "device/devices.h"

namespace torchnan {

Journal::Known known_of_recorded(const at::Tensor& tensor) {
  const auto values = scannable(tensor);
  return values->defined() ? Devices::Lock(devices()).journal().look_up(*values) : Journal::Known();
}

}  // namespace torchnan
