#include "call_sites/inner_frames.h"

#include "host/host_runtime.h"
#include "host/scope_table.h"

namespace torchnan {

std::vector<Frame> current_inner_frames() {
  if (host_runtime().has_scopes_in_stacks()) return {};
  return frames_of_scope(current_scope());
}

}  // namespace torchnan
