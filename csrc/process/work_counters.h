// What explaining has cost: nothing, as long as everything is finite. Counted so that a test can say so.
#pragma once

#include <atomic>
#include <cstdint>

#include <torchnan/export.h>

namespace torchnan {

struct WorkCounters {
  std::atomic<int64_t> remembered{0};  // entries made in the lineage
  std::atomic<int64_t> resolved{0};    // stacks turned into files and lines
  std::atomic<int64_t> censuses{0};    // tensors counted through for a report
};

// Of the process, since it started.
TORCHNAN_API WorkCounters& work_counters();

}  // namespace torchnan
