// What a device must offer for its tensors to be checked.
#pragma once

#include <cstdint>

#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>

#include <torchnan/export.h>

#include "device/cuda/copy_table.h"
#include "device/cuda/scan_table.h"

namespace torchnan {

// Scans in the order of a stream, marks that other streams can wait for, and two words that the host can poll. Streams
// are given as handle_of() returns them. Only read() waits for the device. A function throws if the device refuses it.
class TORCHNAN_API ScanBackend {
 public:
  ScanBackend() = default;
  virtual ~ScanBackend() = default;
  ScanBackend(const ScanBackend&) = delete;
  ScanBackend& operator=(const ScanBackend&) = delete;

  virtual const char* name() const = 0;  // for `torchnan doctor`
  virtual void* handle_of(c10::Stream stream) const = 0;

  // Returns false where nothing is captured into graphs.
  virtual bool is_capturing(void* stream) const = 0;
  // Whether a scan may be captured with what it scans.
  virtual bool can_be_captured() const = 0;
  // Asks what any device can answer at once: after an error that ends its work, such as a device-side assert, it
  // answers nothing.
  virtual bool answers() const = 0;

  // Queue scans. The first entry of a table has number `first`; `storages` holds the storage of each.
  virtual void scan(const cuda::Table& table, const c10::StorageImpl* const* storages, uint64_t first,
                    void* stream) = 0;
  virtual void scan(const cuda::StridedEntry& strided, const c10::StorageImpl* storage, uint64_t number,
                    void* stream) = 0;

  // Whether the device may be asked for the following. Where not, nothing is reserved and nothing copied.
  virtual bool can_reserve() const { return false; }
  // Returns memory of the device that takes none before something is written there; null if the device has none of this
  // kind. It lives as long as the process.
  virtual void* reserve(size_t /*bytes*/) { return nullptr; }
  // Queues copies to reserved memory, which are made only if the alarm has been raised by then.
  virtual void copy_if_alarmed(const cuda::CopyTable& /*table*/, uint32_t /*number*/, void* /*stream*/) {}
  // The same from and to any memory of the device, made only if one of the numbers is not finite then.
  virtual void copy_if_nonfinite(const cuda::CopyTable& /*table*/, const cuda::Numbers& /*numbers*/, void* /*stream*/) {
  }
  // Whether the last launch of copies with this number has made them, as far as the host knows.
  virtual bool has_copied(uint32_t /*number*/) const { return false; }

  // Records how far a stream has come, in a mark that is made if `*mark` is null and lives as long as the process.
  virtual void record_mark(void* stream, void** mark) = 0;
  // Makes a stream wait for another one to reach a mark.
  virtual void follow_mark(void* mark, void* stream) = 0;

  virtual void clear(uint32_t first_slot, uint32_t slots, void* stream) = 0;

  // The following run on a separate stream.
  virtual void* own_stream() const = 0;
  // Resets the alarm if it is still `handled`, and counts the reset in either case.
  virtual void reset_alarm(uint64_t handled) = 0;
  virtual void read(uint32_t first_slot, uint32_t slots, cuda::Slot* into) = 0;

  // Returns the lowest number that exceeded its limit, as far as the host knows after so many resets; cuda::kNoAlarm if
  // there is none, or while a reset is under way.
  virtual uint64_t alarm(uint64_t resets) const = 0;
};

}  // namespace torchnan
