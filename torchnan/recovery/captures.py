"""Writes captures: everything that a bad step needs to be replayed, on this machine or another."""

from __future__ import annotations

import dataclasses
import platform
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from torchnan import _build
from torchnan.config.options import OptionError
from torchnan.detection import shards
from torchnan.detection.containment import Failures, describe
from torchnan.detection.nested import tensors_in
from torchnan.recovery.event import StepEvent
from torchnan.recovery.policy import Policy
from torchnan.recovery.step.operation import Operation
from torchnan.recovery.step.step_inputs import StepInputs
from torchnan.storage import atomic_folder, rank_folders
from torchnan.storage.codec import check, encode
from torchnan.storage.errors import CaptureError


class _LimitReached(Exception):
    """A limit of the policy does not allow another capture."""


class Captures:
    """The captures of one rank.

    Args:
        policy: folder, maximum number and maximum size.
        rank, ranks: rank of this process, and number of ranks.
        failures: counts captures that could not be written.

    Raises:
        OptionError: safetensors is not installed.
        OSError: the folder cannot be created.
    """

    def __init__(self, policy: Policy, rank: int, ranks: int, failures: Failures) -> None:
        self._policy = policy
        self._rank = rank
        self._ranks = ranks
        self._failures = failures
        self._folder = None if policy.captures is None else Path(policy.captures)
        if self._folder is None:
            return
        try:
            atomic_folder.safetensors()
        except CaptureError as error:
            raise OptionError(f"{error}.") from None
        atomic_folder.make_for("captures", self._folder)
        rank_folders.remove_partial(self._folder, rank)

    @property
    def has_room(self) -> bool:
        """Whether another capture may be written. Ranks may differ."""
        return self._folder is not None and len(self._existing()) < self._policy.max_captures

    def _existing(self) -> list[Path]:
        return [] if self._folder is None else rank_folders.folders_of(self._folder, self._rank)

    def validate(self, batch: Any) -> None:
        """Raises ``UnkeepableError`` for a batch that a capture could not store."""
        if self._folder is not None:
            check(batch, name="batch")

    def save(self, event: StepEvent, model: torch.nn.Module, inputs: StepInputs, operation: Operation | None) -> None:
        """Writes a capture, and records its folder in the event, or why there is none. Never raises."""
        if self._folder is None:
            return
        target = rank_folders.folder_of(self._folder, self._rank, event.step)
        try:
            self._check_limit()
            self._write(target, event, model, inputs, operation)
        except _LimitReached as limit:
            event.notes.append(f"not captured: {limit}")
        except Exception as error:  # noqa: BLE001 - such as a full disk, or a state that cannot be stored
            event.notes.append(f"not captured: {describe(error)}")
            self._failures.record("writing a capture", error)
        else:
            event.capture = str(target)

    def _check_limit(self) -> None:
        if not self.has_room:
            raise _LimitReached(f"{self._folder} holds {len(self._existing())} captures of this rank (max_captures)")

    def _write(
        self, target: Path, event: StepEvent, model: torch.nn.Module, inputs: StepInputs, operation: Operation | None
    ) -> None:
        contents = {
            "weights": dict(model.named_parameters(remove_duplicate=False)),
            "buffers": inputs.buffers(),
            "batches": [batch.restored() for batch in inputs.batches],
            "random": dataclasses.asdict(inputs.random),
            "batch_random": [None if b.random is None else dataclasses.asdict(b.random) for b in inputs.batches],
        }
        if operation is not None:
            contents["operation"] = dataclasses.asdict(operation)
        size = _bytes_of(contents)  # before anything is copied
        if size > self._policy.max_capture_bytes:
            raise _LimitReached(f"{size} bytes are more than max_capture_bytes={self._policy.max_capture_bytes}")
        encoded = {name: encode(value, name=name) for name, value in contents.items()}
        tensors = {name: stored for name, (_, stored) in encoded.items()}
        document = self._metadata(event, model)
        document.update({name: written for name, (written, _) in encoded.items()})
        atomic_folder.write(target, {"capture": document}, tensors)

    def _metadata(self, event: StepEvent, model: torch.nn.Module) -> dict[str, Any]:
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
    """Returns the size of all tensors, counting shared memory once."""
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
