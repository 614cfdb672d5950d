#include "device/recorded_bounds.h"

#include "device/devices.h"

namespace torchnan {

Journal::RecordedKnowledge recorded_knowledge(const at::Tensor& tensor) {
  const auto values = scannable(tensor);
  return values->defined() ? Devices::Lock(devices()).journal().look_up(*values) : Journal::RecordedKnowledge();
}

}  // namespace torchnan
