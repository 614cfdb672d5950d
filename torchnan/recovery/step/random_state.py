"""Every random state that a training step draws from."""

from __future__ import annotations

import dataclasses
import random
import sys
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class RandomState:
    """The states of PyTorch's generators, NumPy's global one and Python's. Generators of a program's own are not in it.

    Attributes:
        cpu: of PyTorch on the CPU, uint8.
        cuda: of every CUDA device, in their order; empty if CUDA is not in use.
        numpy: what ``numpy.random.get_state()`` returns; ``None`` if NumPy is not loaded.
        python: what ``random.getstate()`` returns.
    """

    cpu: Tensor
    cuda: tuple[Tensor, ...]
    numpy: tuple[Any, ...] | None
    python: tuple[Any, ...]

    @classmethod
    def now(cls) -> RandomState:
        """The states as they are."""
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
        """Sets them all again. States of CUDA devices that are not here are left out."""
        torch.set_rng_state(self.cpu)
        if self.cuda and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(self.cuda[: torch.cuda.device_count()])
        if self.numpy is not None:
            import numpy

            numpy.random.set_state(self.numpy)
        random.setstate(self.python)
