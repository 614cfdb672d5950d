"""Saves and restores the random states that a training step draws from."""

from __future__ import annotations

import dataclasses
import random
import sys
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class RandomState:
    """The states of PyTorch's default generators and of NumPy's and Python's global ones.

    Generators that user code has made are not included.

    Attributes:
        cpu: state of PyTorch's CPU generator, uint8.
        cuda: states of all CUDA devices in order; empty if CUDA is not initialized.
        numpy: the result of ``numpy.random.get_state()``; ``None`` if NumPy is not loaded.
        python: the result of ``random.getstate()``.
    """

    cpu: Tensor
    cuda: tuple[Tensor, ...]
    numpy: tuple[Any, ...] | None
    python: tuple[Any, ...]

    @classmethod
    def now(cls) -> RandomState:
        """Returns the current states."""
        numpy = sys.modules.get("numpy")
        return cls(
            torch.get_rng_state(),
            tuple(torch.cuda.get_rng_state_all())
            if torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            else (),
            None if numpy is None else numpy.random.get_state(),
            random.getstate(),
        )

    def restore(self) -> None:
        """Restores all states. Ignores those of CUDA devices that this machine lacks."""
        torch.set_rng_state(self.cpu)
        if self.cuda and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(self.cuda[: torch.cuda.device_count()])
        if self.numpy is not None:
            import numpy

            numpy.random.set_state(self.numpy)
        random.setstate(self.python)
