"""Reads a capture, and runs its step again."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchnan._load import _C
from torchnan.config.options import OptionError
from torchnan.config.text import counted, to_valid_utf8
from torchnan.detection import shards
from torchnan.distributed.agreement import Agreement, AnomalyKind
from torchnan.training.guard.remedies.step_trials import try_on_step
from torchnan.training.guard.remedies.trials import Trials, state_kept
from torchnan.training.guard.step.forward_backward import ForwardBackward, StepRun
from torchnan.training.guard.step.gradients import nonfinite_among
from torchnan.training.guard.step.norm_limit import NormLimit
from torchnan.training.guard.step.operation import Operation
from torchnan.training.guard.step.random_state import RandomState, process_states_kept
from torchnan.training.guard.step.replay import ReplayedStep, replay
from torchnan.training.storage import folder_reader, rank_folders
from torchnan.training.storage.classes import title
from torchnan.training.storage.codec import decode
from torchnan.training.storage.errors import CaptureError
from torchnan.training.storage.jsonl import LOWERCASE
from torchnan.training.storage.schema_checks import damaged, require_index, require_key, require_size, require_type

_WHAT_ONE_IS = "A capture is a folder such as rank-0-step-00000047, which StepGuard(captures=...) writes for a bad step"

_WRAPPERS = ("module.", "_orig_mod.")  # added by DDP and torch.compile; a replay may run without them


@dataclasses.dataclass(frozen=True)
class Capture:
    """A bad step, with everything that it needs to run again.

    Attributes:
        path: its folder.
        step: 1-based; ``rank`` of ``ranks`` processes.
        event: the event, as in a line of the recovery log.
        report: of the origin, as text.
        weights: parameters by name, before the step; of sharded ones only this rank's parts.
        buffers: as they were before the step, by name.
        batches: the micro-batches of the step.
        random: all random states as they were before it; ``batch_random``: before each micro-batch, ``None`` where it
            continued from the one before.
        in_eval: names of the modules that were in evaluation mode; ``frozen``: of the parameters without gradients.
        stepped: names of the optimizer's parameters in its order; ``None`` if an older torchnan wrote the capture.
        scale: of the loss, by a loss scaler; ``None`` without one.
        not_held: what the step depends on and the capture does not hold: a replay may differ for that reason.
        operation: the operation at the origin with its arguments, if the replay reached it again.
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
    frozen: frozenset[str]
    stepped: tuple[str, ...] | None
    scale: float | None
    not_held: tuple[str, ...]

    def restore(self, model: torch.nn.Module) -> None:
        """Loads weights and buffers into a model, sets its modules to training or evaluation mode, and freezes the
        parameters that were frozen.

        Raises:
            CaptureError: the parameters of the model differ in name or shape from the captured ones.
        """
        with torch.no_grad():
            _fill(self.weights, dict(model.named_parameters(remove_duplicate=False)), "parameter", self.ranks)
            _fill(self.buffers, dict(model.named_buffers()), "buffer", self.ranks)
        for name, module in model.named_modules():
            module.training = _bare(name) not in self.in_eval
        if self.stepped is not None:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(_bare(name) not in self.frozen)

    def replay(
        self,
        model: torch.nn.Module,
        step_fn: Callable[[torch.nn.Module, Any], Any],
    ) -> ReplayedStep:
        """Runs the step twice under ``detect()``.

        Args:
            model: one like the captured one; its weights and buffers are overwritten.
            step_fn: as :class:`torchnan.StepGuard` takes it.

        Returns:
            verdict and finding.

        Raises:
            OptionError: TORCHNAN=0 is set.
            CaptureError: the model is not like the captured one.
        """
        agreement, forward_backward = self._forward_backward(model, step_fn)
        self.restore(model)  # what does not fit is an error, not a step that could not be run

        def run(after_backward: Callable[[], None]) -> StepRun:
            return self._run(forward_backward, self.batches, after_backward)

        original = str(self.event.get("bits", ""))
        with process_states_kept():
            replayed = replay(run, forward_backward, agreement, original=original, step=self.step)
        if not self.not_held or replayed.same_bits:
            return replayed
        return dataclasses.replace(replayed, reason=f"the capture does not hold {', '.join(self.not_held)}")

    def try_remedies(
        self,
        model: torch.nn.Module,
        step_fn: Callable[[torch.nn.Module, Any], Any],
        *,
        replayed: ReplayedStep | None = None,
    ) -> Trials:
        """Runs the step once for each remedy that fits its origin, and leaves weights, buffers, gradients and random
        states as they are.

        Args:
            model: one like the captured one.
            step_fn: as :class:`torchnan.StepGuard` takes it.
            replayed: what :meth:`replay` returned, which is called if it is not given.

        Returns:
            what came of each; ``str()`` gives a table.

        Raises:
            OptionError: TORCHNAN=0 is set.
            CaptureError: the model is not like the captured one.
        """
        with state_kept([*model.parameters(), *model.buffers()]), process_states_kept():
            return self._try_remedies(model, step_fn, replayed or self.replay(model, step_fn))

    def _try_remedies(
        self, model: torch.nn.Module, step_fn: Callable[[torch.nn.Module, Any], Any], replayed: ReplayedStep
    ) -> Trials:
        before = self._last_good()
        if replayed.verdict in (None, "transient"):
            return Trials(self.step, (), 0, before, "the step is finite here")
        _, forward_backward = self._forward_backward(model, step_fn)
        run_step = functools.partial(self._run, forward_backward)
        return try_on_step(run_step, forward_backward, self.batches, replayed.finding, before=before, step=self.step)

    def _forward_backward(
        self, model: torch.nn.Module, step_fn: Callable[[torch.nn.Module, Any], Any]
    ) -> tuple[Agreement, ForwardBackward]:
        if _C.is_disabled():
            raise OptionError("TORCHNAN=0 is set, and a replay looks for what made a NaN: unset it.")
        agreement = Agreement()
        return agreement, ForwardBackward(
            model,
            torch.optim.SGD(self._stepped_in(model), lr=0.0),  # only provides the parameters; never steps
            step_fn,
            self._scaler_for(model),
            NormLimit(self._norm_limit()),
            agreement,
            is_oom_recoverable=False,
            buffers=_CapturedBuffers(model, self.buffers),
        )

    def _stepped_in(self, model: torch.nn.Module) -> list[torch.nn.Parameter]:
        """Returns the parameters of a model that the optimizer stepped, in its order; all, if it is not known or had
        others alone."""
        named = {_bare(name): parameter for name, parameter in model.named_parameters()}
        if self.stepped is None:
            return list(named.values())
        return [named[name] for name in map(_bare, self.stepped) if name in named] or list(named.values())

    def _scaler_for(self, model: torch.nn.Module) -> torch.amp.GradScaler | None:
        if self.scale is None:
            return None
        device = next((parameter.device.type for parameter in model.parameters()), "cpu")
        return torch.amp.GradScaler(device, init_scale=self.scale)

    def _run(
        self, forward_backward: ForwardBackward, batches: list[Any], after_backward: Callable[[], None]
    ) -> StepRun:
        """Runs the step from the captured state."""
        self.restore(forward_backward.model)
        self.random.restore()
        forward_backward.optimizer.zero_grad(set_to_none=True)
        run = forward_backward.start(batches, randoms=self.batch_random, after_backward=after_backward)
        return forward_backward.read(run)

    def _last_good(self) -> tuple[int, float] | None:
        """Returns the last step that was applied before this one, and its loss."""
        step, loss = self.event.get("good_step"), self.event.get("good_loss")
        return (step, float(loss)) if isinstance(step, int) and isinstance(loss, int | float) else None

    def _norm_limit(self) -> float | None:
        """Returns a limit just below the norm that made a step bad, so that it is bad again."""
        norm = self.event.get("norm")
        return 0.99 * float(norm) if self.event.get("what") == AnomalyKind.NORM.label and norm is not None else None


def require_capture(path: str | os.PathLike[str]) -> None:
    """Raises ``CaptureError`` for a path that is not the folder of a capture, without reading it."""
    folder_reader.require_folder(Path(path))
    if not folder_reader.is_capture_folder(Path(path)):
        raise _no_capture(Path(path), folder_reader.CONTENTS)


def load_capture(
    path: str | os.PathLike[str], *, types: tuple[type, ...] = (), device: torch.device | str | None = None
) -> Capture:
    """Reads a capture, which is JSON and safetensors: no code from it is run.

    Args:
        path: its folder.
        types: dataclasses, namedtuples and ``UserDict`` classes in its batches; those of modules that are already
            imported are found automatically, unless they have a finalizer. No constructor of any is called: their
            attributes are set.
        device: where its tensors go; if some were on an accelerator, only those. Default: the CPU.

    Raises:
        CaptureError: it is not a capture, it is damaged, or it holds an operation that does more than compute on
            tensors; says which file and where.
    """
    require_capture(path)
    about, tensors, where = _read(Path(path))
    event = require_key(about, "event", dict, where)
    own = (about, tensors, os.fspath(path))
    of_others = _held_by_others(Path(path), about, where)
    written = require_key(of_others.get("weights", own)[0], "weights", dict, where)
    memory = require_key(written, "memory", list, f"{where}['weights']")
    spread = any(piece != {"device": "cpu"} for piece in memory)  # tensors that were on the host stay there

    def part(name: str, expected: type) -> Any:
        document, stored, folder = of_others.get(name, own)
        if name not in document or name not in stored:
            raise CaptureError(f"{folder}is incomplete: it has no {name}.")
        map_location = None if device is None or "random" in name else functools.partial(_map_location, device, spread)
        made = decode(document[name], stored[name], types=types, map_location=map_location)
        if type(made) is not expected:  # not quoted: its repr() may be code of any class
            raise CaptureError(f"{where}['{name}'] must be a {expected.__name__} but is a {title(type(made))}.")
        return made

    def settable(states: Any) -> RandomState:
        return _require_settable(_fields_of(RandomState, states, f"{where}['random']"), f"{where}['random']")

    operation = part("operation", dict) if "operation" in about else None
    batches, batch_random = part("batches", list), part("batch_random", list)
    if len(batch_random) != len(batches):
        raise damaged(f"{where}['batch_random']", f"{len(batches)} states, one for each batch", len(batch_random))
    ranks = require_size(require_key(about, "ranks", int, where), f"{where}['ranks']")
    return Capture(
        path=Path(path),
        step=require_size(require_key(event, "step", int, f"{where}['event']"), f"{where}['event']['step']"),
        rank=require_index(require_key(about, "rank", int, where), ranks, f"{where}['rank']"),
        ranks=ranks,
        event=_require_norm(event, f"{where}['event']['norm']"),
        report=require_key(about, "report", str, where),
        weights=_named_tensors(part("weights", dict), f"{where}['weights']"),
        buffers=_named_tensors(part("buffers", dict), f"{where}['buffers']"),
        batches=batches,
        random=settable(part("random", dict)),
        batch_random=[None if one is None else settable(one) for one in batch_random],
        operation=None if operation is None else _require_harmless(operation, f"{where}['operation']"),
        versions=_texts(require_key(about, "versions", dict, where), f"{where}['versions']"),
        in_eval=_bare_names(about, "in_eval", where),
        frozen=_bare_names(about, "frozen", where),
        stepped=None if "stepped" not in about else _names(about, "stepped", where),
        scale=_scale_in(about, where),
        not_held=_names(about, "not_held", where),
    )


_Contents = tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]], str]


def _read(path: Path) -> _Contents:
    """Returns the documents of a capture, its tensors, and the path of the first for messages."""
    documents, tensors = folder_reader.read(path)
    where = f"{os.fspath(path)}/capture.json"
    if "capture" not in documents:
        raise _no_capture(path, "capture.json")
    return require_key(documents, "capture", dict, where), tensors, where


def _held_by_others(path: Path, about: dict[str, Any], where: str) -> dict[str, _Contents]:
    """Returns the parts that captures of other ranks hold for this one, by name: identical tensors are written once."""
    path = Path(os.path.abspath(path))  # "." has no name
    found: dict[str, _Contents] = {}
    shared = require_type(about.get("shared", {}), dict, f"{where}['shared']")
    for name in ("weights", "buffers"):
        if name not in shared or name in about:
            continue
        at = f"{where}['shared']['{name}']"
        rank = require_key(require_type(shared[name], dict, at), "rank", int, at)
        folder = rank_folders.same_step_of(rank, path)
        if folder == path or not folder.is_dir():
            beside = "rank-<n>-step-<n>, as it was written" if folder == path else folder.name
            raise CaptureError(
                f"{path} has no {name}: rank {rank} has written them, and its capture of the same step must be beside "
                f"this one. Copy it there as {beside}."
            )
        document, tensors, of_other = _read(folder)
        others = require_type(document.get("shared", {}), dict, f"{of_other}['shared']")
        if require_type(others.get(name, {}), dict, of_other).get("fingerprint") != shared[name].get("fingerprint"):
            raise CaptureError(f"{folder} has other {name} than {path} was written with: it is of another bad step.")
        found[name] = (document, tensors, os.fspath(folder))
    return found


_FIELDS: dict[type, dict[str, tuple[type, ...]]] = {
    RandomState: {"cpu": (torch.Tensor,), "cuda": (tuple,), "numpy": (tuple, type(None)), "python": (tuple,)},
    Operation: {"op": (str,), "overload": (str,), "args": (tuple,), "kwargs": (dict,)},
}


def _no_capture(path: Path, missing: str) -> CaptureError:
    """Returns the error for a folder that is not a capture; lists the captures inside it, if there are any."""
    inside = rank_folders.all_in(path)
    captures = counted(len(inside), "capture")
    what = f"The folder has {captures} inside: give one of them, such as {inside[0]}" if inside else _WHAT_ONE_IS
    return CaptureError(f"{path} is not a capture: it has no {missing}. {what}.")


def _fields_of(cls: type, values: Any, where: str) -> Any:
    """Returns a dataclass instance whose values have the types of its fields."""
    fields = _FIELDS[cls]
    given = require_type(values, dict, where)
    if given.keys() != fields.keys() or not all(type(given[name]) in fields[name] for name in fields):
        raise damaged(where, f"the fields of a {cls.__name__}", list(given))
    return cls(**given)


def _require_harmless(values: Any, where: str) -> Operation:
    """Returns the operation; refuses an operator that could open a file, or anything but compute on tensors."""
    operation: Operation = _fields_of(Operation, values, where)
    if operation.schema() is None:
        raise CaptureError(
            f"{where} is {operation}, and captures hold only operators of PyTorch that compute on tensors: it is "
            "damaged, or written by another PyTorch."
        )
    return operation


def _require_settable(state: RandomState, where: str) -> RandomState:
    """Returns random states that the generators accept: tried on generators that nothing draws from."""
    try:
        _require(_is_mt19937(state.cpu))
        torch.Generator().set_state(state.cpu)
        for one in state.cuda:
            _require(type(one) is torch.Tensor and one.dtype == torch.uint8)
            if torch.cuda.is_available():
                torch.Generator("cuda").set_state(one)
        _, _, drawn = state.python
        _require(drawn is None or type(drawn) is float)
        random.Random().setstate(state.python)
        if state.numpy is not None:
            import numpy

            name, key, position, has_gauss, _ = state.numpy  # NumPy reads at any position that it is given
            _require(type(key) is numpy.ndarray and key.shape == (624,) and key.dtype == numpy.uint32)
            _require(name == "MT19937" and position in range(625) and has_gauss in (0, 1))
            numpy.random.RandomState(0).set_state(state.numpy)
    except (RuntimeError, ValueError, TypeError, OverflowError, ImportError) as error:
        raise CaptureError(
            f"{where} is not a state of the random generators here: {error or 'it is damaged'}."
        ) from error
    return state


def _require(is_valid: bool) -> None:
    if not is_valid:
        raise ValueError


def _is_mt19937(state: torch.Tensor) -> bool:
    """Returns whether the words that are left and the next one add up, which PyTorch does not check."""
    if state.dtype != torch.uint8 or state.dim() != 1 or len(state) < 24:
        return False
    raw = bytes(state[:24].tolist())
    left, next_ = int.from_bytes(raw[8:12], sys.byteorder), int.from_bytes(raw[16:24], sys.byteorder)
    return (left, next_) == (1, 0) or left + next_ == 625


def _require_norm(event: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns an event whose norm, if there is one, is a number."""
    norm = event.get("norm")
    if type(norm) not in (int, float, type(None)) and norm not in tuple(LOWERCASE):
        raise damaged(where, "a number", norm)
    return event


def _named_tensors(values: dict[Any, Any], where: str) -> dict[str, torch.Tensor]:
    for name, tensor in values.items():
        if type(name) is not str or not issubclass(type(tensor), torch.Tensor):
            raise damaged(where, "tensors by name", list(values))
    return values


def _names(about: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    names = require_type(about.get(key, []), list, f"{where}['{key}']")
    return tuple(require_type(name, str, f"{where}['{key}']") for name in names)


def _bare_names(about: dict[str, Any], key: str, where: str) -> frozenset[str]:
    return frozenset(map(_bare, _names(about, key, where)))


def _scale_in(about: dict[str, Any], where: str) -> float | None:
    scale = about.get("scale")
    if scale is not None and not (type(scale) is float and 0 < scale < math.inf):
        raise damaged(f"{where}['scale']", "a finite number above 0, or null", scale)
    return scale


class _CapturedBuffers:
    """The buffers of a model, which a step has made non-finite if they were captured as finite ones."""

    def __init__(self, model: torch.nn.Module, captured: dict[str, torch.Tensor]) -> None:
        self._model = model
        self._captured = {_bare(name): tensor for name, tensor in captured.items()}

    def to_check(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the floating-point buffers as they are now, by name."""
        return [
            (name, shards.local(buffer))
            for name, buffer in self._model.named_buffers()
            if buffer.is_floating_point() and buffer.layout is torch.strided
        ]

    def spoiled(self, nonfinite: Sequence[str]) -> list[str]:
        """Returns those of the non-finite ones that were finite before the step."""
        before = [(name, self._captured[_bare(name)]) for name in nonfinite if _bare(name) in self._captured]
        were = nonfinite_among(before)
        return [name for name in nonfinite if name not in were]


def _texts(values: dict[str, Any], where: str) -> dict[str, str]:
    return {name: require_type(text, str, f"{where}['{name}']") for name, text in values.items()}


def _map_location(device: torch.device | str, spread: bool, was: str) -> torch.device | str:
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
        try:
            room.detach().copy_(tensor)
        except RuntimeError as error:  # a dtype that cannot be converted
            raise CaptureError(f"{what} {name} cannot be loaded from the capture: {error}") from error


def _bare(name: str) -> str:
    """Returns a name as a capture has it: valid Unicode, without the prefixes of wrappers."""
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper)
    return to_valid_utf8(name)
