#include "host/program.h"

#include <atomic>
#include <numeric>

namespace torchnan {
namespace {

class UnknownProgram final : public Program {
 public:
  SiteId capture() noexcept override { return 0; }
  Place place(const Site& site, const Watch&) override {
    Place place;
    if (!site.node.empty()) place.phase = Phase::kBackward;
    return place;
  }
  bool is_loss_scaling(const Site&, const Watch&) override { return false; }
  std::optional<Owner> owner(const c10::StorageImpl*, SiteId, const Watch&) override { return std::nullopt; }
  std::vector<size_t> held(const std::vector<at::Tensor>& tensors) override {
    std::vector<size_t> all(tensors.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
};

UnknownProgram unknown;
std::atomic<Program*> plugged_in{&unknown};

}  // namespace

Program& program() { return *plugged_in.load(std::memory_order_acquire); }
void plug_in(Program* host) { plugged_in.store(host, std::memory_order_release); }

}  // namespace torchnan
