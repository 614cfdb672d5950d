// The pending work on devices: one journal for all, and for each device the scans that wait to be launched.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>

#include <torchnan/export.h>

#include "device/assumptions.h"
#include "device/batch.h"
#include "device/journal.h"
#include "device/preserved_storage.h"
#include "device/scanner.h"
#include "base/fork_safe_mutex.h"
#include "check/scan/float_format.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {

// The devices that can have a scanner.
inline constexpr c10::DispatchKeySet kScannedBackends({
    c10::BackendComponent::CUDABit,
    c10::BackendComponent::XPUBit,
    c10::BackendComponent::MPSBit,
    c10::BackendComponent::HPUBit,
    c10::BackendComponent::PrivateUse1Bit,
});

// Whether a tensor is strided, in memory of a device with a scanner, and of a scanned dtype. The keys decide this for
// nearly all tensors.
inline bool is_scannable_itself(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.key_set().has_any(kScannedBackends) && is_dense(impl, c10::DispatchKey::Dense) && impl.numel() > 0 &&
         storage_of(tensor)->data() != nullptr && float_format(c10::typeMetaToScalarType(impl.dtype())) != nullptr &&
         Scanner::of(impl.device()) != nullptr;
}

// Returns the tensor on a device with a scanner that holds the values of `tensor`: the tensor itself unless it is
// sparse or nested. Undefined if there is none. Copies nothing, because copying may need the GIL.
TORCHNAN_API c10::MaybeOwned<at::Tensor> scannable(const at::Tensor& tensor);

// How far the scans on a stream have come.
struct StreamMark {
  void* stream;
  void* mark;
};

// Held while waiting for a device; a fork does not wait for it.
struct LaunchMutex : ForkSafeMutex {
  LaunchMutex() : ForkSafeMutex(kSlow) {}
};

// One device.
struct DeviceState {
  Scanner& scanner;
  // Held while launching work on the device, which may block. Taken before the lock of Devices.
  ForkSafeMutex& launching;
  Batch batch{};                     // guarded by the lock of Devices
  std::atomic<bool> waits{false};    // whether scans of the batch have not been launched
  bool is_launching = false;         // whether this is so for scans taken from it; guarded by the lock of Devices
  std::vector<StreamMark> marks{};   // guarded by `launching`
  bool default_is_unmarked = false;  // whether its default stream has scans after its mark; guarded by `launching`
};

class TORCHNAN_API Devices {
 public:
  static constexpr size_t kMaxLanes = 32;

  // Whether any event has been recorded: false in a process that uses no device.
  bool in_use() const noexcept { return in_use_.load(std::memory_order_relaxed); }

  // Holds the lock. Meanwhile the caller must not do anything that may need the GIL or wait for a device: copy or drop
  // a tensor, or launch a scan.
  class Lock {
   public:
    explicit Lock(Devices& devices) : devices_(devices) {
      lock();
      if (devices_.journal_ == nullptr) make_journal();
    }
    ~Lock() { unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    void lock() {
      devices_.mutex_.lock();
      is_held_ = true;
    }
    void unlock() {
      if (!is_held_) return;
      is_held_ = false;
      devices_.mutex_.unlock();
    }

    Journal& journal() { return *devices_.journal_; }
    Assumptions& assumptions() { return devices_.assumptions_; }
    PreservedStorages& preserved() { return devices_.preserved_; }
    std::optional<Event> copy_of(EventNumber number) {
      const Event* event = journal().find(number);
      return event == nullptr ? std::nullopt : std::optional<Event>(*event);
    }

    // Adds an event of an operation on `stream`; `Tensor` is at::Tensor or TensorSnapshot. Returns null if a graph is
    // being captured, and the room for its events is used up or its scans cannot be captured.
    template <typename Tensor>
    Event* add(EventType type, const Tensor& tensor, const EventContext& context, const CurrentStream& stream);

    // The same with the inputs of the operation. Inputs that do not fit go into additional events.
    template <typename Tensor>
    Event* add_reader(EventType type, const Tensor& tensor, const EventContext& context, const CurrentStream& stream,
                      c10::ArrayRef<EventInput> inputs);

    // Adds the scan of a new tensor to the batch of its device. Sets `has_filled` if the batch is full then. Returns
    // false if there is no room, or the device batches nothing.
    bool add_to_batch(const CurrentStream& stream, const at::Tensor& tensor, const Event& event, bool& has_filled);

   private:
    void make_journal();
    Event* next(EventType type, const EventContext& context, const CurrentStream& stream);

    Devices& devices_;
    bool is_held_ = false;
  };

  // The caller of the following functions must not hold the lock.

  // Whether launch() has work to do besides scans.
  bool has_slots_to_clear() const { return part_to_clear_.load(std::memory_order_relaxed) >= 0; }

  // Launches scans on a stream.
  void launch(ScanList& scans, const CurrentStream& stream);

  // Whether scans wait to be launched.
  bool has_waiting() const;

  // Launch waiting scans: of full batches, or all. Scans wait on while their stream is being captured.
  void launch_full_batches();
  void launch_all();

  // Whether prepare_writes() may have something to do.
  bool has_to_prepare_writes() const;
  // Called before the calling thread lets something write into these storages: launches their waiting scans, and copies
  // those that are preserved. Makes another stream than the default one wait for scans that have waited, because its
  // program may have recorded an event for it before they were launched.
  void prepare_writes(c10::ArrayRef<const c10::StorageImpl*> storages);

  // Preserves the storages of tensors as they are now, and returns them in this order. Reserves at most `max_bytes` in
  // all, for weights first.
  std::vector<std::shared_ptr<PreservedStorage>> preserve(c10::ArrayRef<at::Tensor> tensors, int64_t max_bytes);

  // Waits for the launched scans of a device, and reads slots. Returns false if the device is lost.
  bool read(DeviceState& state, uint32_t first_slot, uint32_t slots, cuda::Slot* into);
  void wait_for_all();

  bool is_alarmed() const;
  // Whether a device answers nothing any more; asks them all.
  bool has_lost() const;
  // How often a value exceeded its bound, so that proofs were discarded.
  uint64_t times_voided() const { return times_voided_.load(std::memory_order_acquire); }
  void count_voided() { ++times_voided_; }
  // Whether a stream that is current for the calling thread is being captured.
  bool is_capturing() const;
  c10::SmallVector<DeviceState*, 4> states() const;

  // Called in a child of fork(), which cannot use any device: forgets all of them.
  void forget_after_fork();

 private:
  DeviceState* find_state(const Scanner& scanner) const;
  DeviceState& state_of(Scanner& scanner);
  DeviceState& state_to_launch(Scanner& scanner);
  void copy_before_writes(c10::ArrayRef<const c10::StorageImpl*> storages);
  void give_room(std::vector<std::shared_ptr<PreservedStorage>> storages, int64_t max_bytes);
  void launch_batch(DeviceState& state);
  void launch_or_forget(ScanList& scans, const Scanner& scanner, void* stream);
  void note_launch(DeviceState& state, const CurrentStream& stream);
  void mark_default(DeviceState& state);
  StreamMark& record_mark(DeviceState& state, void* stream);
  void follow_marks(DeviceState& state);
  void follow_batches(DeviceState& state);
  void clear_slots(const CurrentStream& stream);

  ForkSafeMutex mutex_{ForkSafeMutex::kDevices};
  std::atomic<bool> in_use_{false};
  std::unique_ptr<Journal> journal_;  // made when it is first needed
  std::array<std::atomic<DeviceState*>, kMaxLanes> states_{};
  std::array<LaunchMutex, kMaxLanes> launch_mutexes_{};
  std::atomic<int32_t> part_to_clear_{-1};  // part of the slots
  std::atomic<uint64_t> times_voided_{0};
  Assumptions assumptions_;
  PreservedStorages preserved_;         // guarded by the lock
  std::atomic<bool> preserves_{false};  // whether it has any
  LaunchMutex reserving_;
  ReservedRooms rooms_;  // guarded by `reserving_`
};

// Returns the devices of the process.
TORCHNAN_API Devices& devices();

// Returns the tensor that an event has written; undefined if it is gone, or was written again, or if its device is
// lost. The caller must not hold the lock.
TORCHNAN_API at::Tensor live_tensor(const Event& event);

}  // namespace torchnan
