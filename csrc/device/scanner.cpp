#include "device/scanner.h"

#include <array>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include "device/kernel_scan.h"
#include "device/operator_scan.h"
#include "base/environment.h"
#include "base/fork_safe_mutex.h"
#include "base/format.h"

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
  std::array<std::array<std::atomic<uint32_t>, kDevices>, kTypes> lacks_memory{};  // the requests since then
  std::map<c10::Device, std::string, decltype(&is_before)> reasons{&is_before};    // why a device has no scanner
};
Scanners& scanners = *new Scanners;

// An allocation that fails takes long: of the requests for a scanner after one, each of these tries again.
constexpr uint32_t kRequestsPerTrial = 256;

c10::Device with_index(c10::Device device) { return device.has_index() ? device : c10::Device(device.type(), 0); }

bool is_scanned_by_operations(c10::DeviceType type) {
  return type == c10::kXPU || type == c10::kMPS || type == c10::kHPU || type == c10::kPrivateUse1;
}

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
  std::atomic<uint32_t>& lacks_memory = scanners.lacks_memory[type][index];
  if (lacks_memory != 0 && lacks_memory++ % kRequestsPerTrial != 0) return nullptr;
  const std::lock_guard lock(scanners.mutex);
  if (Scanner* made = slot.load(std::memory_order_acquire)) return made;
  try {
    if (device.is_cuda() && scanners.functions[type] == nullptr) scanners.functions[type] = &load_cuda();
    if (scanners.functions[type] == nullptr && !is_scanned_by_operations(device.type()))
      throw std::runtime_error("there is no scan for this device type");
    slot = new Scanner(device, scanners.functions[type]);
    lacks_memory = 0;
    scanners.reasons.erase(device);
  } catch (const OutOfMemory& error) {
    scanners.reasons[device] = error.what();
    if (lacks_memory == 0) lacks_memory = 1;
  } catch (const std::exception& error) {
    scanners.reasons[device] = error.what();
    const ScanFunctions* const functions = scanners.functions[type];
    const bool may_succeed_later = functions != nullptr && is_capturing(device, *functions);
    if (!may_succeed_later) scanners.has_none[type][index] = true;
  }
  return slot;
}

std::string Scanner::unavailable_reason(c10::Device device) {
  const std::lock_guard lock(scanners.mutex);
  const auto reason = scanners.reasons.find(with_index(device));
  return reason == scanners.reasons.end() ? "" : reason->second;
}

std::string Scanner::name_of(c10::Device device) {
  const Scanner* const scanner = of(device);
  return scanner == nullptr ? "" : scanner->backend_->name();
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

void Scanner::set_functions(c10::DeviceType type, const ScanFunctions* functions) {
  const std::lock_guard lock(scanners.mutex);
  scanners.functions[static_cast<size_t>(type)] = functions;
  for (std::atomic<bool>& has_none : scanners.has_none[static_cast<size_t>(type)]) has_none = false;
  std::erase_if(scanners.reasons, [type](const auto& entry) { return entry.first.type() == type; });
}

Scanner::Scanner(c10::Device device, const ScanFunctions* functions)
    : device_(device),
      streams_(*c10::impl::getDeviceGuardImpl(device.type())),
      default_stream_(streams_.getDefaultStream(device)),
      may_batch_(!is_launch_blocking()) {
  const c10::DeviceGuard guard(device_);
  if (functions != nullptr) {
    backend_ = std::make_unique<KernelScan>(device, *functions);
  } else {
    backend_ = std::make_unique<OperatorScan>(device);
  }
  default_handle_ = backend_->handle_of(default_stream_);
}

Scanner::~Scanner() {
  const c10::DeviceGuard guard(device_);
  backend_.reset();
}

CurrentStream Scanner::current_stream() const { return describe(backend_->handle_of(streams_.getStream(device_))); }

CurrentStream Scanner::describe(void* stream) const {
  bool is_capturing = false;
  request("ask whether a stream is being captured", [&] { is_capturing = backend_->is_capturing(stream); });
  return {const_cast<Scanner*>(this), stream, is_capturing, stream == default_handle_};
}

void Scanner::scan(const cuda::Table& table, const c10::StorageImpl* const* storages, uint64_t first,
                   void* stream) const {
  request("scan", [&] { backend_->scan(table, storages, first, stream); });
}

void Scanner::scan(const cuda::StridedEntry& strided, const c10::StorageImpl* storage, uint64_t number,
                   void* stream) const {
  request("scan with strides", [&] { backend_->scan(strided, storage, number, stream); });
}

void* Scanner::reserve(size_t bytes) const {
  void* reserved = nullptr;
  request("reserve memory", [&] { reserved = backend_->reserve(bytes); });
  return reserved;
}

uint32_t Scanner::copy_if_alarmed(const cuda::CopyTable& table, void* stream) {
  uint32_t launch = ++copy_launches_;
  if (launch == 0) launch = ++copy_launches_;
  const bool is_queued =
      request("copy what is about to be overwritten", [&] { backend_->copy_if_alarmed(table, launch, stream); });
  return is_queued ? launch : 0;
}

void Scanner::copy_if_nonfinite(const cuda::CopyTable& table, const cuda::Numbers& numbers, void* stream) const {
  request("copy what a step overwrites", [&] { backend_->copy_if_nonfinite(table, numbers, stream); });
}

void Scanner::record_mark(void* stream, void** mark) const {
  request("record how far a stream has come", [&] { backend_->record_mark(stream, mark); });
}

void Scanner::follow(void* mark, void* stream) const {
  request("wait for a stream on another one", [&] { backend_->follow_mark(mark, stream); });
}

void Scanner::clear(uint32_t first_slot, uint32_t slots, void* stream) const {
  request("clear slots", [&] { backend_->clear(first_slot, slots, stream); });
}

// Nothing counts until the device has taken it. One that refuses keeps its alarm, to be handled again.
void Scanner::reset_alarm(uint64_t handled) {
  ++resets_;
  bool is_reset = false;
  const auto count = c10::make_scope_exit([&] {
    if (!is_reset) --resets_;
  });
  is_reset = request("reset the alarm", [&] { backend_->reset_alarm(handled); });
  if (!is_reset) handled_ = handled;
}

bool Scanner::read(uint32_t first_slot, uint32_t slots, cuda::Slot* into) const {
  return request("read slots", [&] { backend_->read(first_slot, slots, into); });
}

// The guard restores the previous device only if it has a context: cudaSetDevice() would create one. PyTorch throws if
// the device fails it.
template <typename Request>
bool Scanner::request(const char* what, Request&& ask) const {
  if (is_lost()) return false;
  std::string reason;
  try {
    const c10::DeviceGuard guard(device_);
    ask();
    return true;
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (!answers()) return false;
  throw std::runtime_error(format_text("cannot {} on {}: {}", what, device_.str(), reason));
}

bool Scanner::answers() const {
  const bool answers = backend_->answers();
  lost_ = !answers;
  if (answers) handled_ = cuda::kNoAlarm;
  return answers;
}

}  // namespace torchnan
