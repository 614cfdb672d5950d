// The counts of one thread for one session: written by that thread alone, read by any.
#pragma once

#include <array>
#include <cstddef>

#include "process/counter.h"
#include "scan/tensor_scan.h"

namespace torchnan {

struct alignas(64) Counters {
  Counter ops;
  Counter checked;
  Counter proved;
  Counter bytes;
  Counter bytes_proved;
  Counter bytes_rescanned;
  Counter bytes_scanned_unknown;
  Counter nonfinite;
  Counter call_sites;
  std::array<Counter, static_cast<size_t>(Skip::kCount)> skipped;

  // By a thread that may write both.
  Counters& operator+=(const Counters& other) {
    static constexpr Counter Counters::* kCounts[] = {
        &Counters::ops,
        &Counters::checked,
        &Counters::proved,
        &Counters::bytes,
        &Counters::bytes_proved,
        &Counters::bytes_rescanned,
        &Counters::bytes_scanned_unknown,
        &Counters::nonfinite,
        &Counters::call_sites,
    };
    for (const auto count : kCounts) (this->*count).add((other.*count).value());
    for (size_t reason = 0; reason < skipped.size(); ++reason) skipped[reason].add(other.skipped[reason].value());
    return *this;
  }
};

}  // namespace torchnan
