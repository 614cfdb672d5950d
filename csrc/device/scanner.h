// The scan on one device whose memory the host cannot read. Only read() waits for the device.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <torchnan/export.h>

#include "device/cuda/scan_library.h"

namespace torchnan {

// The functions of device/cuda/scan_library.h: from the kernel library, or from another implementation of the same
// scan.
struct ScanFunctions {
  decltype(&torchnan_cuda_error_text) error_text;
  decltype(&torchnan_scanner_make) make;
  decltype(&torchnan_scanner_free) free;
  decltype(&torchnan_scanner_words) words;
  decltype(&torchnan_scan) scan;
  decltype(&torchnan_scan_strided) scan_strided;
  decltype(&torchnan_record_mark) record_mark;
  decltype(&torchnan_follow_mark) follow_mark;
  decltype(&torchnan_scanner_clear) clear;
  decltype(&torchnan_scanner_reset_alarm) reset_alarm;
  decltype(&torchnan_scanner_read) read;
  decltype(&torchnan_is_capturing) is_capturing;
};

// Loads the functions for CUDA, libtorchnan_cuda.so, from the folder of the core library or the one above it. They are
// found at run time: the core is built, imported and used without a toolkit or a GPU. Throws std::runtime_error that
// says what is missing. Called once: the result lives as long as the process.
const ScanFunctions& load_cuda();

class Scanner;

// A stream of a device.
struct CurrentStream {
  Scanner* scanner = nullptr;
  void* handle = nullptr;
  bool is_capturing = false;
  bool is_default = false;
};

class TORCHNAN_API Scanner {
 public:
  static constexpr int kDevices = 64;  // per device type
  static constexpr size_t kTypes = static_cast<size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES);

  // Returns the scanner of a device, created at the first request; null if there is none: unavailable_reason() says
  // why. If creation fails while the calling thread captures a graph, a later request tries again.
  static Scanner* of(c10::Device device) {
    const int index = device.has_index() ? device.index() : 0;
    if (index >= kDevices) return nullptr;
    Scanner* const known = made_[static_cast<size_t>(device.type())][index].load(std::memory_order_acquire);
    return known != nullptr ? known : make({device.type(), static_cast<c10::DeviceIndex>(index)});
  }
  static std::string unavailable_reason(c10::Device device);

  // Returns the devices without a scanner, and the reasons.
  static std::map<std::string, std::string> unavailable_devices();

  // Forgets all scanners. Called in a child of fork(), which cannot use the devices of its parent.
  static void forget_after_fork();

  // Registers how devices of a type are scanned. The functions must live as long as the process. CUDA needs no
  // registration.
  static void set_host(c10::DeviceType type, const ScanFunctions* functions);

  Scanner(c10::Device device, const ScanFunctions& functions);  // throws std::runtime_error
  ~Scanner();
  Scanner(const Scanner&) = delete;
  Scanner& operator=(const Scanner&) = delete;

  c10::Device device() const { return device_; }

  // Returns the stream on which the calling thread's next operation on the device runs.
  CurrentStream current_stream() const;
  CurrentStream default_stream() const { return describe(default_handle_); }

  void scan(const cuda::Table& table, uint64_t first, void* stream) const;
  void scan(const cuda::StridedEntry& strided, uint64_t number, void* stream) const;

  // Records how far a stream has come, in a mark that is made if `*mark` is null.
  void record_mark(void* stream, void** mark) const;

  void clear(uint32_t first_slot, uint32_t slots, void* stream) const;

  // The following run on the scanner's own stream, which follow() makes wait for a mark.
  void follow(void* mark) const;
  void reset_alarm(uint64_t handled);
  void read(uint32_t first_slot, uint32_t slots, cuda::Slot* into) const;  // waits

  // Returns the lowest number that exceeded its limit. Returns cuda::kNoAlarm if none has, as far as the host knows, or
  // while the last handled alarm is being reset.
  uint64_t alarm() const {
    return words_->resets == resets_.load(std::memory_order_relaxed) ? words_->alarm : cuda::kNoAlarm;
  }

 private:
  static std::array<std::array<std::atomic<Scanner*>, kDevices>, kTypes> made_;

  static Scanner* make(c10::Device device);  // the rest of of()

  void want(int error, const char* what) const;  // throws std::runtime_error if `error` is one

  CurrentStream describe(void* stream) const;

  const c10::Device device_;
  const ScanFunctions& functions_;
  const c10::impl::DeviceGuardImplInterface& streams_;  // of PyTorch
  void* default_handle_ = nullptr;
  TorchnanScanner* scanner_ = nullptr;
  const volatile cuda::HostWords* words_ = nullptr;
  std::atomic<uint64_t> resets_{0};
};

}  // namespace torchnan
