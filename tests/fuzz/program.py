"""One program: source text with ``make()``, whose tensors are there before detection, and ``program(*made)``."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import hashlib
import io
import math
import os
import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import torchnan
from tests.fuzz.settings import settings
from tests.fuzz.truth import Truth
from tests.fuzz.values import scaled, tensor

Fact = tuple[Any, ...]


def resized(x: torch.Tensor, size: int) -> torch.Tensor:
    """Resizes a tensor in place, and fills memory that is new: what it holds is chance."""
    _refuse_growth(x, size)
    written = max(0, x.untyped_storage().nbytes() // x.itemsize - x.storage_offset())
    x.resize_(size)[written:].fill_(0.5)
    return x


def memset(x: torch.Tensor, byte: int, count: int) -> None:
    """Writes to the first bytes of a tensor without PyTorch, as far as its memory goes."""
    left = x.untyped_storage().nbytes() - x.storage_offset() * x.itemsize
    ctypes.memset(x.data_ptr(), byte, max(0, min(count, left)))


def attached(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Lets a tensor have the memory of another, and fills what it adds to that: what it holds is chance."""
    storage = y.untyped_storage()
    _refuse_growth(x.new_empty(0).set_(storage), y.numel())
    size = storage.nbytes()
    x.set_(storage, 0, (y.numel(),), (1,))
    torch.empty(0, dtype=torch.uint8).set_(storage)[size:].fill_(63)  # type: ignore[call-overload]
    return x


def roomy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that can take a result of the other's size. PyTorch dies where shared memory has to grow."""
    _refuse_growth(x, y.numel())
    return x


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns a copy with the memory layout of that name; one that is expanded repeats a part of x."""
    if layout == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "channels_last" and x.dim() in (4, 5):
        return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    if layout == "expanded":
        return x[:1].clone().expand(x.shape)
    if layout == "expanded_last":
        return x[..., :1].clone().expand(x.shape)
    if layout == "strided":  # the last stride is 2
        return torch.stack([x, x], -1)[..., 0]
    if layout == "offset":
        return torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape)
    if layout == "padded":  # each row is followed by others' memory
        return torch.cat([x, x], -1)[..., : x.shape[-1]]
    return x.clone()


@contextlib.contextmanager
def flushing_denormals() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Lets products of float32 be rounded to fewer bits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _refuse_growth(x: torch.Tensor, size: int) -> None:
    storage = x.untyped_storage()
    if storage.is_shared() and storage.nbytes() < (x.storage_offset() + size) * x.itemsize:
        raise RuntimeError("shared memory cannot be resized")


NAMES: dict[str, Any] = {
    "attached": attached,
    "memset": memset,
    "roomy": roomy,
    "resized": resized,
    "torch": torch,
    "F": F,
    "np": np,
    "T": tensor,
    "S": scaled,
    "laid_out": laid_out,
    "flushing_denormals": flushing_denormals,
    "matmul_precision": matmul_precision,
    "settings": settings,
    "copy": copy,
    "io": io,
    "ctypes": ctypes,
    "pickle": pickle,
    "threading": threading,
    "math": math,
    "contextlib": contextlib,
    "F32": torch.float32,
    "F64": torch.float64,
    "BF": torch.bfloat16,
    "HF": torch.float16,
}


@dataclasses.dataclass(frozen=True)
class Program:
    """A generated program, or one that was kept."""

    generator: str
    seed: int
    source: str

    @property
    def name(self) -> str:
        return f"{self.generator}_{self.seed}.py"

    def scope(self) -> dict[str, Any]:
        names = dict(NAMES)
        exec(compile(self.source, self.name, "exec"), names)
        return names


@dataclasses.dataclass
class Run:
    """The result of a program: its variables, its error, and its reports."""

    variables: dict[str, Any]
    error: tuple[str, str] | None
    watch: Any = None
    truth: Truth | None = None

    @property
    def digest(self) -> str:
        return digest(self.variables)

    @property
    def facts(self) -> list[Fact]:
        return [fact(finding) for finding in self.watch.findings]

    @property
    def internal_errors(self) -> int:
        return int(self.watch.stats()["internal_errors"])


@contextlib.contextmanager
def keeping_dispatch_state() -> Iterator[None]:
    """Restores the thread's dispatch keys once the error of a failed call is gone.

    Some calls of PyTorch leave keys of theirs excluded when they fail, as ``torch.cat([wrapped], out=plain)`` does;
    every later program would run without them.
    """
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        yield


@contextlib.contextmanager
def ignoring_errors_of_threads() -> Iterator[None]:
    """Prints none: the state that a failing thread has written is compared like everything else."""
    hook, threading.excepthook = threading.excepthook, lambda _: None
    try:
        yield
    finally:
        threading.excepthook = hook


def seed_generator(number: int) -> None:
    """Seeds the generator of the CPU alone: torch.manual_seed() notes its stack for each kind of device."""
    torch.default_generator.manual_seed(number)


def run(program: Program, mode: str, **options: Any) -> Run:
    """Runs it; `mode` is plain, watched, or truth."""
    names = program.scope()
    seed_generator(program.seed)
    made = names["make"]() if "make" in names else ()
    seed_generator(program.seed + 1)
    result = Run({}, None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(keeping_dispatch_state())
        stack.enter_context(ignoring_errors_of_threads())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if mode == "watched":
            result.watch = stack.enter_context(torchnan.detect(action="log", **options))
        if mode == "truth":
            result.truth = stack.enter_context(Truth())
        try:
            result.variables = names["program"](*made)
        except Exception as error:  # noqa: BLE001 (a program may fail in any way, as long as it always does)
            result.error = (type(error).__name__, str(error)[:150])
        made = ()  # releases the objects that the program has released
    return result


def fact(finding: Any) -> Fact:
    """The facts on which two runs of a program must agree."""
    place = (os.path.basename(finding.file or "?"), finding.line)
    harm = finding.harm.kind
    return (finding.level, finding.kind, finding.origin, finding.op, place, finding.phase, harm, finding.step)


def tensors(value: Any, depth: int = 0) -> list[torch.Tensor]:
    """Returns the tensors that a variable holds, with their gradients."""
    if isinstance(value, torch.Tensor):
        return [value, *_gradient(value)]
    if depth > 4:
        return []
    held: list[Any] = []
    if isinstance(value, dict):
        held = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        held = list(value)
    elif isinstance(value, torch.nn.Module):
        held = [*value.parameters(), *value.buffers()]
    elif isinstance(value, torch.optim.Optimizer):
        held = [dict(state) for state in value.state.values()]
    return [found for one in held for found in tensors(one, depth + 1)]


def _gradient(x: torch.Tensor) -> list[torch.Tensor]:
    """Returns the gradient of a leaf; nothing for a view that PyTorch refuses to ask, as its base was written."""
    with contextlib.suppress(RuntimeError):
        if x.is_leaf and x.grad is not None:
            return [x.grad]
    return []


def digest(variables: dict[str, Any]) -> str:
    """Returns a hash of all bits of all tensors, their shapes, dtypes and versions."""
    total = hashlib.sha1()
    for name in sorted(variables):
        for found in tensors(variables[name]):
            with contextlib.suppress(RuntimeError):  # of other layouts, or without memory
                version = None if found.is_inference() else found._version
                total.update(repr((name, str(found.dtype), version, tuple(found.shape))).encode())
                plain = found.detach().resolve_conj().resolve_neg().contiguous()
                bits = plain if plain.dtype == torch.bool else plain.flatten().view(torch.uint8)
                total.update(bits.numpy().tobytes())
    return total.hexdigest()
