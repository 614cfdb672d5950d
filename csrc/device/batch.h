// Scans that wait to be launched together on one stream.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/event.h"
#include "device/scanner.h"

namespace torchnan {

// Keeps tensors alive until their scans have been launched, and no longer: after that the order of the stream sees to
// it that the memory is read before it is reused.
class Batch {
 public:
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;  // keeps that much from being given out again, at most

  using Kept = std::vector<at::Tensor>;

  Batch(const Scanner& scanner, void* stream) : scanner_(scanner), stream_(stream) {}

  void* stream() const { return stream_; }
  void continue_on(void* stream) { stream_ = stream; }  // when it is empty
  bool is_empty() const { return table_.entries == 0; }

  // Adds a scan; numbers grow. Returns false, and does nothing, if the tensor cannot be scanned: it has too many
  // dimensions, or the batch is full.
  bool add(const at::Tensor& tensor, EventNumber number, uint64_t limit, bool track_max_finite);

  // Whether it is time to launch: there is no room for more, or too much is being kept.
  bool is_full() const { return table_.entries == cuda::kMaxEntries || bytes_ >= kMaxBytes; }

  // Whether a scan of this storage is waiting, which has to be launched before the storage is written.
  bool holds(const c10::StorageImpl* storage) const;

  // Queues the scans on the stream. Moves what it kept alive to `kept` for the caller to release, which may need the
  // GIL.
  void launch(Kept& kept);

 private:
  const Scanner& scanner_;
  void* stream_;
  EventNumber first_ = 0;
  cuda::Table table_{};
  Kept kept_;
  int64_t bytes_ = 0;
};

}  // namespace torchnan
