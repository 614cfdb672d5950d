// A compiler that may take every number for finite drops the checks for those that are not, and says nothing.
#pragma once

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "torchnan looks for NaN and Inf: build it without -ffast-math, -Ofast and -ffinite-math-only"
#endif
