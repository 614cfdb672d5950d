"""Reads a capture, and runs its step again."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from torchnan.capture import folder
from torchnan.capture.again import CapturedStep
from torchnan.capture.errors import CaptureError
from torchnan.capture.operation import Operation
from torchnan.capture.tree import decode
from torchnan.step import shards
from torchnan.step.random_state import RandomState
from torchnan.step.replay import Replay

_WRAPPERS = ("module.", "_orig_mod.")  # DDP's and torch.compile's, which a replay may do without


@dataclasses.dataclass(frozen=True)
class Capture:
    """A bad step, with all that it needs to run again.

    Attributes:
        path: its folder.
        step: 1-based; ``rank`` of ``ranks`` processes.
        event: what happened, as a line of the recovery log has it.
        report: of the origin, as text.
        weights: parameters by name, not yet touched by the step; of sharded ones this rank's parts.
        buffers: as they were before the step, by name.
        batches: the micro-batches of the step.
        random: all random states as they were before it; ``batch_random``: before each micro-batch, ``None`` where it
            went on from the one before.
        in_eval: names of the modules that were in evaluation mode.
        operation: the operation at the origin with its arguments, if it was met again in the replay.
        versions: of PyTorch, Python and others, where it was written.
    """

    path: Path
    step: int
    rank: int
    ranks: int
    event: Mapping[str, Any]
    report: str
    weights: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    batches: list[Any]
    random: RandomState
    batch_random: list[RandomState | None]
    operation: Operation | None
    versions: dict[str, str]
    in_eval: frozenset[str]

    def restore(self, model: torch.nn.Module) -> None:
        """Puts weights and buffers into a model, and its modules into training or evaluation mode.

        Raises:
            CaptureError: the model has other parameters, or of other shapes, than the one that was captured.
        """
        with torch.no_grad():
            _fill(self.weights, dict(model.named_parameters(remove_duplicate=False)), "parameter", self.ranks)
            _fill(self.buffers, dict(model.named_buffers()), "buffer", self.ranks)
        for name, module in model.named_modules():
            module.training = _bare(name) not in self.in_eval

    def replay(
        self,
        model: torch.nn.Module,
        step_fn: Callable[[torch.nn.Module, Any], Any],
    ) -> Replay:
        """Runs the step twice under ``detect()``.

        Args:
            model: one like the captured one; its weights and buffers are overwritten.
            step_fn: as :class:`torchnan.StepGuard` takes it.

        Returns:
            verdict and finding.
        """
        return CapturedStep(self, model, step_fn).replay()


def load_capture(
    path: str | os.PathLike[str], *, types: tuple[type, ...] = (), device: torch.device | str | None = None
) -> Capture:
    """Reads a capture. Runs no code of it: it is JSON and safetensors.

    Args:
        path: its folder.
        types: dataclasses, namedtuples and ``UserDict`` classes that are in its batches; those of modules that are
            already imported are found without.
        device: where its tensors go; if some were on an accelerator, then only those. Default: the CPU.

    Raises:
        CaptureError: it is not one, or it is damaged; says which file and where.
    """
    documents, tensors = folder.read(Path(path))
    about = documents.get("capture")
    if not isinstance(about, dict) or not isinstance(about.get("event"), dict):
        raise CaptureError(f"{os.fspath(path)} is not a capture: its capture.json has no event.")

    memory = about.get("weights", {}).get("memory", []) if isinstance(about.get("weights"), dict) else []
    spread = any(piece != {"device": "cpu"} for piece in memory)  # what was on the host was meant to be there

    def part(name: str) -> Any:
        if name not in about or name not in tensors:
            raise CaptureError(f"{os.fspath(path)} is not whole: it has no {name}.")
        place = None if device is None or "random" in name else functools.partial(_place, device, spread)
        return decode(about[name], tensors[name], types=types, place=place)

    try:
        return Capture(
            path=Path(path),
            step=int(about["event"]["step"]),
            rank=int(about["rank"]),
            ranks=int(about["ranks"]),
            event=about["event"],
            report=str(about["report"]),
            weights=part("weights"),
            buffers=part("buffers"),
            batches=part("batches"),
            random=RandomState(**part("random")),
            batch_random=[None if one is None else RandomState(**one) for one in part("batch_random")],
            operation=Operation(**part("operation")) if "operation" in about else None,
            versions=dict(about["versions"]),
            in_eval=frozenset(_bare(str(name)) for name in about["in_eval"]),
        )
    except (KeyError, TypeError) as error:
        raise CaptureError(f"{os.fspath(path)} is not a capture that this torchnan can read: {error!r}.") from error


def _place(device: torch.device | str, spread: bool, was: str) -> torch.device | str:
    return "cpu" if spread and was == "cpu" else device


def _fill(kept: dict[str, torch.Tensor], live: dict[str, torch.Tensor], what: str, ranks: int) -> None:
    kept = {_bare(name): tensor for name, tensor in kept.items()}
    live = {_bare(name): tensor for name, tensor in live.items()}
    missing, unknown = sorted(kept.keys() - live.keys()), sorted(live.keys() - kept.keys())
    if missing or unknown:
        raise CaptureError(
            f"this is not the model that was captured: it has no {what} {', '.join(missing[:3]) or '-'}; the capture "
            f"has no {', '.join(unknown[:3]) or '-'} ({len(missing)} and {len(unknown)} differ)."
        )
    for name, tensor in kept.items():
        room = shards.local(live[name])
        if room.shape != tensor.shape:
            of_shards = f" It was one of {ranks} ranks: run as many for sharded weights." if ranks > 1 else ""
            raise CaptureError(
                f"{what} {name} is {tuple(room.shape)} here and {tuple(tensor.shape)} in the capture.{of_shards}"
            )
        room.detach().copy_(tensor)


def _bare(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper)
    return name
