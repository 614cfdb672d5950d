"""Injects four faults, each once, at a known step, on one rank."""

import ctypes
import math

import torch

STRUCK = 1  # the rank that gets the faults
ROOM = 4  # rows of a micro-batch that fit into memory, on the step that runs out of it
EXPONENT_BIT = 30  # the highest of a float32: in a number from 1 to 2 it makes an Inf or a NaN


def planned(steps):
    """Returns the step of each fault."""
    return {
        "bad batch": steps * 5 // 24,
        "Inf gradient": steps * 10 // 24,
        "flipped bit": steps * 15 // 24,
        "out of memory": steps * 20 // 24,
    }


class Faults:
    """Injects the faults of this rank."""

    def __init__(self, model, steps, rank):
        self.model = model
        self.coming = planned(steps) if rank == STRUCK else {}
        self.hook = None
        self.ways = {
            "bad batch": self.count_no_token,
            "Inf gradient": self.make_one_gradient_infinite,
            "flipped bit": self.flip_a_bit,
            "out of memory": self.take_the_memory_away,
        }

    def plant(self, step, batch):
        """Injects the faults of a step, before it runs. A step that is run again after a rollback gets none."""
        if self.hook is not None:
            self.hook.remove()
        for fault in [fault for fault, when in self.coming.items() if when == step]:
            del self.coming[fault]
            self.ways[fault](batch)

    def count_no_token(self, batch):
        """Makes the loss of this batch a mean over nothing."""
        batch["counts"].zero_()

    def make_one_gradient_infinite(self, batch):
        """Sets one element of a gradient to Inf, once: when the step is run again, the gradient is correct."""
        left = [math.inf]

        def strike(gradient):
            if left:
                gradient = gradient.clone()
                gradient[3, 5] = left.pop()
            return gradient

        self.hook = self.model.get_parameter("transformer.h.0.mlp.c_fc.weight").register_hook(strike)

    def flip_a_bit(self, batch):
        """Flips a bit of a weight in memory, outside the dispatcher, as a cosmic ray would.

        The weight is that of a layer norm, where values are near 1.
        """
        norms = [weight for name, weight in self.model.named_parameters() if ".ln_" in name]
        places = [(w, i) for w in norms for i, value in enumerate(w.tolist()) if 1 <= value < 2]
        weight, element = places[len(places) // 2]
        ctypes.c_uint32.from_address(weight.data_ptr() + 4 * element).value ^= 1 << EXPONENT_BIT

    def take_the_memory_away(self, batch):
        """Raises an out-of-memory error in this step for all but small micro-batches."""

        def strike(module, inputs, output):
            if len(inputs[0]) > ROOM:
                raise torch.OutOfMemoryError(f"out of memory: no room for {len(inputs[0])} rows")

        self.hook = self.model.get_submodule("transformer.h.1.mlp").register_forward_hook(strike)
