"""Writes a capture: all that a bad step needs to run again, on this machine or on another."""

from __future__ import annotations

import dataclasses
import platform
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchnan import _build
from torchnan.config.options import OptionError
from torchnan.detection import shards
from torchnan.detection.containment import describe
from torchnan.recovery.step.operation import Operation
from torchnan.recovery.step.step_inputs import tensors_in
from torchnan.storage import atomic_folder, rank_folders
from torchnan.storage.codec import check, encode
from torchnan.storage.errors import CaptureError

if TYPE_CHECKING:
    from torchnan.detection.containment import Failures
    from torchnan.recovery.event import StepEvent
    from torchnan.recovery.policy import Policy
    from torchnan.recovery.step.step_inputs import StepInputs


class _LimitReached(Exception):
    """One more would be beyond a limit of the policy."""


class Captures:
    """The captures of one rank.

    Args:
        policy: where, how many, how large.
        rank, ranks: this process, of how many.
        failures: told of captures that could not be written.

    Raises:
        OptionError: safetensors, which they are written with, is not installed.
        OSError: the folder cannot be made.
    """

    def __init__(self, policy: Policy, rank: int, ranks: int, failures: Failures) -> None:
        self._policy = policy
        self._rank = rank
        self._ranks = ranks
        self._failures = failures
        self._where = None if policy.captures is None else Path(policy.captures)
        if self._where is None:
            return
        try:
            atomic_folder.safetensors()
        except CaptureError as error:
            raise OptionError(f"{error}.") from None
        atomic_folder.make(self._where)
        rank_folders.remove_partial(self._where, rank)

    @property
    def has_room(self) -> bool:
        """Whether one more is to be kept. Not the same on every rank."""
        return self._where is not None and len(self._kept()) < self._policy.max_captures

    def _kept(self) -> list[Path]:
        return [] if self._where is None else rank_folders.folders_of(self._where, self._rank)

    def validate(self, batch: Any) -> None:
        """Raises ``UnkeepableError`` for a batch that could not be written."""
        if self._where is not None:
            check(batch, name="batch")

    def keep(self, event: StepEvent, model: torch.nn.Module, start: StepInputs, operation: Operation | None) -> None:
        """Writes one, and notes in the event where it is, or why there is none. Never raises."""
        if self._where is None:
            return
        target = rank_folders.folder_of(self._where, self._rank, event.step)
        try:
            self._check_limit()
            self._write(target, event, model, start, operation)
        except _LimitReached as limit:
            event.notes.append(f"not captured: {limit}")
        except Exception as error:  # noqa: BLE001 - a full disk, or a state that nothing can store
            event.notes.append(f"not captured: {describe(error)}")
            self._failures.record("writing a capture", error)
        else:
            event.capture = str(target)

    def _check_limit(self) -> None:
        if not self.has_room:
            raise _LimitReached(f"{self._where} holds {len(self._kept())} captures of this rank (max_captures)")

    def _write(
        self, target: Path, event: StepEvent, model: torch.nn.Module, start: StepInputs, operation: Operation | None
    ) -> None:
        contents = {
            "weights": dict(model.named_parameters(remove_duplicate=False)),
            "buffers": start.buffers(),
            "batches": [batch.restored() for batch in start.batches],
            "random": dataclasses.asdict(start.random),
            "batch_random": [None if b.random is None else dataclasses.asdict(b.random) for b in start.batches],
        }
        if operation is not None:
            contents["operation"] = dataclasses.asdict(operation)
        size = _bytes_of(contents)  # before anything is copied
        if size > self._policy.max_capture_bytes:
            raise _LimitReached(f"{size} bytes are more than max_capture_bytes={self._policy.max_capture_bytes}")
        encoded = {name: encode(value, name=name) for name, value in contents.items()}
        tensors = {name: stored for name, (_, stored) in encoded.items()}
        document = self._about(event, model)
        document.update({name: written for name, (written, _) in encoded.items()})
        atomic_folder.write(target, {"capture": document}, tensors)

    def _about(self, event: StepEvent, model: torch.nn.Module) -> dict[str, Any]:
        return {
            "format": atomic_folder.FORMAT,
            "event": event.facts(),
            "report": "" if event.finding is None else str(event.finding),
            "rank": self._rank,
            "ranks": self._ranks,
            "model": f"{type(model).__module__}.{type(model).__qualname__}",
            "in_eval": [name for name, module in model.named_modules() if not module.training],
            "policy": {name: str(value) for name, value in dataclasses.asdict(self._policy).items()},
            "versions": _versions(),
            "host": socket.gethostname(),
        }


def _bytes_of(contents: Any) -> int:
    """Of its tensors; of those that share memory once."""
    tensors = {shards.local(t).data_ptr(): shards.local(t) for _, t in tensors_in(contents, "")}
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _versions() -> dict[str, str]:
    numpy = sys.modules.get("numpy")
    return {
        "torchnan": _build.version,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "numpy": "" if numpy is None else numpy.__version__,
        "cuda": torch.version.cuda or "",
        "machine": platform.machine(),
    }
