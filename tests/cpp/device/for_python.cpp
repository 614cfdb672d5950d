// The lagging device for programs in Python, which load this by ctypes.
#include <functional>
#include <vector>

#include <torchnan/export.h>

#include "device/lagging_device.h"

namespace lagging = torchnan::lagging;

namespace {

std::vector<std::function<void()>>& graphs = *new std::vector<std::function<void()>>;

c10::Stream stream_of(int64_t device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, lagging::device(static_cast<int>(device)), id);
}

}  // namespace

extern "C" {

TORCHNAN_API void lagging_plug_into_torchnan(int by_kernel) { lagging::plug_into_torchnan(by_kernel != 0); }
TORCHNAN_API void lagging_use_stubs() { lagging::use_stubs(); }
TORCHNAN_API void lagging_fail_next_scanner(int error) { lagging::fail_next_scanner(error); }
TORCHNAN_API void lagging_break_device(int is_broken) { lagging::break_device(is_broken != 0); }
TORCHNAN_API void lagging_refuse_scans(int launches) { lagging::refuse_scans(launches); }
TORCHNAN_API void lagging_refuse_resets(int resets) { lagging::refuse_resets(resets); }
TORCHNAN_API void lagging_run_all() { lagging::run_all(); }
TORCHNAN_API void lagging_run(int64_t device, int64_t stream, int64_t max_items) {
  lagging::run(stream_of(device, stream), max_items);
}
TORCHNAN_API int64_t lagging_waits() { return lagging::counts().waits; }
TORCHNAN_API int64_t lagging_copies_back() { return lagging::counts().copies_back; }
TORCHNAN_API int64_t lagging_live_blocks(int64_t device, int64_t stream) {
  return lagging::live_blocks(stream_of(device, stream));
}
TORCHNAN_API int64_t lagging_stale_reads() { return lagging::counts().stale_reads; }
TORCHNAN_API int64_t lagging_scan_launches() { return lagging::counts().scan_launches; }
TORCHNAN_API int64_t lagging_copy_launches() { return lagging::counts().copy_launches; }
TORCHNAN_API void lagging_reset_counts() { lagging::reset_counts(); }
TORCHNAN_API void lagging_begin_capture(int64_t device, int64_t stream) {
  lagging::begin_capture(stream_of(device, stream));
}
// Returns the number of the graph.
TORCHNAN_API int64_t lagging_end_capture(int64_t device, int64_t stream) {
  graphs.push_back(lagging::end_capture(stream_of(device, stream)));
  return static_cast<int64_t>(graphs.size()) - 1;
}
// Puts work(argument) into the queue of the current stream, for kernels that PyTorch's operators do not run.
TORCHNAN_API void lagging_enqueue(void (*work)(int64_t), int64_t argument) {
  lagging::enqueue(lagging::current_device(), [work, argument] { work(argument); });
}
TORCHNAN_API void lagging_replay(int64_t graph) { graphs[graph](); }

}  // extern "C"
