#include "check/bounds/awaited_versions.h"

#include "check/bounds/bound_cache.h"
#include "base/thread_switches.h"
#include "check/scan/storage_of.h"

namespace torchnan {

bool AwaitedVersions::add(const at::Tensor& written) {
  const c10::VariableVersion& version = written.unsafeGetTensorImpl()->version_counter();
  if (!version.enabled()) return false;
  if (written_.empty()) {
    first_ = version;
    expected_ = uint64_t{version.current_version()} + 1;
    switches_ = thread_switches();
  }
  written_.push_back(storage_of(written));
  return true;
}

void AwaitedVersions::settle_written() noexcept {
  const bool has_come = first_.current_version() == expected_ && thread_switches() == switches_;
  if (!has_come) {
    for (const c10::StorageImpl* storage : written_) bound_cache().doubt(storage);
  }
  first_ = c10::VariableVersion();
  written_.clear();
}

}  // namespace torchnan
