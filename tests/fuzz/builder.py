"""Builds programs from templates: statements are tried as they are chosen, and those that fail are left out."""

from __future__ import annotations

import functools
import random
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.program import NAMES, ignoring_errors_of_threads, keeping_dispatch_state, seed_generator
from tests.fuzz.values import KINDS

SHAPES = [
    *[(72, 64)] * 3,
    *((4608,), (64,), (64, 64), (2, 3, 32, 32), (), (8, 9, 64), (72, 1), (65, 65), (5000,), (3, 4)),
]
DTYPES = ["F32"] * 6 + ["F64", "BF", "HF", "HF"]
SCALARS = [
    "0.0",
    "1.0",
    "-1.0",
    "0.5",
    "2.0",
    "1e3",
    "1e-3",
    "1e10",
    "1e20",
    "1e30",
    "1e37",
    "3e38",
    "1e-10",
    "1e-30",
    "1e-42",
    "-1e30",
    "65504.0",
    "6e4",
    "1e5",
    "-0.0",
    "100.0",
    "1e8",
    "-7.0",
    "0.999",
    "1e-8",
    "1e39",
    "1e-46",
    "1e300",
    "2",
    "3",
]
NOT_FINITE = ["math.inf", "-math.inf", "math.nan"]
HOLES = {
    "{p}": [s for s in SCALARS if not s.startswith("-") and s != "0.0"],
    "{n}": ["-1.0", "-1e3", "-1e30", "0.0", "-6e4"],
    "{q}": ["0.0", "0.1", "0.5", "0.9", "0.999", "1.0", "1e-7"],
    "{e}": ["0.0", "1e-5", "1e-12", "1e-30", "1.0"],
    "{d}": ["F32", "F64", "BF", "HF"],
}
FAILURES = (
    *(RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, torch.linalg.LinAlgError),
    *(ZeroDivisionError, AttributeError, OverflowError, NameError, BufferError),
)


@functools.cache
def templates(name: str) -> list[str]:
    """Returns the lines of a file of templates. {a} and {b} are tensors, {s} a number, the others as in HOLES."""
    return (Path(__file__).with_name("templates") / f"{name}.txt").read_text().splitlines()


def each(choice: random.Random, text: str, hole: str, choices: list[str]) -> str:
    """Fills each occurrence of a hole on its own."""
    while hole in text:
        text = text.replace(hole, choice.choice(choices), 1)
    return text


def filled(choice: random.Random, template: str, names: list[str]) -> str:
    a = choice.choice(names)
    b = choice.choice(names)
    text = template.replace("{a}", a).replace("{b}", b)
    text = each(choice, text, "{s}", NOT_FINITE if choice.random() < 0.02 else SCALARS)
    for hole, choices in HOLES.items():
        text = text.replace(hole, choice.choice(choices))
    return text


def tensor_expression(
    choice: random.Random, shape: Any = None, dtype: str | None = None, kind: str | None = None
) -> str:
    shape = choice.choice(SHAPES) if shape is None else shape
    dtype = dtype or choice.choice(DTYPES)
    return f"T({choice.randrange(10**6)}, {shape}, {dtype}, '{kind or choice.choice(KINDS)}')"


Shape = tuple[torch.Tensor, torch.UntypedStorage, int, torch.Size, tuple[int, ...]]


def _is_strided(x: torch.Tensor) -> bool:
    return type(x) is torch.Tensor and x.layout == torch.strided and not x.is_nested


def _restore(shapes: list[Shape]) -> None:
    """Undoes what PyTorch leaves behind where it refuses to resize memory: a tensor that is larger than its memory, or
    that has been given the memory that could not be resized."""
    for x, storage, offset, size, stride in shapes:
        if x.shape != size or x.untyped_storage()._cdata != storage._cdata:
            with torch.no_grad():
                x.set_(storage, offset, size, stride)


class Builder:
    """A program under construction, with the values of its variables so far."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.seed = seed
        self.names: list[str] = []
        self.scope: dict[str, Any] = dict(NAMES)
        self._made: list[tuple[str, str]] = []
        self._lines: list[str] = []

    def make(self, name: str, expression: str) -> None:
        """Adds a tensor that is there before detection."""
        exec(f"{name} = {expression}", self.scope)
        self._made.append((name, expression))
        self.names.append(name)

    def add(self, line: str, name: str | None = None) -> bool:
        """Adds a statement if it runs, and if what it assigns to `name` is a tensor of modest size."""
        seed_generator(self.seed + 1)
        shapes = self._shapes()
        with keeping_dispatch_state(), ignoring_errors_of_threads():
            runs = self._runs(line)
        if not runs:
            _restore(shapes)
            return False
        if name is not None:
            value = self.scope.get(name)
            if not isinstance(value, torch.Tensor) or value.numel() > 60000 or value.dim() > 5:
                return False
            if name not in self.names:
                self.names.append(name)
        self._lines.append(line)
        return True

    def _runs(self, line: str) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(line, self.scope)
        except FAILURES:
            return False
        return True

    def _shapes(self) -> list[Shape]:
        tensors = [value for value in self.scope.values() if isinstance(value, torch.Tensor) and _is_strided(value)]
        return [(x, x.untyped_storage(), x.storage_offset(), x.shape, x.stride()) for x in tensors]

    def made(self) -> list[str]:
        """Returns the lines that make the values that exist before detection."""
        return [f"{name} = {value}" for name, value in self._made]

    def recent(self, count: int = 4) -> list[str]:
        return self.names[-count:] if self.choice.random() < 0.6 else self.names

    def source(self, context: str | None = None) -> str | None:
        """Returns the program; `context` is a context manager for all of its statements."""
        if not self._lines:
            return None
        names = ", ".join(name for name, _ in self._made)
        lines = ["def make():", *(f"    {line}" for line in self.made()), f"    return {names},", ""]
        body = self._lines if context is None else [f"with {context}:", *(f"    {line}" for line in self._lines)]
        lines += [f"def program({names}):", *(f"    {line}" for line in body), "    return dict(locals())"]
        return "\n".join(lines) + "\n"
