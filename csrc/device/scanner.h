// The scan on one device whose memory the host cannot read. Only read() waits for the device.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <torchnan/export.h>

#include "device/scan_backend.h"

namespace torchnan {

struct ScanFunctions;
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
  // why. If creation fails for lack of memory, or while the calling thread captures a graph, later requests try again.
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

  // Registers the kernel by which devices of a type are scanned. The functions must live as long as the process. CUDA
  // needs no registration. Devices of other types are scanned by operations of PyTorch, which is slower.
  static void set_functions(c10::DeviceType type, const ScanFunctions* functions);

  // Returns what scans a device: "a kernel"; empty without a scanner.
  static std::string name_of(c10::Device device);

  Scanner(c10::Device device, const ScanFunctions* functions);  // throws std::runtime_error
  ~Scanner();
  Scanner(const Scanner&) = delete;
  Scanner& operator=(const Scanner&) = delete;

  c10::Device device() const { return device_; }

  // Returns the stream on which the calling thread's next operation on the device runs.
  CurrentStream current_stream() const;
  CurrentStream default_stream() const { return describe(default_handle_); }
  bool is_on_default_stream() const { return streams_.getStream(device_) == default_stream_; }
  bool can_be_captured() const { return backend_->can_be_captured(); }
  // Whether scans may wait to be launched together.
  bool may_batch() const { return may_batch_; }

  // Whether the device answers nothing any more, as after a device-side assert. The following do nothing then. Before,
  // they throw std::runtime_error if the device refuses a single request.
  bool is_lost() const { return lost_.load(std::memory_order_relaxed) && !answers(); }
  bool answers() const;  // the same asked of the device

  void scan(const cuda::Table& table, const c10::StorageImpl* const* storages, uint64_t first, void* stream) const;
  void scan(const cuda::StridedEntry& strided, const c10::StorageImpl* storage, uint64_t number, void* stream) const;

  // As in ScanBackend. Returns null if the device is lost, too.
  bool can_reserve() const { return backend_->can_reserve(); }
  void* reserve(size_t bytes) const;
  // Queues copies that are made only if the alarm has been raised by then. Returns the number of the launch; 0 if the
  // device is lost.
  uint32_t copy_if_alarmed(const cuda::CopyTable& table, void* stream);
  void copy_if_nonfinite(const cuda::CopyTable& table, const cuda::Numbers& numbers, void* stream) const;
  // Whether a launch has made its copies, as far as the host knows. Of old launches nothing is known.
  bool has_copied(uint32_t launch) const {
    return launch != 0 && copy_launches_ - launch < cuda::kCopyLaunches && backend_->has_copied(launch);
  }

  // Records how far a stream has come, in a mark that is made if `*mark` is null.
  void record_mark(void* stream, void** mark) const;

  // Makes a stream wait for another one to reach a mark.
  void follow(void* mark, void* stream) const;

  void clear(uint32_t first_slot, uint32_t slots, void* stream) const;

  // The following run on the scanner's own stream.
  void* own_stream() const { return backend_->own_stream(); }
  void reset_alarm(uint64_t handled);
  // Waits. Returns false if the device is lost.
  bool read(uint32_t first_slot, uint32_t slots, cuda::Slot* into) const;

  // Returns the lowest number that exceeded its limit. Returns cuda::kNoAlarm if none has, as far as the host knows, or
  // while the last handled alarm is being reset. Of a lost device it is known all the same.
  uint64_t alarm() const {
    const uint64_t alarm = backend_->alarm(resets_.load(std::memory_order_relaxed));
    return alarm == handled_.load(std::memory_order_relaxed) ? cuda::kNoAlarm : alarm;
  }

 private:
  static std::array<std::array<std::atomic<Scanner*>, kDevices>, kTypes> made_;

  static Scanner* make(c10::Device device);  // the rest of of()

  // Calls the backend. Returns false if the device is lost.
  template <typename Request>
  bool request(const char* what, Request&& ask) const;

  CurrentStream describe(void* stream) const;

  const c10::Device device_;
  const c10::impl::DeviceGuardImplInterface& streams_;  // of PyTorch
  const c10::Stream default_stream_;
  std::unique_ptr<ScanBackend> backend_;
  void* default_handle_ = nullptr;
  const bool may_batch_;
  std::atomic<uint64_t> resets_{0};
  std::atomic<uint32_t> copy_launches_{0};
  mutable std::atomic<bool> lost_{false};
  mutable std::atomic<uint64_t> handled_{cuda::kNoAlarm};  // the alarm that could not be reset on a lost device
};

}  // namespace torchnan
