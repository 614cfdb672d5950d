#include "device/undoable_step.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "base/fork_safe_mutex.h"

namespace torchnan {
namespace {

// Of all guards. Never destroyed: a device may be gone before static destructors run.
struct RoomsOfSteps {
  ForkSafeMutex mutex{ForkSafeMutex::kSlow};
  ReservedRooms rooms;
};
RoomsOfSteps& rooms_of_steps = *new RoomsOfSteps;

bool has_gaps(const at::Tensor& tensor) {
  return tensor.layout() != c10::kStrided || !tensor.has_storage() || !tensor.is_non_overlapping_and_dense();
}

}  // namespace

bool UndoableStep::is_possible_on(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return false;
  const Scanner* const scanner = Scanner::of(tensor.device());
  return scanner != nullptr && scanner->can_reserve();
}

std::unique_ptr<UndoableStep> UndoableStep::begin(std::shared_ptr<const DeviceMeasurement> measurement,
                                                  const std::vector<at::Tensor>& written, std::vector<Copied> copied,
                                                  int64_t max_bytes) {
  std::unique_ptr<UndoableStep> step(new UndoableStep);
  step->scanner_ = Scanner::of(measurement->table().device());
  step->measurement_ = std::move(measurement);
  step->copied_ = std::move(copied);
  if (step->scanner_ == nullptr || !step->keep(written, max_bytes)) return nullptr;
  const CurrentStream stream = step->scanner_->current_stream();
  if (stream.is_capturing) return nullptr;
  step->launch(/*is_back=*/false, stream.handle);
  return step->scanner_->is_lost() ? nullptr : std::move(step);
}

// Returns false if something cannot be kept.
bool UndoableStep::keep(const std::vector<at::Tensor>& written, int64_t max_bytes) {
  size_t bytes = 0;
  for (const at::Tensor& tensor : written) {
    if (has_gaps(tensor)) return false;
    if (tensor.nbytes() == 0) continue;
    if (tensor.is_cpu()) {
      const auto* const from = static_cast<const char*>(tensor.const_data_ptr());
      host_copies_.insert(host_copies_.end(), from, from + tensor.nbytes());
      on_host_.push_back(tensor);
      continue;
    }
    if (tensor.device() != measurement_->table().device()) return false;
    on_device_.push_back(tensor);
    entries_.push_back({tensor.const_data_ptr(), nullptr, tensor.nbytes()});
    bytes += aligned_for_copy(tensor.nbytes());
  }
  for (const auto& [tensor, copy] : copied_) {
    const bool is_here = tensor.device() == measurement_->table().device() && copy.device() == tensor.device();
    if (!is_here || has_gaps(tensor) || has_gaps(copy) || tensor.strides() != copy.strides() ||
        tensor.nbytes() != copy.nbytes())
      return false;
  }
  {
    const std::lock_guard lock(rooms_of_steps.mutex);
    room_ = rooms_of_steps.rooms.take(*scanner_, bytes, max_bytes);
  }
  if (room_ == nullptr) return false;
  auto* to = static_cast<char*>(room_->address);
  for (cuda::CopyEntry& entry : entries_) {
    entry.to = to;
    to += aligned_for_copy(entry.bytes);
  }
  return true;
}

void UndoableStep::launch(bool is_back, void* stream) const {
  std::vector<cuda::CopyEntry> all = entries_;
  if (is_back) {
    for (cuda::CopyEntry& entry : all) entry = {entry.to, const_cast<void*>(entry.from), entry.bytes};
    for (const auto& [tensor, copy] : copied_) {
      all.push_back({copy.const_data_ptr(), const_cast<void*>(tensor.const_data_ptr()), tensor.nbytes()});
    }
  }
  const at::Tensor& measured = measurement_->table();
  const cuda::Numbers magnitudes{measured.const_data_ptr<double>() + 1, static_cast<uint32_t>(measured.size(0)), 2};
  for (size_t first = 0; first < all.size(); first += cuda::kMaxCopies) {
    cuda::CopyTable table{};
    table.entries = static_cast<uint32_t>(std::min<size_t>(cuda::kMaxCopies, all.size() - first));
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(first), table.entries, table.entry);
    scanner_->copy_if_nonfinite(table, magnitudes, stream);
  }
}

void UndoableStep::end() {
  for (size_t i = 0; i < on_device_.size(); ++i) {
    if (on_device_[i].const_data_ptr() != entries_[i].from) {
      throw std::runtime_error("the optimizer has given a tensor of its own other memory in a step that may be undone");
    }
  }
  launch(/*is_back=*/true, scanner_->current_stream().handle);
  if (scanner_->is_lost()) throw std::runtime_error("the device answers no more, so a bad step would not be undone");
}

void UndoableStep::undo_on_host() {
  const char* from = host_copies_.data();
  for (const at::Tensor& tensor : on_host_) {
    std::memcpy(tensor.mutable_data_ptr(), from, tensor.nbytes());
    from += tensor.nbytes();
  }
  const auto count = [](const at::Tensor& tensor) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  };
  for (const at::Tensor& tensor : on_host_) count(tensor);
  for (const at::Tensor& tensor : on_device_) count(tensor);
  for (const auto& [tensor, copy] : copied_) count(tensor);
}

}  // namespace torchnan
