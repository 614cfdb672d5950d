#include "device/node_names.h"

#include <mutex>
#include <string_view>
#include <utility>

#include <torch/csrc/autograd/function.h>

namespace torchnan {

const std::string* NodeNames::of(const torch::autograd::Node& node) {
  const std::type_info& type = typeid(node);
  {
    const std::lock_guard lock(mutex_);
    const auto known = by_type_.find(&type);
    if (known != by_type_.end() && known->second != nullptr) return known->second;
  }
  std::string name = node.name();
  // Functions written in Python share a C++ type; their names are those of their classes.
  const bool is_function = std::string_view(type.name()).find("PyNode") != std::string_view::npos;
  const std::lock_guard lock(mutex_);
  const std::string* interned = &*names_.insert(std::move(name)).first;
  by_type_.emplace(&type, is_function ? nullptr : interned);
  return interned;
}

}  // namespace torchnan
