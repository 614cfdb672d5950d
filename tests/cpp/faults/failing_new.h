// An operator new that fails on request, only for allocations of torchnan. A separate library, so that it can be
// preloaded into any program: LD_PRELOAD.
#pragma once

extern "C" {

// The nth allocation of torchnan's from now on fails, and with `for_ever` all that follow; 0: none does.
void fail_allocation(long nth, int for_ever);

// Since the last call of fail_allocation(): how many torchnan asked for, and how many of these failed.
long allocations_asked_for();
long allocations_failed();
}
