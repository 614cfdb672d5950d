// Who made it? Decides, for a call whose result is not finite, whether the call is the origin or only hands on what
// it was given.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "check/kinds.h"
#include "origin/lineage.h"
#include "watch/watch.h"

namespace torchnan {

struct OpPlan;

// A non-finite tensor argument.
struct BadArgument {
  at::Tensor tensor;
  Kinds kinds;
  Lineage::RecordPtr record;
};

// A non-finite tensor that a call has written.
struct Result {
  at::Tensor tensor;
  Kinds kinds;
  int64_t output = 0;  // which of the tensors it wrote, lists counted through
};

// A call, as far as attribution needs to know it.
struct CallFacts {
  const OpPlan& plan;
  c10::ArrayRef<c10::IValue> kept;  // the plan's kept_arguments, as they were passed
  Watch& watch;
  uint64_t thread;
};

// A record for values that nobody saw being made: they are external, and this call is their first reader.
Lineage::RecordPtr external_record(const CallFacts& call, const at::Tensor& argument, Kinds kinds);

// The record of a bad argument; an external one is remembered.
Lineage::RecordPtr record_of_argument(const CallFacts& call, const at::Tensor& argument, Kinds kinds);

// Finds the cause of each result and remembers it in the lineage, and judges what harm the call itself has done.
// `bad_arguments` holds those that were known before the call; the others are found here.
void attribute(const CallFacts& call, c10::SmallVectorImpl<BadArgument>& bad_arguments, c10::ArrayRef<Result> results);

}  // namespace torchnan
