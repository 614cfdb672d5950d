// The scan by operations of PyTorch, for devices without a kernel of ours.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/scan_backend.h"

namespace torchnan {

// Needs nothing of a device but PyTorch's operations, streams and events. Allocates memory on the device for each scan,
// from PyTorch's allocator. Its operations are not intercepted; a profiler shows them.
//
// Each stream that is scanned on has its own alarm: operations have no atomic minimum.
class OperatorScan final : public ScanBackend {
 public:
  // The device is the current one. Throws OutOfMemory, or another exception of PyTorch.
  explicit OperatorScan(c10::Device device);
  ~OperatorScan() override;

  const char* name() const override { return "operations of PyTorch"; }
  void* handle_of(c10::Stream stream) const override;
  bool is_capturing(void* stream) const override;
  bool can_be_captured() const override { return false; }
  bool answers() const override;
  void scan(const cuda::Table& table, const c10::StorageImpl* const* storages, uint64_t first, void* stream) override;
  void scan(const cuda::StridedEntry& strided, const c10::StorageImpl* storage, uint64_t number, void* stream) override;
  void record_mark(void* stream, void** mark) override;
  void follow_mark(void* mark, void* stream) override;
  void clear(uint32_t first_slot, uint32_t slots, void* stream) override;
  void* own_stream() const override { return handle_of(own_stream_); }
  void reset_alarm(uint64_t handled) override;
  void read(uint32_t first_slot, uint32_t slots, cuda::Slot* into) override;
  uint64_t alarm(uint64_t resets) const override;

 private:
  static constexpr size_t kMaxStreams = 256;

  // The alarm and the number of its resets, as HostWords.
  struct StreamWords {
    c10::Stream stream;
    at::Tensor on_device;
    at::Tensor on_host;  // a copy, which lags behind
  };
  struct Scanned {
    std::vector<at::Tensor> magnitudes;  // int64
    std::vector<int64_t> given;          // slot, number and limit of each

    void add(uint64_t number, uint64_t limit);
  };

  c10::Stream stream_of(void* handle) const;
  StreamWords& words_of(c10::Stream stream);
  void publish(const Scanned& scanned, c10::Stream stream);

  const c10::Device device_;
  const c10::impl::DeviceGuardImplInterface& streams_;  // of PyTorch
  const c10::Stream own_stream_;
  const bool can_tell_captures_;
  at::Tensor slots_;
  int64_t resets_ = 0;
  std::array<std::atomic<StreamWords*>, kMaxStreams> words_{};  // of the first streams that are not null
};

}  // namespace torchnan
