// The work under way on devices: one journal for all, and for each the scans that wait to be launched.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <torchnan/export.h>

#include "device/assumptions.h"
#include "device/batch.h"
#include "device/journal.h"
#include "device/node_names.h"
#include "device/scanner.h"
#include "process/fork_safe_mutex.h"

namespace torchnan {

// Returns the tensor whose memory on a device has the values of `tensor` if there is a scanner for that device, else an
// undefined one.
TORCHNAN_API at::Tensor scannable(const at::Tensor& tensor);

// The scans of one device.
struct StreamQueue {
  Scanner& scanner;
  Batch batch;
  c10::SmallVector<void*, 4> streams;  // on which there have been scans

  StreamQueue(Scanner& scanner, void* stream);
  void continue_on(void* stream);
};

class TORCHNAN_API Devices {
 public:
  // Whether anything has ever been recorded: false in a program that uses no device.
  bool in_use() const noexcept { return in_use_.load(std::memory_order_relaxed); }

  // Holds the lock. Tensors that are dropped meanwhile are released after it, as that may need the GIL.
  class Lock {
   public:
    explicit Lock(Devices& devices);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    Journal& journal() { return devices_.journal(); }
    Assumptions& assumptions() { return devices_.assumptions_; }
    std::optional<Event> copy_of(EventNumber number) {
      const Event* event = journal().find(number);
      return event == nullptr ? std::nullopt : std::optional<Event>(*event);
    }

    // Returns the queue of a device on the stream that is current for the calling thread. What waits for another stream
    // is launched there first.
    StreamQueue& queue_of(Scanner& scanner);

    // Adds an event with the call site of the calling thread.
    Event& add(EventType type, const at::Tensor& tensor, const OpPlan& plan, DetectionSession& session,
               uint64_t thread);

    // Scans the tensor of the event for magnitudes that are not intended, or above its bound. On a stream that
    // is being captured the scan is launched at once: nobody says when the capture ends.
    void scan(Event& event, const at::Tensor& tensor);

    // Records that the tensor does harm now if it is not finite.
    void record_harm(HarmKind harm, const at::Tensor& tensor, const OpPlan& reader, DetectionSession& session,
                     uint64_t thread);

    // Launches the scans of this tensor's memory, which is about to be written.
    void launch_scans_of(const at::Tensor& tensor);
    void launch(StreamQueue& queue);
    void launch_all();
    void wait_for_all();

    bool is_alarmed() const;
    bool is_capturing() const;

   private:
    Devices& devices_;
  };

  std::vector<std::unique_ptr<StreamQueue>>& queues() { return queues_; }
  Journal& journal() { return *journal_; }

 private:
  void clear_slots_after(EventNumber number);

  ForkSafeMutex mutex_{
      ForkSafeMutex::kDevices};  // held while work is given to a device, which waits for the device at most
  std::atomic<bool> in_use_{false};
  std::unique_ptr<Journal> journal_;  // made when it is first needed
  std::vector<std::unique_ptr<StreamQueue>> queues_;
  NodeNames node_names_;
  Assumptions assumptions_;
};

// Returns the devices of the process.
TORCHNAN_API Devices& devices();

}  // namespace torchnan
