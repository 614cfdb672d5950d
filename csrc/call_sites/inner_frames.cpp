#include "call_sites/inner_frames.h"

#include <utility>

#include <torch/csrc/jit/runtime/interpreter.h>

#include "host/host_runtime.h"
#include "host/scope_table.h"

namespace torchnan {
namespace {

// A saved model knows the lines that it was compiled from.
Frame frame_of(const torch::jit::StackEntry& entry) {
  const auto generated = entry.range.findSourceRangeThatGenerated();
  const auto place = (generated ? *generated : entry.range).file_line_col();
  if (!place) return {};
  return {std::get<0>(*place), static_cast<int64_t>(std::get<1>(*place)), entry.filename};  // named so: the function
}

}  // namespace

std::vector<Frame> current_inner_frames() {
  std::vector<Frame> frames;
  for (const torch::jit::StackEntry& entry : torch::jit::currentCallstack()) {
    Frame frame = frame_of(entry);
    if (!frame.file.empty()) frames.push_back(std::move(frame));
  }
  if (host_runtime().has_scopes_in_stacks()) return frames;
  const std::vector<Frame> scopes = frames_of_scope(current_scope());
  frames.insert(frames.end(), scopes.begin(), scopes.end());
  return frames;
}

}  // namespace torchnan
