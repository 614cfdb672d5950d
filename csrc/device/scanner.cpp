#include "device/scanner.h"

#include <array>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "process/fork_safe_mutex.h"
#include "text/format.h"

namespace torchnan {
namespace {

bool is_before(c10::Device a, c10::Device b) { return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index()); }

// Never destroyed: threads may outlive static destructors, and a driver may be gone before them.
struct Scanners {
  static constexpr int kDevices = Scanner::kDevices;
  static constexpr size_t kTypes = Scanner::kTypes;

  ForkSafeMutex mutex{ForkSafeMutex::kInstallation};
  std::array<const ScanFunctions*, kTypes> functions{};
  std::array<std::array<std::atomic<bool>, kDevices>, kTypes> has_none{};
  std::map<c10::Device, std::string, decltype(&is_before)> reasons{&is_before};  // why a device has no scanner
};
Scanners& scanners = *new Scanners;

c10::Device with_index(c10::Device device) { return device.has_index() ? device : c10::Device(device.type(), 0); }

bool is_capturing(c10::Device device, const ScanFunctions& functions) {
  if (!c10::impl::hasDeviceGuardImpl(device.type())) return false;  // this PyTorch does not support such devices
  try {
    const c10::DeviceGuard on_device(device);
    const auto* guard = c10::impl::getDeviceGuardImpl(device.type());
    int is_capturing = 0;
    functions.is_capturing(guard->getStreamNativeHandle(guard->getStream(device)), &is_capturing);
    return is_capturing != 0;
  } catch (const std::exception&) {
    return false;  // PyTorch itself cannot use the device: there is no driver, for example
  }
}

}  // namespace

std::array<std::array<std::atomic<Scanner*>, Scanner::kDevices>, Scanner::kTypes> Scanner::made_{};

Scanner* Scanner::make(c10::Device device) {
  const auto type = static_cast<size_t>(device.type());
  const int index = device.index();
  std::atomic<Scanner*>& slot = made_[type][index];
  if (scanners.has_none[type][index].load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard lock(scanners.mutex);
  if (Scanner* made = slot.load(std::memory_order_acquire)) return made;
  try {
    if (device.is_cuda() && scanners.functions[type] == nullptr) scanners.functions[type] = &load_cuda();
    if (scanners.functions[type] == nullptr) throw std::runtime_error("no scanner is registered for this device type");
    slot = new Scanner(device, *scanners.functions[type]);
    scanners.reasons.erase(device);
  } catch (const std::exception& error) {
    scanners.reasons[device] = error.what();
    const bool may_succeed_later =
        scanners.functions[type] != nullptr && is_capturing(device, *scanners.functions[type]);
    if (!may_succeed_later) scanners.has_none[type][index] = true;
  }
  return slot;
}

std::string Scanner::unavailable_reason(c10::Device device) {
  const std::lock_guard lock(scanners.mutex);
  const auto reason = scanners.reasons.find(with_index(device));
  return reason == scanners.reasons.end() ? "" : reason->second;
}

std::map<std::string, std::string> Scanner::unavailable_devices() {
  const std::lock_guard lock(scanners.mutex);
  std::map<std::string, std::string> found;
  for (const auto& [device, reason] : scanners.reasons) {
    found[c10::DeviceTypeName(device.type(), /*lower_case=*/true)] = reason;
  }
  return found;
}

void Scanner::forget_after_fork() {
  for (size_t type = 0; type < kTypes; ++type) {
    for (int index = 0; index < kDevices; ++index) {
      if (made_[type][index].exchange(nullptr) == nullptr) continue;
      scanners.has_none[type][index] = true;
      const c10::Device device(static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index));
      scanners.reasons[device] = "the process was forked from one that has used it";
    }
  }
}

void Scanner::set_host(c10::DeviceType type, const ScanFunctions* functions) {
  const std::lock_guard lock(scanners.mutex);
  scanners.functions[static_cast<size_t>(type)] = functions;
  for (std::atomic<bool>& has_none : scanners.has_none[static_cast<size_t>(type)]) has_none = false;
  std::erase_if(scanners.reasons, [type](const auto& entry) { return entry.first.type() == type; });
}

Scanner::Scanner(c10::Device device, const ScanFunctions& functions)
    : device_(device), functions_(functions), streams_(*c10::impl::getDeviceGuardImpl(device.type())) {
  const c10::DeviceGuard guard(device_);
  default_handle_ = streams_.getStreamNativeHandle(streams_.getDefaultStream(device_));
  want(functions_.make(device_.index(), &scanner_), "make a scanner");
  words_ = functions_.words(scanner_);
}

Scanner::~Scanner() {
  const c10::DeviceGuard guard(device_);
  functions_.free(scanner_);
}

// The legacy stream of CUDA is null. It cannot be captured, and each question to the driver takes longer than a bound.
CurrentStream Scanner::current_stream() const {
  void* const stream = streams_.getStreamNativeHandle(streams_.getStream(device_));
  if (stream != nullptr) return describe(stream);
  return {const_cast<Scanner*>(this), stream, /*is_capturing=*/false, stream == default_handle_};
}

CurrentStream Scanner::describe(void* stream) const {
  const c10::DeviceGuard guard(device_);  // CUDA asks the current device about its default stream
  int is_capturing = 0;
  want(functions_.is_capturing(stream, &is_capturing), "ask whether a stream is being captured");
  return {const_cast<Scanner*>(this), stream, is_capturing != 0, stream == default_handle_};
}

// The guard restores the previous device only if it has a context: cudaSetDevice() would create one.
void Scanner::scan(const cuda::Table& table, uint64_t first, void* stream) const {
  const c10::DeviceGuard guard(device_);
  want(functions_.scan(scanner_, &table, first, stream), "scan");
}

void Scanner::scan(const cuda::StridedEntry& strided, uint64_t number, void* stream) const {
  const c10::DeviceGuard guard(device_);
  want(functions_.scan_strided(scanner_, &strided, number, stream), "scan with strides");
}

void Scanner::record_mark(void* stream, void** mark) const {
  const c10::DeviceGuard guard(device_);
  want(functions_.record_mark(scanner_, stream, mark), "record how far a stream has come");
}

void Scanner::follow(void* mark) const {
  const c10::DeviceGuard guard(device_);
  want(functions_.follow_mark(scanner_, mark), "wait for a stream on another one");
}

void Scanner::clear(uint32_t first_slot, uint32_t slots, void* stream) const {
  const c10::DeviceGuard guard(device_);
  want(functions_.clear(scanner_, first_slot, slots, stream), "clear slots");
}

void Scanner::reset_alarm(uint64_t handled) {
  const c10::DeviceGuard guard(device_);
  ++resets_;
  want(functions_.reset_alarm(scanner_, handled), "reset the alarm");
}

void Scanner::read(uint32_t first_slot, uint32_t slots, cuda::Slot* into) const {
  const c10::DeviceGuard guard(device_);
  want(functions_.read(scanner_, first_slot, slots, into), "read slots");
}

void Scanner::want(int error, const char* what) const {
  if (error == 0) return;
  throw std::runtime_error(format_text("cannot {} on {}: {}", what, device_.str(), functions_.error_text(error)));
}

}  // namespace torchnan
