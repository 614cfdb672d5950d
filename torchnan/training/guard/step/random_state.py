"""Saves and restores the random states that a training step draws from."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchnan._load import _C


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
        has_cuda = torch.cuda.default_generators and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        cuda = tuple(torch.cuda.get_rng_state_all()) if has_cuda else ()
        python = random.getstate.__self__  # type: ignore[attr-defined]
        return cls(
            _torch_state(),
            cuda,
            _numpy_state(),
            _state("python", id(python), python.__sizeof__(), random.getstate, 2),  # its words lie in the object itself
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


# Building a state number by number takes 10 microseconds for Python's generator and 45 for NumPy's, which is noticeable
# in a small step. The last state remains valid as long as the memory of the generator has not changed.
_last_read: dict[str, tuple[bytes, Any]] = {}  # by generator, with the memory before it was read
_WORDS_OF_MT19937 = 4 * (624 + 1)  # bytes: the key, and the position in it


def _torch_state() -> Tensor:
    """Returns the state of PyTorch's generator for the CPU."""
    before, state = _last_read.get("torch", (b"", None))
    memory = _C.memory_of_torch(before)
    if memory is not before:
        state = torch.default_generator.get_state()
        _last_read["torch"] = memory, state
    return state  # type: ignore[no-any-return]


def _numpy_state() -> tuple[Any, ...] | None:
    """Returns the state of NumPy's global generator; ``None`` if NumPy is not loaded."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    generator: Any = getattr(numpy.random, "get_bit_generator", lambda: None)()  # new in NumPy 1.24
    if type(generator) is not numpy.random.MT19937:
        return numpy.random.get_state()  # type: ignore[no-any-return]
    return _state("numpy", generator.ctypes.state_address, _WORDS_OF_MT19937, numpy.random.get_state, 3)


def _state(name: str, address: int, size: int, read: Callable[[], tuple[Any, ...]], spare: int) -> tuple[Any, ...]:
    """Returns the state of a generator with its words at an address, and reads it only if it may have changed.

    Normal numbers are drawn in pairs. The second one is kept outside of the compared words, and taking it does not
    change them. A state that has one, as item ``spare``, is read again.
    """
    before, state = _last_read.get(name, (b"", ()))
    memory = _C.memory_at(address, size, before)
    if memory is not before or state[spare]:
        state = read()
        _last_read[name] = memory, state
    return state  # type: ignore[no-any-return]
