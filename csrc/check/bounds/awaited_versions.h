// The writes of a thread's last call whose versions PyTorch may still have to increase.
//
// A kernel of ADInplaceOrView increases the versions of what its call has written when that call has returned. So a
// call below it records bounds for the versions to come. Whether it was called from there cannot be told: C++ code that
// excludes the key itself (at::AutoDispatchBelowADInplaceOrView) looks the same, and increases nothing. Then the next
// write that nobody intercepts would bring the awaited version, and the bound would seem to hold. So the next call of
// the thread first looks whether the version has come.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <torchnan/export.h>

namespace torchnan {

// Reused from call to call: allocates only for a call that writes more tensors than all before.
class TORCHNAN_API AwaitedVersions {
 public:
  // Awaits the next version of a tensor that the call has written. Returns false for an inference tensor, which has
  // none. One kernel increases all versions of a call, so the first one stands for all.
  bool add(const at::Tensor& written);

  // Ends the bounds of what was written if the version has not come, or if it may be that of another thread of the
  // interpreter.
  void settle() noexcept {
    if (!written_.empty()) settle_written();
  }

 private:
  void settle_written() noexcept;

  c10::VariableVersion first_;
  uint64_t expected_ = 0;
  uint64_t switches_ = 0;                         // of threads, when the bound was recorded
  std::vector<const c10::StorageImpl*> written_;  // which may be gone by now
};

}  // namespace torchnan
