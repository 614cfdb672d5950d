// What is under way on devices: the journal of all of them, and the scans of each that wait to be launched.
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

// The tensor whose memory on a device tells about `tensor`, if there is a scanner for that device; else undefined.
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
  // Whether anything has ever been noted: false in a program that uses no device.
  bool in_use() const noexcept { return in_use_.load(std::memory_order_relaxed); }

  // Holds the lock. What is let go of meanwhile is released after it: that may need the GIL.
  class Turn {
   public:
    explicit Turn(Devices& devices);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    Journal& journal() { return devices_.journal(); }
    Assumptions& assumptions() { return devices_.assumptions_; }
    std::optional<Event> copy_of(EventNumber number) {
      const Event* event = journal().find(number);
      return event == nullptr ? std::nullopt : std::optional<Event>(*event);
    }

    // The lane of a device on the stream that is current for the calling thread. What waits for another stream is
    // launched there first.
    StreamQueue& lane_of(Scanner& scanner);

    // A new event, with the place where the calling thread is.
    Event& add(Event::What what, const at::Tensor& tensor, const OpPlan& plan, DetectionSession& session,
               uint64_t thread);

    // Scans the tensor of the event for magnitudes that it is not meant to hold, or above its bound. On a stream that
    // is being captured the scan is launched at once: nobody says when the capture ends.
    void scan(Event& event, const at::Tensor& tensor);

    // If what the tensor holds is not finite, it does harm now.
    void note_harm(HarmKind harm, const at::Tensor& tensor, const OpPlan& reader, DetectionSession& session,
                   uint64_t thread);

    // Whoever is about to write to the memory of this tensor has the scans of it launched first.
    void launch_scans_of(const at::Tensor& tensor);
    void launch(StreamQueue& lane);
    void launch_all();
    void wait_for_all();

    bool is_alarmed() const;
    bool is_capturing() const;

   private:
    Devices& devices_;
  };

  std::vector<std::unique_ptr<StreamQueue>>& lanes() { return lanes_; }
  Journal& journal() { return *journal_; }

 private:
  void clear_slots_after(EventNumber number);

  ForkSafeMutex mutex_{
      ForkSafeMutex::kDevices};  // held while work is given to a device, which waits for the device at most
  std::atomic<bool> in_use_{false};
  std::unique_ptr<Journal> journal_;  // made when it is first needed
  std::vector<std::unique_ptr<StreamQueue>> lanes_;
  NodeNames node_names_;
  Assumptions assumptions_;
};

// Of the process.
TORCHNAN_API Devices& devices();

}  // namespace torchnan
