// The scan on one device whose memory the host cannot read. Nothing here waits for the device but read().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include <torchnan/export.h>

#include "device/cuda/scan_library.h"

namespace torchnan {

// The functions of device/cuda/scan_library.h: of the kernel library, or of a device that runs the same scan otherwise.
struct ScanFunctions {
  decltype(&torchnan_cuda_error_text) error_text;
  decltype(&torchnan_scanner_make) make;
  decltype(&torchnan_scanner_free) free;
  decltype(&torchnan_scanner_alarm) alarm;
  decltype(&torchnan_scan) scan;
  decltype(&torchnan_scan_strided) scan_strided;
  decltype(&torchnan_scanner_clear) clear;
  decltype(&torchnan_scanner_reset_alarm) reset_alarm;
  decltype(&torchnan_scanner_read) read;
  decltype(&torchnan_is_capturing) is_capturing;
};

class TORCHNAN_API Scanner {
 public:
  // The scanner of a device, made when it is first asked for; null if there is none, and then unavailable_reason()
  // tells.
  static Scanner* of(c10::Device device);
  static std::string unavailable_reason(c10::DeviceType type);

  // The types of devices that have been asked for in vain, and why.
  static std::map<std::string, std::string> unavailable_devices();

  // Who has devices of a type tells how they scan. The functions live as long as the process. CUDA's are found without
  // this.
  static void set_host(c10::DeviceType type, const ScanFunctions* functions);

  Scanner(c10::Device device, const ScanFunctions& functions);  // throws std::runtime_error
  ~Scanner();
  Scanner(const Scanner&) = delete;
  Scanner& operator=(const Scanner&) = delete;

  c10::Device device() const { return device_; }

  // The stream on which the calling thread's next operation on the device runs.
  void* current_stream() const;
  bool is_capturing(void* stream) const;

  void scan(const cuda::Table& table, uint64_t first, void* stream) const;
  void scan(const cuda::StridedEntry& strided, uint64_t number, void* stream) const;
  void clear(uint32_t first_slot, uint32_t slots, void* stream) const;
  void reset_alarm(void* stream) const;

  // The lowest number that passed its limit; cuda::kNoAlarm if none has, as far as the host has heard.
  uint64_t alarm() const { return *alarm_; }

  // Waits until the stream has come here.
  void read(uint32_t first_slot, uint32_t slots, cuda::Slot* into, void* stream) const;

 private:
  void want(int error, const char* what) const;  // throws std::runtime_error if it is one

  const c10::Device device_;
  const ScanFunctions& functions_;
  TorchnanScanner* scanner_ = nullptr;
  const volatile uint64_t* alarm_ = nullptr;
};

}  // namespace torchnan
