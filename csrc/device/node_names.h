// The names of backward nodes, without making a string of one for every operation.
#pragma once

#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

namespace torch::autograd {
struct Node;
}

namespace torchnan {

// Not for several threads at once. Names are never freed: there are as many as there are kinds of nodes.
class NodeNames {
 public:
  const std::string* of(const torch::autograd::Node& node);

 private:
  const std::string* interned(std::string name);

  std::unordered_map<const std::type_info*, const std::string*> by_type_;  // null for types whose nodes differ in name
  std::unordered_set<std::string> names_;
};

}  // namespace torchnan
