#include "check/scan/isa_dispatch.h"

namespace torchnan {
namespace {

Isa best_available() {
  Isa best = Isa::kBaseline;
  for (const Isa isa : kEveryIsa) {
    if (is_available(isa)) best = isa;
  }
  return best;
}

}  // namespace

const char* name_of(Isa isa) {
  static constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<size_t>(isa)];
}

bool is_available(Isa isa) {
#ifdef TORCHNAN_AVX2
  if (isa == Isa::kAvx2) return __builtin_cpu_supports("avx2") != 0;
#endif
#ifdef TORCHNAN_AVX512
  if (isa == Isa::kAvx512) return __builtin_cpu_supports("x86-64-v4") != 0;
#endif
  return isa == Isa::kBaseline;
}

Isa active_isa = best_available();  // before static initialization: zero, the baseline

}  // namespace torchnan
