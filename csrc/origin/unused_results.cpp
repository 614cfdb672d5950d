#include "origin/unused_results.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "process/fork.h"

namespace torchnan {
namespace {

using CallSite = std::tuple<std::string, SiteId, SiteId>;  // operator, stack, forward stack

struct Registry {
  Mutex mutex;
  std::map<const Watch*, std::map<CallSite, Lineage::RecordPtr>> by_watch;
};

Registry& registry = *new Registry;  // never destroyed: threads may outlive static destructors

bool is_unused(const Root& root) { return !root.used && !root.reported && !root.excused && !root.scaled; }

}  // namespace

void note_unused(Watch& watch, const Lineage::RecordPtr& record) {
  const Root& root = *record->first().root;
  Lineage::RecordPtr released;  // after the lock
  const std::lock_guard lock(registry.mutex);
  auto& candidates = registry.by_watch[&watch];
  const CallSite key{root.facts.op, root.site.live, root.site.forward};
  const auto known = candidates.find(key);
  if (known == candidates.end()) {
    if (static_cast<int64_t>(candidates.size()) < watch.options().max_findings) candidates.emplace(key, record);
  } else if (!is_unused(*known->second->first().root)) {
    released = std::exchange(known->second, record);
  }
}

std::vector<Lineage::RecordPtr> take_unused(const Watch& watch) {
  std::map<CallSite, Lineage::RecordPtr> candidates;
  {
    const std::lock_guard lock(registry.mutex);
    const auto found = registry.by_watch.find(&watch);
    if (found == registry.by_watch.end()) return {};
    candidates.swap(found->second);
    registry.by_watch.erase(found);
  }
  std::vector<Lineage::RecordPtr> unused;
  for (const auto& [site, record] : candidates) {
    if (is_unused(*record->first().root)) unused.push_back(record);
  }
  std::sort(unused.begin(), unused.end(),
            [](const auto& a, const auto& b) { return a->first().root->sequence < b->first().root->sequence; });
  return unused;
}

}  // namespace torchnan
