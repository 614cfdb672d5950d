// Loops in plain C++, compiled once per instruction set; the loader picks.
#pragma once

// "arch=x86-64-v4" asks what the processor can do; the name of a processor there would match that very model only.
// What a loop calls must be always_inline, as nothing of std:: is: GCC inlines nothing else into another arch.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12
#define TORCHNAN_EVERY_ISA __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define TORCHNAN_EVERY_ISA __attribute__((target_clones("avx2", "default")))
#endif
#else
#define TORCHNAN_EVERY_ISA
#endif
