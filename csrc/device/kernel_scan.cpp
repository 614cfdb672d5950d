#include "device/kernel_scan.h"

namespace torchnan {

KernelScan::KernelScan(c10::Device device, const ScanFunctions& functions)
    : functions_(functions), streams_(*c10::impl::getDeviceGuardImpl(device.type())) {
  const int error = functions_.make(device.index(), &scanner_);
  if (error == TORCHNAN_OUT_OF_MEMORY) throw OutOfMemory(functions_.error_text(error));
  want(error);
  words_ = functions_.words(scanner_);
}

KernelScan::~KernelScan() { functions_.free(scanner_); }

// The legacy stream of CUDA is null. It cannot be captured, each question to the driver takes longer than a bound, and
// this one is an error while another stream is captured.
bool KernelScan::is_capturing(void* stream) const {
  if (stream == nullptr) return false;
  int is_capturing = 0;
  want(functions_.is_capturing(stream, &is_capturing));
  return is_capturing != 0;
}

bool KernelScan::answers() const {
  int is_capturing = 0;
  return functions_.is_capturing(own_stream(), &is_capturing) == 0;
}

void KernelScan::scan(const cuda::Table& table, const c10::StorageImpl* const*, uint64_t first, void* stream) {
  want(functions_.scan(scanner_, &table, first, stream));
}

void KernelScan::scan(const cuda::StridedEntry& strided, const c10::StorageImpl*, uint64_t number, void* stream) {
  want(functions_.scan_strided(scanner_, &strided, number, stream));
}

void* KernelScan::reserve(size_t bytes) {
  void* reserved = nullptr;
  want(functions_.reserve(scanner_, bytes, &reserved));
  return reserved;
}

void KernelScan::copy_if_alarmed(const cuda::CopyTable& table, uint32_t number, void* stream) {
  want(functions_.copy_if_alarmed(scanner_, &table, number, stream));
}

void KernelScan::copy_if_nonfinite(const cuda::CopyTable& table, const cuda::Numbers& numbers, void* stream) {
  want(functions_.copy_if_nonfinite(&table, &numbers, stream));
}

void KernelScan::record_mark(void* stream, void** mark) { want(functions_.record_mark(scanner_, stream, mark)); }

void KernelScan::follow_mark(void* mark, void* stream) { want(functions_.follow_mark(mark, stream)); }

void KernelScan::clear(uint32_t first_slot, uint32_t slots, void* stream) {
  want(functions_.clear(scanner_, first_slot, slots, stream));
}

void KernelScan::reset_alarm(uint64_t handled) { want(functions_.reset_alarm(scanner_, handled)); }

void KernelScan::read(uint32_t first_slot, uint32_t slots, cuda::Slot* into) {
  want(functions_.read(scanner_, first_slot, slots, into));
}

void KernelScan::want(int error) const {
  if (error != 0) throw std::runtime_error(functions_.error_text(error));
}

}  // namespace torchnan
