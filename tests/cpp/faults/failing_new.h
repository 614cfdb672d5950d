// An operator new that fails where it is told to, for the allocations that torchnan makes and for no others. A library
// of its own, so that it can be put before any program: LD_PRELOAD.
#pragma once

extern "C" {

// The nth allocation of torchnan's from now on fails, and with `for_ever` all that follow; 0: none does.
void fail_allocation(long nth, int for_ever);

// Since the last call of fail_allocation(): how many torchnan asked for, and how many of these failed.
long allocations_asked_for();
long allocations_failed();
}
