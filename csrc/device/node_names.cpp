#include "device/node_names.h"

#include <string_view>

#include <torch/csrc/autograd/node.h>

namespace torchnan {

const std::string* NodeNames::of(const torch::autograd::Node& node) {
  const std::type_info& type = typeid(node);
  const auto known = by_type_.find(&type);
  if (known != by_type_.end() && known->second != nullptr) return known->second;
  const std::string* name = interned(node.name());
  // A program's own Functions share a type, and are called by the names of their classes.
  const bool is_function = std::string_view(type.name()).find("PyNode") != std::string_view::npos;
  if (known == by_type_.end()) by_type_.emplace(&type, is_function ? nullptr : name);
  return name;
}

const std::string* NodeNames::interned(std::string name) { return &*names_.insert(std::move(name)).first; }

}  // namespace torchnan
