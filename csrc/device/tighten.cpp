#include "device/tighten.h"

#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "origin/current_call_site.h"
#include "detection/thread_state.h"
#include "device/devices.h"
#include "device/resolve.h"

namespace torchnan {
namespace {

// Whether an alarm of the event would be attributed, and its scan shows a tighter bound.
bool can_be_tightened(const Event& event, double assumed) {
  const bool is_proved = event.is_proved && event.scanner == nullptr && !event.bound.masked;
  return is_proved && !is_resolved(event.number) && assumed < event.bound.max_abs;
}

}  // namespace

bool tighten_on_device(const at::Tensor& tensor) {
  if (!is_scannable_itself(tensor) || !tensor.is_non_overlapping_and_dense()) return false;
  const CurrentStream stream = Scanner::of(tensor.device())->current_stream();
  if (stream.is_capturing) return false;
  ScanList scans;
  bool has_filled_batch = false;
  {
    Devices::Lock locked(devices());
    const EventNumber write = locked.journal().look_up(tensor).write;
    Event* const event = write == 0 ? nullptr : locked.journal().find(write);
    if (event == nullptr) return false;
    const double assumed = locked.assumptions().of(*event);
    if (!can_be_tightened(*event, assumed) || !event->tensor.has_place_of(TensorSnapshot(tensor))) return false;
    const double before = std::exchange(event->assumed, assumed);          // the limit of the scan
    const bool may_wait = stream.is_default && running_node() == nullptr;  // as a result may
    const bool waits = may_wait && locked.add_to_batch(stream, tensor, *event, has_filled_batch);
    if (!waits && !scans.add(tensor, event->number, event->limit())) {
      event->assumed = before;
      return false;
    }
    event->bound.max_abs = assumed;
    event->is_proved = false;
    event->scanner = stream.scanner;
    event->has_waited = waits;
  }
  Counters& counters = ThreadState::current().counters();
  counters.bytes.add(static_cast<int64_t>(tensor.nbytes()));
  counters.device_bytes.add(static_cast<int64_t>(tensor.nbytes()));
  devices().launch(scans, stream);
  if (has_filled_batch) devices().launch_full_batches();
  return true;
}

}  // namespace torchnan
