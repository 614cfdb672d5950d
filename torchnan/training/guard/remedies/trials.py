"""Tries remedies on a step: runs it once for each, and compares."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import torch

from torchnan.config.text import printable
from torchnan.detection import introspection, signal_handlers
from torchnan.detection.apart import step_apart
from torchnan.detection.containment import describe
from torchnan.detection.finding import Finding
from torchnan.detection.pause import detection_paused
from torchnan.detection.session import detect, entered_with_new_threads
from torchnan.training.guard.remedies.call import CallMode
from torchnan.training.guard.remedies.change import Change
from torchnan.training.guard.remedies.origin import Locate, Origin, at, line_of
from torchnan.training.guard.remedies.registry import REMEDIES


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A run of the step.

    Attributes:
        loss: as a number; ``None`` if it is not known.
        gradients: by name.
        fault: what is not finite in it, or ``""``.
        finding: of level ``"error"``, the first, if the run was under detection.
    """

    loss: float | None
    gradients: dict[str, torch.Tensor]
    fault: str = ""
    finding: Finding | None = None


# Runs the step from its saved state, with a change to its batches and gradients.
Run = Callable[[Change], Outcome]


@dataclasses.dataclass(frozen=True)
class Trial:
    """A remedy that has been tried.

    Attributes:
        text: what was done differently, and where.
        is_finite: whether the step was finite with it.
        loss: of the step with it; ``None`` if it is not known.
        moved: by how much other gradients differ, as a fraction of their norm with or without the remedy, whichever is
            larger: of the parameter where that is most, over the elements that are finite without it. ``None`` if there
            are none.
        norm: of all gradients with it; ``None`` if there are none.
        left: what is still not finite, or why it could not be tried; ``""`` if it is finite.
    """

    text: str
    is_finite: bool
    loss: float | None = None
    moved: float | None = None
    norm: float | None = None
    left: str = ""

    def __str__(self) -> str:
        return "  ".join(filter(None, self._columns())).rstrip()

    def _columns(self) -> tuple[str, str, str, str]:
        if not self.is_finite:
            return self.text, self.left, "", ""
        loss = "" if self.loss is None else f"loss {self.loss:.4g}"
        if self.moved is not None:
            gradients = f"other gradients {f'moved by {self.moved:.1g}' if self.moved else 'unchanged'}"
        else:
            gradients = "" if self.norm is None else f"gradient norm {self.norm:.4g}"
        return self.text, "finite", loss, gradients


@dataclasses.dataclass(frozen=True)
class Trials:
    """The remedies that have been tried on a step. ``str()`` gives a table.

    Attributes:
        step: its number, ``None`` if it has none.
        trials: in the order in which they were tried.
        runs: how many times the step was run.
        before: the last good step and its loss, if they are known.
        reason: why none was tried, or ``""``.
    """

    step: int | None
    trials: tuple[Trial, ...]
    runs: int
    before: tuple[int, float] | None = None
    reason: str = ""

    @property
    def finite(self) -> list[Trial]:
        """Those that made the step finite."""
        return [trial for trial in self.trials if trial.is_finite]

    def __str__(self) -> str:
        step = "" if self.step is None else f" on step {self.step}"
        if not self.trials:
            return f"no remedy was tried{step}: {self.reason}"
        rows = [trial._columns() for trial in self.trials]
        if self.before is not None:
            beside = f"  (step {self.before[0]}: {self.before[1]:.4g})"
            rows = [(text, result, f"{loss}{beside}" if loss else "", last) for text, result, loss, last in rows]
        widths = [
            max(len(row[0]) for row in rows),
            len("finite"),
            max((len(row[2]) for row in rows if row[1] == "finite"), default=0),
            0,
        ]
        lines = [f"remedies tried{step} (replayed {self.runs} times)"]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True) if cell or width)
            lines.append(f"  {'  '.join(cells)}".rstrip())
        return "\n".join(lines)


_NONE_FOR = {
    "parameter": "the weights were not finite before the step: load an earlier checkpoint",
    "buffer": "a buffer was not finite before the step: load an earlier checkpoint",
    "compiled": "the origin is inside compiled code: run it with TORCH_COMPILE_DISABLE=1",
}


def try_on(
    run: Run,
    finding: Finding | None,
    *,
    model: torch.nn.Module | None = None,
    rows: int = 1,
    before: tuple[int, float] | None = None,
    step: int | None = None,
) -> Trials:
    """Runs a step once as it is and once for each remedy that fits.

    Args:
        run: runs the step from its saved state.
        finding: the origin; ``None`` if everything is finite, but the norm of the gradients is too large.
        model: to look for the origin's module in.
        rows: of the batch, 1 if that is not known.
        before: the last good step and its loss.
        step: number of the step.
    """
    if finding is not None and finding.origin in _NONE_FOR:
        return Trials(step, (), 0, before, _NONE_FOR[finding.origin])
    origin = Origin(finding, None if finding is None else line_of(finding), model=model, rows=rows)
    locate = Locate(origin)  # as long as it exists, the calls of the origin know what made their arguments
    reference = run_with(run, locate, model)
    trials, runs = [], 1
    for change in changes_for(origin):
        outcome = run_with(run, change, model)
        runs += 1
        if change.is_effective or isinstance(outcome, str):
            trials.append(compare(change, outcome, reference, origin))
    target = f"the operation{origin.where}" if origin.line is not None else "this origin"
    return Trials(step, tuple(trials), runs, before, "" if trials else f"none fits {target}")


def changes_for(origin: Origin) -> Iterator[Change]:
    """Yields the changes that all remedies propose for an origin, each once."""
    seen = set()
    for remedy in REMEDIES:
        for change in remedy.changes(origin):
            if change.text not in seen:
                seen.add(change.text)
                yield change


def run_with(run: Run, change: Change, model: torch.nn.Module | None) -> Outcome | str:
    """Runs the step with a change, under detection. Returns why it failed, if it did.

    What is compiled runs as it is written: a compiled region does not show its operations.
    """

    def changed() -> Outcome:
        session = detect(action="log", model=model)
        with torch.compiler.set_stance("force_eager"), change.scope(), entered_with_new_threads(session):
            with CallMode(change.call, change.makers):
                outcome = run(change)
        return dataclasses.replace(outcome, finding=session.first)

    try:
        return step_apart(changed)
    except Exception as error:  # noqa: BLE001 - whatever the program makes of the change
        signal_handlers.let_through(error)
        return describe(error)


def compare(change: Change, outcome: Outcome | str, reference: Outcome | str, origin: Origin) -> Trial:
    """Returns what a change has made of a step, beside the step without it. An error is given as its text."""
    text = printable(change.text)
    if isinstance(outcome, str):
        return Trial(text, False, left=f"cannot be run: {printable(outcome, 200)}")
    if outcome.finding is not None or outcome.fault:
        return Trial(text, False, outcome.loss, left=_what_is_left(outcome, origin))
    before = reference.gradients if isinstance(reference, Outcome) else {}
    with detection_paused(), torch.no_grad():
        norms = [gradient.double().norm().item() for gradient in outcome.gradients.values()]
        return Trial(
            text,
            True,
            outcome.loss,
            _moved(before, outcome.gradients),
            math.hypot(*norms) if norms else None,
        )


def _what_is_left(outcome: Outcome, origin: Origin) -> str:
    finding = outcome.finding
    if finding is None:
        return f"still {printable(outcome.fault, 200)}"
    kind = {"nan": "NaN", "inf": "Inf"}[finding.kind]
    op = finding.op.removeprefix("aten::")
    name = f"{op} of {finding.node}" if finding.node else op
    line = line_of(finding)
    is_elsewhere = line is not None and line != origin.line and not introspection.is_internal(line[0])
    where = f" at {at(line)}" if line is not None and is_elsewhere else ""
    return f"still {kind} in {printable(name, 100)}{where}"


def _moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float | None:
    """Returns the largest relative difference of a gradient over the elements that were finite, if any was."""
    moved = [
        _relative(old, after[name]) for name, old in before.items() if name in after and old.shape == after[name].shape
    ]
    return max((one for one in moved if one is not None), default=None)


def _relative(old: torch.Tensor, new: torch.Tensor) -> float | None:
    kept = old.isfinite()
    if not kept.any():
        return None
    a, b = old[kept].double(), new[kept].double()
    difference = (b - a).norm().item()
    return difference / max(a.norm().item(), b.norm().item()) if difference else 0.0


@contextlib.contextmanager
def state_kept(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Puts back the bits, the versions and the gradients of tensors."""
    kept = [
        (tensor, tensor.detach().clone(), None if tensor.is_inference() else tensor._version, tensor.grad)
        for tensor in tensors
    ]
    try:
        yield
    finally:
        with detection_paused(), torch.no_grad():
            for tensor, bits, version, gradient in kept:
                tensor.copy_(bits)
                if version is not None:
                    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
                tensor.grad = gradient
