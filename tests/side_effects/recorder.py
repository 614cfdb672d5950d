"""Facts about a run: what the program writes down, and what it leaves behind in its process. Does not use torchnan."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import re
import traceback
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.side_effects import process_state
from tests.support.call_observation import bits, parts

Facts = dict[str, list[str]]  # by facet; each fact is a line
SHOWN = 4  # elements of a tensor that are printed; all of them are compared


class Recorder:
    """Collects the facts of one run. A program writes to it from any thread.

    Attributes:
        device: where the program's tensors are.
        detection: opens detection in the run under torchnan, and nothing in the plain one.
        torchnan: the package in the run under torchnan, ``None`` in the plain one.
    """

    def __init__(
        self, device: torch.device, detection: Callable[[], AbstractContextManager[Any]], torchnan: ModuleType | None
    ) -> None:
        self.device = device
        self.detection = detection
        self.torchnan = torchnan
        self._facts: Facts = defaultdict(list)
        self._watched: dict[str, weakref.ref[Any]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorder:
        """Returns the same: objects of the program that write to it may be copied."""
        return self

    # -- for programs

    def value(self, name: str, value: Any) -> None:
        """Records a value; of a tensor its bits, metadata and place in the graph."""
        self._facts["values"].append(f"{name} = {_described(value)}")

    def call(self, name: str, *details: Any) -> None:
        """Records that a function or hook of the program is called, in order with all other calls."""
        self._facts["calls"].append(" ".join([name, *map(_described, details)]))

    def error(self, name: str, error: BaseException) -> None:
        """Records an exception with the frames of its traceback and what it was raised from."""
        self._facts["exceptions"] += [f"{name}:", *_lines_of(error)]

    @contextlib.contextmanager
    def catching(self, name: str) -> Any:
        """Records the exception that ends the block, if there is one."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - whatever it raises is what is compared
            self.error(name, error)
        else:
            self._facts["exceptions"].append(f"{name}: none")

    def watch(self, **objects: Any) -> None:
        """Records at the end, and whenever ``alive()`` asks, which of these objects still exist."""
        for name, thing in objects.items():
            assert name not in self._watched, f"{name} is watched already"
            self._watched[name] = weakref.ref(thing)

    def alive(self, when: str) -> None:
        """Records which watched objects exist. The garbage collector is off while a program runs."""
        self._facts["lifetimes"] += [
            f"{when}: {name} {'exists' if ref() is not None else 'is freed'}" for name, ref in self._watched.items()
        ]

    def counters(self, when: str) -> None:
        """Records the compiler's counters at this point; those at the end are recorded anyway."""
        self._facts["compilations"] += [f"{when}: {line}" for line in process_state.compilations()]

    # -- for the run

    def process(self, when: str) -> None:
        """Records the state of the process."""
        for facet, lines in process_state.state().items():
            self._facts[facet] += [f"{when}: {line}" for line in lines]
        self.alive(when)
        kinds = Counter(filter(None, map(_kind, gc.get_objects())))
        self._facts["lifetimes"] += [f"{when}: {count} of {kind}" for kind, count in sorted(kinds.items())]

    def add(self, facet: str, lines: list[str]) -> None:
        """Records facts that the run has collected."""
        self._facts[facet] += lines

    def facts(self) -> Facts:
        """Returns what was recorded."""
        return {facet: [without_addresses(line) for line in lines] for facet, lines in self._facts.items()}


def _kind(thing: Any) -> str | None:
    """Returns the name of a type of which a program may count the objects; those of the compiler are left out."""
    kind = type(thing)
    if kind in (torch.Tensor, torch.nn.Parameter):
        return f"{kind.__name__} {list(thing.shape)}"
    if issubclass(kind, torch.nn.Module) and not issubclass(kind, torch.fx.GraphModule):
        return f"module {kind.__name__}"
    return None


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _described_tensor(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_described(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_described, value)) + "]"
    return without_addresses(str(value))


def _described_tensor(tensor: torch.Tensor) -> str:
    node = tensor.grad_fn.name() if tensor.grad_fn is not None else None
    flags = [name for name in ("requires_grad", "is_leaf") if getattr(tensor, name)]
    flags += ["inference"] if tensor.is_inference() else [f"version {tensor._version}"]
    pieces = [piece.cpu() for piece in parts(tensor)]
    digest = hashlib.sha256(b"".join(bits(piece) or b"" for piece in pieces)).hexdigest()[:12]
    shown = [element for piece in pieces for element in piece.flatten()[:SHOWN].tolist()]
    return f"{shown} {tensor.dtype} {list(tensor.shape)} {list(tensor.stride())} {node} {' '.join(flags)} {digest}"


def _lines_of(error: BaseException, role: str = "raised") -> list[str]:
    lines = [f"  {role} {type(error).__module__}.{type(error).__qualname__}: {without_addresses(str(error))}"]
    lines += [f"    note {note}" for note in getattr(error, "__notes__", [])]
    lines += [
        f"    at {_file(frame.filename)}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    for role_of_other, other in (("from", error.__cause__), ("while handling", error.__context__)):
        if other is not None and not (role_of_other != "from" and error.__suppress_context__):
            lines += _lines_of(other, role_of_other)
    return lines


def _file(name: str) -> str:
    """Returns the part of a path that does not depend on the machine or the run."""
    if name.startswith("<eval_with_key>"):
        return "<eval_with_key>"  # the number is that of the graphs so far in the process
    path = Path(name)
    return "/".join(path.parts[-3:]) if "torchinductor" not in name else f"generated{path.suffix}"


def without_addresses(text: str) -> str:
    """Returns a text without what differs from run to run."""
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", text)
