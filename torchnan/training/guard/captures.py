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
from torchnan.config.policy import Policy
from torchnan.config.text import to_valid_utf8
from torchnan.detection import shards, signal_handlers
from torchnan.detection.containment import Failures, describe
from torchnan.detection.nested import tensors_in
from torchnan.distributed.agreement import Agreement
from torchnan.training.guard.capture_plan import plan_captures
from torchnan.training.guard.event import StepEvent
from torchnan.training.guard.fingerprint import fingerprint
from torchnan.training.guard.step.forward_backward import ForwardBackward
from torchnan.training.guard.step.operation import Operation
from torchnan.training.guard.step.step_inputs import StepInputs
from torchnan.training.storage import atomic_folder, folder_reader, rank_folders
from torchnan.training.storage.codec import check, encode
from torchnan.training.storage.errors import CaptureError


class _LimitReached(Exception):
    """A limit of the policy does not allow another capture."""


class Captures:
    """The captures of one rank, as part of the captures of the job.

    Parts with the same bits on several ranks, such as the weights under DDP, are written by one of them: by the rank
    that made the bad value if it holds the part too. The others write their batches and random states, and refer to it.
    At most ``WRITERS_AT_ONCE`` ranks write at the same time.

    Args:
        policy: folder, maximum number, of steps and of ranks, and maximum size.
        agreement: agreement with the other ranks.
        failures: counts captures that could not be written.

    Raises:
        OptionError: safetensors is not installed.
        OSError: the folder cannot be created.
    """

    def __init__(self, policy: Policy, agreement: Agreement, failures: Failures) -> None:
        self._policy = policy
        self._agreement = agreement
        self._failures = failures
        self._folder = None if policy.captures is None else Path(policy.captures)
        if self._folder is None:
            return
        try:
            folder_reader.safetensors()
        except CaptureError as error:
            raise OptionError(f"{error}.") from None
        atomic_folder.make_option_dir("captures", self._folder)
        rank_folders.remove_partial(self._folder, agreement.global_rank)

    def validate(self, batch: Any) -> None:
        """Raises ``UnkeepableError`` for a batch that a capture could not store."""
        if self._folder is not None:
            check(batch, name="batch")

    def has_room(self) -> bool:
        """Returns whether the job may capture another step, and any rank captures steps. Collective."""
        steps = self._agreement.all_reduce_max(self._captured_steps())
        has_room = self._folder is not None and steps < self._policy.max_captures
        return self._agreement.all_reduce_max(int(has_room)) > 0

    def _captured_steps(self) -> int:
        if self._folder is not None:
            with self._failures.contained("counting captures"):
                return len(rank_folders.steps_in(self._folder))
        return 0

    def note_limit(self, event: StepEvent) -> None:
        """Records in the event that :meth:`has_room` was false."""
        if self._folder is not None:
            text = f"{self._folder} holds captures of {self._captured_steps()} steps (max_captures)"
            event.notes.append(f"not captured: {text}")

    def save(self, event: StepEvent, step: ForwardBackward, inputs: StepInputs, operation: Operation | None) -> None:
        """Writes a capture, and records its folder in the event, or the reason why there is none. Collective; raises
        only an ``AgreementError``."""
        named = self._tensors_of(event, step.model, inputs)
        held = [self._fingerprint(tensors) for tensors in named.values()] if named else [0, 0]
        every = self._agreement.gather(held)
        ranks = [self._agreement.to_global_rank(rank) for rank in range(len(every))]
        cause = ranks.index(event.rank) if event.rank in ranks else 0
        most = self._agreement.all_reduce_max(self._policy.capture_ranks)
        plan = plan_captures([own if any(own) else [] for own in every], cause, most)
        lost: set[int] = set()  # ranks that failed to write parts that others hold too
        for turn in plan.turns:
            failed = 0
            if self._agreement.rank in turn:
                holders = plan.holders[self._agreement.rank]
                shared = {
                    name: {"rank": ranks[holder], "fingerprint": f"{value:016x}"}
                    for name, holder, value in zip(named, holders, held, strict=True)
                }
                missing = [ranks[holder] for holder in holders if holder in lost]
                if missing:
                    event.notes.append(f"not captured: rank {missing[0]}, which has the same weights, wrote none")
                elif not self._save_own(event, step, inputs, operation, named, shared):
                    failed = 1 + self._agreement.rank
            lost.add(self._agreement.all_reduce_max(failed) - 1)  # the next ranks begin when these have written
        if self._folder is None or not plan.turns:
            return
        if self._agreement.rank not in plan.writers:
            event.notes.append(f"not captured by this rank: capture_ranks={most} others are")
        if cause != self._agreement.rank and cause in plan.writers and cause not in lost:
            where = rank_folders.folder_of(self._folder, event.rank, event.step)
            event.notes.append(f"the bad value is in the capture of rank {event.rank}: {where}")

    def _tensors_of(
        self, event: StepEvent, model: torch.nn.Module, inputs: StepInputs
    ) -> dict[str, dict[str, torch.Tensor]]:
        """Returns the weights and buffers by name; nothing on a rank without a folder, or if the model has no names."""
        if self._folder is None:
            return {}
        with self._failures.contained("writing a capture") as reading:  # code of the model
            return {
                "weights": dict(model.named_parameters(remove_duplicate=False)),
                "buffers": inputs.buffers.of_model(),
            }
        event.notes.append(f"not captured: {reading.failure}")
        return {}

    def _fingerprint(self, tensors: dict[str, torch.Tensor]) -> int:
        """Returns the fingerprint of a part; if it has none, a number unique to this rank."""
        with self._failures.contained("comparing weights between ranks"):  # such as a layout that is not contiguous
            return 1 << 62 | fingerprint(tensors)
        return 1 + self._agreement.rank

    def _save_own(
        self,
        event: StepEvent,
        step: ForwardBackward,
        inputs: StepInputs,
        operation: Operation | None,
        named: dict[str, dict[str, torch.Tensor]],
        shared: dict[str, dict[str, Any]],
    ) -> bool:
        """Writes the capture of this rank; returns whether that succeeded."""
        assert self._folder is not None
        rank = self._agreement.global_rank
        target = rank_folders.folder_of(self._folder, rank, event.step)
        try:
            atomic_folder.make_option_dir("captures", self._folder)  # another process may have removed it since
            own = {name: tensors for name, tensors in named.items() if shared[name]["rank"] == rank}
            self._write(target, {**self._metadata(event, step, inputs), "shared": shared}, own, inputs, operation)
        except _LimitReached as limit:
            event.notes.append(f"not captured: {limit}")
        except Exception as error:  # noqa: BLE001 - such as a full disk, or a state that cannot be stored
            signal_handlers.let_through(error)
            event.notes.append(f"not captured: {describe(error)}")
            self._failures.record("writing a capture", error)
        else:
            event.capture = str(target)
            return True
        return False

    def _write(
        self,
        target: Path,
        document: dict[str, Any],
        own: dict[str, dict[str, torch.Tensor]],
        inputs: StepInputs,
        operation: Operation | None,
    ) -> None:
        contents: dict[str, Any] = {
            **own,
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
        document.update({name: written for name, (written, _) in encoded.items()})
        atomic_folder.write(target, {"capture": document}, tensors)

    def _metadata(self, event: StepEvent, step: ForwardBackward, inputs: StepInputs) -> dict[str, Any]:
        model = step.model
        return {
            "format": folder_reader.FORMAT,
            "event": event.facts(),
            "report": "" if event.finding is None else str(event.finding),
            "rank": self._agreement.global_rank,
            "ranks": self._agreement.ranks,
            "model": f"{type(model).__module__}.{type(model).__qualname__}",
            "in_eval": [to_valid_utf8(name) for name, module in model.named_modules() if not module.training],
            "frozen": [to_valid_utf8(name) for name, one in model.named_parameters() if not one.requires_grad],
            "stepped": [to_valid_utf8(name) for name, _ in step.parameters],
            "scale": step.scale,
            "not_held": _not_held(step, inputs),
            "policy": {name: str(value) for name, value in dataclasses.asdict(self._policy).items()},
            "versions": _versions(),
            "host": socket.gethostname(),
        }


def _not_held(step: ForwardBackward, inputs: StepInputs) -> list[str]:
    """Returns what the step depends on and a capture does not hold, which a replay may lack therefore."""
    of_model = {id(parameter) for parameter in step.model.parameters()}
    outside = [name for name, parameter in step.parameters if id(parameter) not in of_model]
    extra = [
        name
        for name, module in step.model.named_modules()
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state
    ]
    networks = inputs.buffers.outside()
    told = [
        f"parameters outside of the model ({', '.join(outside[:3])})" if outside else "",
        f"networks outside of the model ({', '.join(networks[:3])})" if networks else "",
        f"the extra state of modules ({', '.join(extra[:3])})" if extra else "",
    ]
    return list(filter(None, told))


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
