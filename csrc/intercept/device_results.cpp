#include "intercept/device_results.h"

namespace torchnan {

void DeviceResults::prepare(c10::ArrayRef<Operand> arguments) {
  on_device_.record_arguments(arguments);
  on_host_.bound_results(arguments, &on_device_);
}

Outcome DeviceResults::check(const at::Tensor& result, int64_t output, bool masks_are_known) {
  const bool may_be_on_device = !result.is_cpu();
  if (may_be_on_device && on_device_.add_result(result, output, on_host_.predict(result, output))) {
    return Outcome::kDeferred;
  }
  if (on_device_.is_copying_in_background()) {
    on_host_.forget(result);
    return Outcome::kSkipped;
  }
  if (on_device_.reads_devices()) on_host_.forget_bounds();
  return on_host_.check(result, output, masks_are_known);
}

void DeviceResults::forget(const at::Tensor& tensor) {
  on_host_.forget(tensor);
  on_device_.forget(tensor);
}

void DeviceResults::find_bad_arguments(TensorAt tensor_at, c10::SmallVectorImpl<BadArgument>& bad_arguments) {
  on_device_.find_bad_arguments(tensor_at, bad_arguments);
}

}  // namespace torchnan
