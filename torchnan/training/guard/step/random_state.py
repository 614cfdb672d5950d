"""Saves and restores the random states that a training step draws from."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
from collections.abc import Iterator
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
        return RandomStateReader().now()

    def restore(self) -> None:
        """Restores all states. Ignores those of CUDA devices that this machine lacks.

        In what runs apart from the program, those of PyTorch are set of copies of its generators.
        """
        torch.set_rng_state(self.cpu)
        if self.cuda and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(self.cuda[: torch.cuda.device_count()])
        self.restore_of_process()

    def restore_of_process(self) -> None:
        """Restores the states of which no thread can have a copy: NumPy's and Python's. Writes none that has not
        changed."""
        if self.numpy is not None:
            import numpy

            if not _are_equal(numpy.random.get_state(), self.numpy):
                numpy.random.set_state(self.numpy)
        if random.getstate() != self.python:
            random.setstate(self.python)


@contextlib.contextmanager
def process_states_kept() -> Iterator[None]:
    """Restores the states of NumPy's and Python's generators after the block."""
    before = RandomState.now()
    try:
        yield
    finally:
        before.restore_of_process()


_TORCH, _PYTHON, _NUMPY, _ALL = 1, 2, 4, 7  # of RandomMemory.moved()


class RandomStateReader:
    """Reads the states again and again.

    Building a state number by number takes 10 microseconds for Python's generator and 45 for NumPy's, which is
    noticeable in a small step. The last state remains valid as long as the memory of the generator has not changed.

    Normal numbers are drawn in pairs. The second one is kept outside of the compared words, and taking it does not
    change them. A state that has one is read again.
    """

    def __init__(self) -> None:
        self._python: Any = None
        self._numpy: Any = None
        self._memory: Any = None
        self._unclear = 0  # generators whose memory does not tell whether they have moved
        self._last: Any = None

    def now(self) -> RandomState:
        """Returns the current states."""
        python, module = random.getstate.__self__, sys.modules.get("numpy")  # type: ignore[attr-defined]
        numpy = None if module is None else getattr(module.random, "get_bit_generator", _unknown)()  # of NumPy 1.24
        if python is not self._python or numpy is not self._numpy:
            self._follow(python, numpy)
        moved = self._memory.moved() | self._unclear
        has_cuda = torch.cuda.default_generators and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if moved or has_cuda or self._last.cuda:
            self._last = self._read(moved, tuple(torch.cuda.get_rng_state_all()) if has_cuda else ())
        return self._last  # type: ignore[no-any-return]

    def _follow(self, python: Any, numpy: Any) -> None:
        """Follows these generators from now on."""
        others = [(id(python), python.__sizeof__())]  # its words lie in the object itself
        if type(numpy).__name__ == "MT19937":
            others.append((numpy.ctypes.state_address, _WORDS_OF_MT19937))
        self._python, self._numpy, self._memory = python, numpy, _C.RandomMemory(others)
        self._unclear = _ALL

    def _read(self, moved: int, cuda: tuple[Tensor, ...]) -> RandomState:
        last = self._last
        of_numpy = None
        if self._numpy is not None:
            of_numpy = sys.modules["numpy"].random.get_state() if moved & _NUMPY else last.numpy
        of_python = random.getstate() if moved & _PYTHON else last.python
        self._unclear = 0
        if of_python[2] is not None:
            self._unclear |= _PYTHON
        if of_numpy is not None and (type(of_numpy) is not tuple or of_numpy[3]):
            self._unclear |= _NUMPY
        return RandomState(
            torch.default_generator.get_state() if moved & _TORCH else last.cpu, cuda, of_numpy, of_python
        )


_WORDS_OF_MT19937 = 4 * (624 + 1)  # bytes: the key, and the position in it


def _unknown() -> type:
    """Stands for a generator that cannot be followed; always the same."""
    return type(None)


def _are_equal(one: Any, other: Any) -> bool:
    """Returns whether two states of NumPy's are known to be equal."""
    return type(one) is type(other) is tuple and len(one) == len(other) and all(map(_are_same_bits, one, other))


def _are_same_bits(one: Any, other: Any) -> bool:
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    return bool(one == other)
