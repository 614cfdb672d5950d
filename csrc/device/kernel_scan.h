// The scan by a kernel made for the device, from a library with the functions of device/cuda/scan_library.h.
#pragma once

#include <stdexcept>

#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/cuda/scan_library.h"
#include "device/scan_backend.h"

namespace torchnan {

// The functions of the library, or of another implementation of the same scan.
struct ScanFunctions {
  decltype(&torchnan_cuda_error_text) error_text;
  decltype(&torchnan_scanner_make) make;
  decltype(&torchnan_scanner_free) free;
  decltype(&torchnan_scanner_words) words;
  decltype(&torchnan_scan) scan;
  decltype(&torchnan_scan_strided) scan_strided;
  decltype(&torchnan_reserve) reserve;
  decltype(&torchnan_copy_if_alarmed) copy_if_alarmed;
  decltype(&torchnan_copy_if_nonfinite) copy_if_nonfinite;
  decltype(&torchnan_record_mark) record_mark;
  decltype(&torchnan_follow_mark) follow_mark;
  decltype(&torchnan_scanner_clear) clear;
  decltype(&torchnan_scanner_stream) stream;
  decltype(&torchnan_scanner_reset_alarm) reset_alarm;
  decltype(&torchnan_scanner_read) read;
  decltype(&torchnan_is_capturing) is_capturing;
};

// Loads the functions for CUDA, libtorchnan_cuda.so, from the folder of the core library or the one above it. They are
// found at run time: the core is built, imported and used without a toolkit or a GPU. Throws std::runtime_error that
// says what is missing. Called once: the result lives as long as the process.
const ScanFunctions& load_cuda();

// A scanner could not be made for lack of memory.
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class KernelScan final : public ScanBackend {
 public:
  // The device is the current one. Throws OutOfMemory, or another std::runtime_error.
  KernelScan(c10::Device device, const ScanFunctions& functions);
  ~KernelScan() override;

  const char* name() const override { return "a kernel"; }
  void* handle_of(c10::Stream stream) const override { return streams_.getStreamNativeHandle(stream); }
  bool is_capturing(void* stream) const override;
  bool can_be_captured() const override { return true; }
  bool answers() const override;
  void scan(const cuda::Table& table, const c10::StorageImpl* const* storages, uint64_t first, void* stream) override;
  void scan(const cuda::StridedEntry& strided, const c10::StorageImpl* storage, uint64_t number, void* stream) override;
  bool can_reserve() const override { return true; }
  void* reserve(size_t bytes) override;
  void copy_if_alarmed(const cuda::CopyTable& table, uint32_t number, void* stream) override;
  void copy_if_nonfinite(const cuda::CopyTable& table, const cuda::Numbers& numbers, void* stream) override;
  bool has_copied(uint32_t number) const override {
    return __atomic_load_n(&words_->copied_blocks[number % cuda::kCopyLaunches], __ATOMIC_ACQUIRE) == cuda::kCopyBlocks;
  }
  void record_mark(void* stream, void** mark) override;
  void follow_mark(void* mark, void* stream) override;
  void clear(uint32_t first_slot, uint32_t slots, void* stream) override;
  void* own_stream() const override { return functions_.stream(scanner_); }
  void reset_alarm(uint64_t handled) override;
  void read(uint32_t first_slot, uint32_t slots, cuda::Slot* into) override;
  uint64_t alarm(uint64_t resets) const override {
    if (__atomic_load_n(&words_->resets, __ATOMIC_ACQUIRE) != resets) return cuda::kNoAlarm;
    return __atomic_load_n(&words_->alarm, __ATOMIC_ACQUIRE);
  }

 private:
  void want(int error) const;  // throws std::runtime_error if `error` is one

  const ScanFunctions& functions_;
  const c10::impl::DeviceGuardImplInterface& streams_;  // of PyTorch
  TorchnanScanner* scanner_ = nullptr;
  const volatile cuda::HostWords* words_ = nullptr;
};

}  // namespace torchnan
