// What a non-finite value does. Where it does damage or is seen, its cause is reported, once.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <torchnan/export.h>

#include "origin/attribution.h"
#include "origin/lineage.h"
#include "watch/watch.h"

namespace torchnan {

// Before a call runs: does it read a bad value back, or use a weight that has gone bad?
void judge_before(const CallFacts& call, c10::ArrayRef<BadArgument> bad_arguments);

// After a call: has it written into a parameter, or is every origin to be told at once?
void judge_result(const CallFacts& call, const Result& result, const Lineage::RecordPtr& record);

// The first operation of a backward pass is about to run, in the node of one of its roots: is the root finite?
void judge_beginning_of_backward(Watch& watch);

// Reports what is non-finite among `tensors` as harm of this kind; names[i], if given, belongs to tensors[i]. For
// roots of backward, gradients, optimizer state, values read by a host. Roots of backward are looked at even if nobody
// saw them being made; of the others only what is remembered is.
TORCHNAN_API void judge_tensors(Watch& watch, HarmKind kind, c10::ArrayRef<at::Tensor> tensors,
                                const std::vector<std::string>& names = {});

// A guard: `tensor` must be finite, whether or not anybody saw it being made.
void judge_guard(Watch& watch, const at::Tensor& tensor, const std::string& name);

// When detection ends: what the program still holds is an error, what nobody ever used a warning. All are kept
// before the first error is acted upon.
TORCHNAN_API void judge_end(Watch& watch);

}  // namespace torchnan
