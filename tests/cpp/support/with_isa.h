// Tests that run once for every dtype and every instruction set, by name; skipped where the machine lacks it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "check/scan/isa_dispatch.h"
#include "check/scan/float_format.h"
#include "support/float_dtypes.h"

namespace torchnan {

class WithIsa : public testing::TestWithParam<std::tuple<c10::ScalarType, Isa>> {
 protected:
  void SetUp() override {
    const Isa isa = std::get<1>(GetParam());
    if (!is_available(isa)) GTEST_SKIP() << "this machine has no " << name_of(isa);
    active_isa = isa;
  }
  void TearDown() override { active_isa = before_; }

  const c10::ScalarType dtype = std::get<0>(GetParam());
  const FloatFormat format = *float_format(dtype);
  const int64_t word = format.word_bytes;

 private:
  const Isa before_ = active_isa;
};

// For INSTANTIATE_TEST_SUITE_P.
inline auto every_dtype_and_isa() {
  return testing::Combine(testing::ValuesIn(kRealDtypes), testing::ValuesIn(kEveryIsa));
}

inline std::string dtype_and_isa(const testing::TestParamInfo<WithIsa::ParamType>& test) {
  return std::string(c10::toString(std::get<0>(test.param))) + "_" + name_of(std::get<1>(test.param));
}

}  // namespace torchnan
