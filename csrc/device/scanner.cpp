#include "device/scanner.h"

#include <array>
#include <mutex>
#include <stdexcept>

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include "device/load_cuda.h"
#include "process/fork_safe_mutex.h"

namespace torchnan {
namespace {

constexpr int kTypes = static_cast<int>(c10::COMPILE_TIME_MAX_DEVICE_TYPES);
constexpr int kDevices = 64;  // of a type

// Never destroyed: threads may outlive static destructors, and a driver may be gone before them.
struct Scanners {
  ForkSafeMutex mutex{ForkSafeMutex::kInstallation};
  std::array<const ScanFunctions*, kTypes> functions{};
  std::array<std::string, kTypes> unavailable_reason;
  std::array<std::atomic<bool>, kTypes> has_none{};
  std::array<std::array<std::atomic<Scanner*>, kDevices>, kTypes> made{};
};
Scanners& scanners = *new Scanners;

}  // namespace

Scanner* Scanner::of(c10::Device device) {
  const auto type = static_cast<size_t>(device.type());
  const int index = device.has_index() ? device.index() : 0;
  if (index >= kDevices) return nullptr;
  std::atomic<Scanner*>& place = scanners.made[type][index];
  if (Scanner* made = place.load(std::memory_order_acquire)) return made;
  if (scanners.has_none[type].load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard lock(scanners.mutex);
  if (Scanner* made = place.load(std::memory_order_acquire)) return made;
  try {
    if (device.is_cuda() && scanners.functions[type] == nullptr) scanners.functions[type] = &load_cuda();
    if (scanners.functions[type] == nullptr) throw std::runtime_error("nobody has told how to scan there");
    place = new Scanner(c10::Device(device.type(), static_cast<c10::DeviceIndex>(index)), *scanners.functions[type]);
  } catch (const std::exception& error) {
    scanners.unavailable_reason[type] = error.what();
    scanners.has_none[type] = true;
  }
  return place;
}

std::string Scanner::unavailable_reason(c10::DeviceType type) {
  const std::lock_guard lock(scanners.mutex);
  return scanners.unavailable_reason[static_cast<size_t>(type)];
}

std::map<std::string, std::string> Scanner::unavailable_devices() {
  const std::lock_guard lock(scanners.mutex);
  std::map<std::string, std::string> found;
  for (size_t type = 0; type < kTypes; ++type) {
    if (!scanners.has_none[type]) continue;
    found[c10::DeviceTypeName(static_cast<c10::DeviceType>(type), /*lower_case=*/true)] =
        scanners.unavailable_reason[type];
  }
  return found;
}

void Scanner::set_host(c10::DeviceType type, const ScanFunctions* functions) {
  const std::lock_guard lock(scanners.mutex);
  scanners.functions[static_cast<size_t>(type)] = functions;
  scanners.has_none[static_cast<size_t>(type)] = false;
}

Scanner::Scanner(c10::Device device, const ScanFunctions& functions) : device_(device), functions_(functions) {
  want(functions_.make(device_.index(), &scanner_), "make a scanner");
  alarm_ = functions_.alarm(scanner_);
}

Scanner::~Scanner() { functions_.free(scanner_); }

void* Scanner::current_stream() const {
  const auto* guard = c10::impl::getDeviceGuardImpl(device_.type());
  return guard->getStreamNativeHandle(guard->getStream(device_));
}

bool Scanner::is_capturing(void* stream) const {
  int capturing = 0;
  want(functions_.is_capturing(stream, &capturing), "ask whether a stream is being captured");
  return capturing != 0;
}

void Scanner::scan(const cuda::Table& table, uint64_t first, void* stream) const {
  want(functions_.scan(scanner_, &table, first, stream), "scan");
}

void Scanner::scan(const cuda::StridedEntry& strided, uint64_t number, void* stream) const {
  want(functions_.scan_strided(scanner_, &strided, number, stream), "scan with strides");
}

void Scanner::clear(uint32_t first_slot, uint32_t slots, void* stream) const {
  want(functions_.clear(scanner_, first_slot, slots, stream), "clear slots");
}

void Scanner::reset_alarm(void* stream) const { want(functions_.reset_alarm(scanner_, stream), "reset the alarm"); }

void Scanner::read(uint32_t first_slot, uint32_t slots, cuda::Slot* into, void* stream) const {
  want(functions_.read(scanner_, first_slot, slots, into, stream), "read slots");
}

void Scanner::want(int error, const char* what) const {
  if (error == 0) return;
  throw std::runtime_error(fmt::format("cannot {} on {}: {}", what, device_.str(), functions_.error_text(error)));
}

}  // namespace torchnan
