// Counts the work of attribution, so that tests can assert that it is zero while everything is finite.
#pragma once

#include <atomic>
#include <cstdint>

#include <torchnan/export.h>

namespace torchnan {

struct WorkCounters {
  std::atomic<int64_t> remembered{0};  // entries of the registry of non-finite tensors
  std::atomic<int64_t> resolved{0};    // stacks resolved to files and lines
  std::atomic<int64_t> stats{0};       // statistics computed for a report
  std::atomic<int64_t> attributed{0};  // results whose cause was searched for among what they are made of
};

// Returns the counts of the process since its start.
TORCHNAN_API WorkCounters& work_counters();

}  // namespace torchnan
