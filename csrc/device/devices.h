// The work under way on devices: one journal for all, and for each the scans that wait to be launched.
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
#include "device/scanner.h"
#include "process/fork_safe_mutex.h"
#include "scan/float_format.h"
#include "scan/tensor_scan.h"

namespace torchnan {

// Whether a tensor is strided, in memory of a device that has a scanner, and of a dtype that is scanned: by its keys,
// as nearly all are.
inline bool is_scannable_itself(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl.key_set();
  constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);
  constexpr c10::DispatchKeySet kOther(c10::DispatchKey::PrivateUse1);
  const bool is_dense = keys.has_all(kCuda) || keys.has_all(kOther);
  if (!is_dense || keys.has_any(kWrapperKeys) || impl.has_symbolic_sizes_strides()) return false;
  const c10::StorageImpl* const storage = impl.unsafe_storage().unsafeGetStorageImpl();
  return storage != nullptr && impl.numel() > 0 && storage->data() != nullptr &&
         float_format(c10::typeMetaToScalarType(impl.dtype())) != nullptr && Scanner::of(impl.device()) != nullptr;
}

// Returns the tensor whose memory on a device has the values of `tensor`, itself where it is not sparse or nested, if
// there is a scanner for that device; else an undefined one. Nothing is copied: that may need the GIL.
TORCHNAN_API c10::MaybeOwned<at::Tensor> scannable(const at::Tensor& tensor);

// How far a stream has come with scans.
struct StreamMark {
  void* stream;
  void* mark;
};

// Held while a device is waited for: no fork waits for that.
struct LaunchMutex : ForkSafeMutex {
  LaunchMutex() : ForkSafeMutex(kSlow) {}
};

// One device.
struct Lane {
  Scanner& scanner;
  // Held while work is given to the device, which may have to wait for it. Taken before the lock of Devices.
  ForkSafeMutex& launching;
  Batch batch{};                    // guarded by the lock of Devices
  std::atomic<bool> waits{false};   // whether scans of the batch have not been launched
  std::vector<StreamMark> marks{};  // guarded by `launching`
};

class TORCHNAN_API Devices {
 public:
  static constexpr size_t kMaxLanes = 32;

  // Whether anything has ever been recorded: false in a process that uses no device.
  bool in_use() const noexcept { return in_use_.load(std::memory_order_relaxed); }

  // Holds the lock. Nothing may be done meanwhile that may need the GIL or wait for a device: no tensor may be copied
  // or dropped, no scan launched.
  class Lock {
   public:
    explicit Lock(Devices& devices);
    ~Lock() { unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    void lock();
    void unlock();

    Journal& journal() { return *devices_.journal_; }
    Assumptions& assumptions() { return devices_.assumptions_; }
    std::optional<Event> copy_of(EventNumber number) {
      const Event* event = journal().find(number);
      return event == nullptr ? std::nullopt : std::optional<Event>(*event);
    }

    // Adds an event of an operation on `stream`; `Tensor` is at::Tensor or TensorSnapshot. Returns null where a graph
    // is being captured, and there is no more room for events of graphs.
    template <typename Tensor>
    Event* add(EventType type, const Tensor& tensor, const EventContext& context, const CurrentStream& stream);

    // The same with what the operation has read: the inputs that have no room are in events of their own.
    template <typename Tensor>
    Event* add_reader(EventType type, const Tensor& tensor, const EventContext& context, const CurrentStream& stream,
                      c10::ArrayRef<EventInput> inputs);

    // Lets the scan of a new tensor, which `kept` is moved from, wait in the batch of its device, and sets `has_filled`
    // if the batch is full then. Returns false if there is no room.
    bool add_to_batch(const CurrentStream& stream, at::Tensor&& kept, const Event& event, bool& has_filled);

   private:
    Event* next(EventType type, const EventContext& context, const CurrentStream& stream);

    Devices& devices_;
    bool is_held_ = false;
  };

  // None of the following may be called with the lock.

  // Whether launch() has something to do without a scan.
  bool has_slots_to_clear() const { return part_to_clear_.load(std::memory_order_relaxed) >= 0; }

  // Launches scans on a stream.
  void launch(ScanList& scans, const CurrentStream& stream);

  // Whether scans wait to be launched.
  bool has_waiting() const;

  // Launch scans that wait: where they are many, of storages, all. A stream that is being captured holds them up.
  void launch_full_batches();
  void launch_scans_of(c10::ArrayRef<const c10::StorageImpl*> storages);
  void launch_all();

  // Waits for the scans of a device that have been launched, and reads slots.
  void read(Lane& lane, uint32_t first_slot, uint32_t slots, cuda::Slot* into);
  void wait_for_all();

  bool is_alarmed() const;
  // Whether a stream that is current for the calling thread is being captured.
  bool is_capturing() const;
  c10::SmallVector<Lane*, 4> lanes() const;

  // Called in a child of fork(), where no device can be used: forgets all of them.
  void forget_after_fork();

 private:
  Lane* find_lane(const Scanner& scanner) const;
  Lane& lane_of(Scanner& scanner);
  void launch_batch(Lane& lane);
  void record_mark(Lane& lane, void* stream);
  void follow_marks(Lane& lane);
  void clear_slots(const CurrentStream& stream);

  ForkSafeMutex mutex_{ForkSafeMutex::kDevices};
  std::atomic<bool> in_use_{false};
  std::unique_ptr<Journal> journal_;  // made when it is first needed
  std::array<std::atomic<Lane*>, kMaxLanes> lanes_{};
  std::array<LaunchMutex, kMaxLanes> launch_mutexes_{};
  std::atomic<int32_t> part_to_clear_{-1};  // of the slots
  Assumptions assumptions_;
};

// Returns the devices of the process.
TORCHNAN_API Devices& devices();

}  // namespace torchnan
