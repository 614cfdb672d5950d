"""Replays a bad step twice under detection, to find the origin and whether it is reproducible."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Literal

import torch

from torchnan.detection import optimizer_hooks, shards, signal_handlers
from torchnan.detection.apart import step_apart
from torchnan.detection.finding import Finding
from torchnan.detection.pause import detection_paused
from torchnan.detection.session import detect, entered_with_new_threads
from torchnan.distributed.agreement import Agreement
from torchnan.training.guard.step.forward_backward import ForwardBackward, StepRun
from torchnan.training.guard.step.gradients import gradients_of
from torchnan.training.guard.step.lockstep import ANOTHER_RANK, OtherRankFailed

Verdict = Literal["persistent", "nondeterministic", "transient"]

# Runs the step once more; the argument is called after its backward pass.
Rerun = Callable[[Callable[[], None]], StepRun]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True)
class ReplayedStep:
    """The result of replaying a step.

    Attributes:
        verdict: ``"persistent"``: bad both times, with the same origin and the same bits. ``"transient"``: finite both
            times; suspect the hardware or a race. ``"nondeterministic"``: neither. ``None``: not replayed.
        finding: the origin found on this rank, or ``None``.
        same_bits: whether losses and gradients matched the original step bit for bit, both times.
        finite_in_eager: whether a step whose origin is in a compiled region is finite without ``torch.compile``;
            ``None`` if it was not run so.
        reason: why there is no verdict; with one, why the bits may differ.
    """

    verdict: Verdict | None
    finding: Finding | None = None
    same_bits: bool = False
    finite_in_eager: bool | None = None
    reason: str = ""


def not_replayed(reason: str) -> ReplayedStep:
    """Returns the result for a step that could not be replayed."""
    return ReplayedStep(None, reason=reason)


def digest(losses: tuple[torch.Tensor, ...], parameters: list[tuple[str, torch.Tensor]]) -> str:
    """Returns a digest of losses and gradients that changes with any bit except the payload of a NaN."""
    return digest_of([*losses, *(gradient for _, gradient in gradients_of(parameters))])


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    """Returns 16 hexadecimal digits over the bits of tensors; of sharded ones, this rank's shards."""
    with detection_paused(), torch.no_grad():
        bits = [_bits(shards.local(tensor.detach())) for tensor in tensors]
    return hashlib.sha256(repr(bits).encode()).hexdigest()[:16]


def _bits(tensor: torch.Tensor) -> int:
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    words = tensor.contiguous().view(-1)
    if words.is_complex():
        words = torch.view_as_real(words)
    if words.numel() == 0:
        return 0
    if (
        words.is_floating_point() and words.element_size() > 1
    ):  # the payload that an addition of NaNs keeps is undefined
        words = words.masked_fill(words.isnan(), math.nan)
    return int(torch.hash_tensor(words.view(_WORDS[words.element_size()])).view(torch.int64))


def replay(
    rerun: Rerun, forward_backward: ForwardBackward, agreement: Agreement, *, original: str, step: int
) -> ReplayedStep:
    """Runs a step twice under ``detect()`` and classifies the result. Collective.

    A step whose origin is in a compiled region is run once more without ``torch.compile``.

    Args:
        rerun: restores the step's inputs and runs forward and backward, without an update.
        forward_backward: runs and checks the step.
        agreement: agreement with the other ranks.
        original: :func:`digest` of the original step.
        step: step number for the findings.
    """
    findings: list[Finding | None] = []
    was_bad: list[bool] = []
    bits = [original]
    for _ in range(2):
        try:
            run, finding = _run_detected(rerun, forward_backward, step)
            failed = ""
        except OtherRankFailed as error:
            failed = str(error)
        except Exception as error:  # noqa: BLE001 - a failing replay must not keep the bad step from being handled
            signal_handlers.let_through(error)
            failed = f"it raised {type(error).__name__} when run again: {error}"
        if agreement.all_reduce_max(int(bool(failed))) > 0:
            return not_replayed(failed or ANOTHER_RANK)
        findings.append(finding)
        was_bad.append(forward_backward.agree(run)[0] is not None)
        bits.append(digest(run.losses, forward_backward.parameters))
    alike = agreement.all_reduce_max(int(bits[1] != bits[2] or not _same_origin(*findings))) == 0
    same_bits = agreement.all_reduce_max(int(not alike or bits[0] != bits[1])) == 0
    finding, finite_in_eager = next((f for f in findings if f is not None), None), None
    is_compiled = finding is not None and finding.compiled is not None
    if all(was_bad) and agreement.all_reduce_max(int(is_compiled)) > 0:
        finite_in_eager, eager = _run_in_eager(rerun, forward_backward, agreement, step)
        if finding is not None and finding.origin == "compiled" and eager is not None:
            finding = eager  # it names the operation
    return ReplayedStep(_verdict(was_bad, alike), finding, same_bits, finite_in_eager)


def _run_in_eager(
    rerun: Rerun, forward_backward: ForwardBackward, agreement: Agreement, step: int
) -> tuple[bool | None, Finding | None]:
    """Returns whether the step is finite without ``torch.compile``, and its origin if it is not. Collective."""
    run, finding = None, None
    with signal_handlers.suppressed(), torch.compiler.set_stance("force_eager"):
        run, finding = _run_detected(rerun, forward_backward, step)
    if agreement.all_reduce_max(int(run is None)) > 0 or run is None:
        return None, None
    return forward_backward.agree(run)[0] is None, finding


def _verdict(was_bad: list[bool], alike: bool) -> Verdict:
    if not any(was_bad):
        return "transient"
    return "persistent" if all(was_bad) and alike else "nondeterministic"


def _run_detected(rerun: Rerun, forward_backward: ForwardBackward, step: int) -> tuple[StepRun, Finding | None]:
    def run() -> tuple[StepRun, Finding | None]:
        session = detect(action="log", model=forward_backward.model)
        with entered_with_new_threads(session):
            session.mark_step(step)
            # The optimizer would use the gradients next.
            ran = rerun(lambda: optimizer_hooks.check_gradients(forward_backward.optimizer))
        return ran, session.first

    return step_apart(run)


def _same_origin(a: Finding | None, b: Finding | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.origin, a.op, a.overload, a.node, a.module, a.name, a.stack, a.shape, a.first_index) == (
        (b.origin, b.op, b.overload, b.node, b.module, b.name, b.stack, b.shape, b.first_index)
    )
