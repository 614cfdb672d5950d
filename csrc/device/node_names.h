// The names of backward nodes, without building a string for every operation.
#pragma once

#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "base/fork_safe_mutex.h"

namespace torch::autograd {
struct Node;
}

namespace torchnan {

// Names are never freed: there are as many as there are kinds of nodes.
class NodeNames {
 public:
  // May need the GIL, so the caller must not hold a lock.
  const std::string* of(const torch::autograd::Node& node);

 private:
  ForkSafeMutex mutex_;
  std::unordered_map<const std::type_info*, const std::string*> by_type_;  // null for types whose nodes differ in name
  std::unordered_set<std::string> names_;
};

}  // namespace torchnan
