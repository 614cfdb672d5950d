// Registers the typed kernels of operators.
#pragma once

#include <string>

#include <torch/library.h>

#include "intercept/typed_call.h"

namespace torchnan {

template <typename Op, typename Call>
void register_typed(torch::Library& aten) {
  constexpr auto kRun = &Call::run;
  const std::string name = std::string(Op::name) + (*Op::overload_name == '\0' ? "" : ".") + Op::overload_name;
  aten.impl(name.c_str(), torch::CppFunction(TORCH_FN(kRun)));
}

template <LargeCalls kLarge, typename... Ops>
void intercept_typed(torch::Library& aten) {
  (TypedCall<Ops, kLarge>::find_operator(), ...);
  (register_typed<Ops, TypedCall<Ops, kLarge>>(aten), ...);
}

}  // namespace torchnan
