// Dynamic dispatch: loops in plain C++, compiled once per instruction set. The best set of the machine is used.
#pragma once

#include <cstddef>
#include <cstdint>

// "arch=x86-64-v4" tests for features; the name of a processor would match only that model.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TORCHNAN_AVX2 __attribute__((target("avx2")))
#if __GNUC__ >= 12
#define TORCHNAN_AVX512 __attribute__((target("arch=x86-64-v4")))
#endif
#endif

namespace torchnan {

enum class Isa : uint8_t { kBaseline, kAvx2, kAvx512 };
inline constexpr Isa kEveryIsa[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512};

const char* name_of(Isa isa);
// Whether this build has loops for an instruction set, and this machine can run them.
bool is_available(Isa isa);
extern Isa active_isa;  // the best one available; tests set other available ones

// A loop as a function object. The loop and all functions it calls must be always_inline: GCC inlines nothing else into
// a function for another instruction set. Functions of std:: are not.
template <auto kLoop>
class IsaDispatch;

template <typename Result, typename... Args, Result (*kLoop)(Args...)>
class IsaDispatch<kLoop> {
 public:
  Result operator()(Args... args) const { return kVersions[static_cast<size_t>(active_isa)](args...); }

 private:
  static Result baseline(Args... args) { return kLoop(args...); }
#ifdef TORCHNAN_AVX2
  TORCHNAN_AVX2 static Result avx2(Args... args) { return kLoop(args...); }
#else
  static constexpr auto* avx2 = &baseline;
#endif
#ifdef TORCHNAN_AVX512
  TORCHNAN_AVX512 static Result avx512(Args... args) { return kLoop(args...); }
#else
  static constexpr auto* avx512 = &baseline;
#endif

  static constexpr Result (*kVersions[])(Args...) = {baseline, avx2, avx512};
};

}  // namespace torchnan
