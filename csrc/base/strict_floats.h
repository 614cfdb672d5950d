// Refuses -ffinite-math-only, under which the compiler silently drops the checks for non-finite values.
#pragma once

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "torchnan looks for NaN and Inf: build it without -ffast-math, -Ofast and -ffinite-math-only"
#endif
