"""The same step twice more, under detection: where did it come from, and does it come again?"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Literal

import torch

from torchnan.detection import hooks, shards
from torchnan.detection.finding import Finding
from torchnan.detection.pause import detection_paused
from torchnan.detection.session import detect, entered_with_new_threads
from torchnan.distributed.agreement import Agreement
from torchnan.recovery.step.forward_backward import ForwardBackward, StepRun
from torchnan.recovery.step.gradients import gradients_of

Verdict = Literal["persistent", "nondeterministic", "transient"]

# Runs the step once more; given what to do after its backward pass.
Again = Callable[[Callable[[], None]], StepRun]

ANOTHER_RANK = "another rank cannot run it again"

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True)
class Replay:
    """What running the step again has shown.

    Attributes:
        verdict: ``"persistent"``: wrong both times, same origin, same bits. ``"transient"``: finite both times, so it
            was not the program: suspect the hardware or a race. ``"nondeterministic"``: neither.
            ``None``: the step could not be run again, see ``reason``.
        finding: the origin, as this rank has seen it; ``None`` where nothing was wrong here.
        same_bits: whether losses and gradients came out as in the step itself, bit for bit, both times.
        reason: why there is no verdict.
    """

    verdict: Verdict | None
    finding: Finding | None = None
    same_bits: bool = False
    reason: str = ""


def not_replayed(reason: str) -> Replay:
    """There was no way to run it again."""
    return Replay(None, reason=reason)


def digest(losses: tuple[torch.Tensor, ...], parameters: list[tuple[str, torch.Tensor]]) -> str:
    """Of the bits of losses and gradients: what differs in one bit differs here, but for the payload of a NaN."""
    return digest_of([*losses, *(gradient for _, gradient in gradients_of(parameters))])


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    """Of the bits of tensors, of sharded ones this rank's: 16 hexadecimal digits."""
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
    if words.is_floating_point() and words.element_size() > 1:  # which of its NaNs an addition hands on, nobody decides
        words = words.masked_fill(words.isnan(), math.nan)
    return int(torch.hash_tensor(words.view(_WORDS[words.element_size()])).view(torch.int64))


def replay(
    again: Again, forward_backward: ForwardBackward, agreement: Agreement, *, original: str, step: int
) -> Replay:
    """Runs a step twice under ``detect()`` and says what kind of trouble it is in. All ranks do so together.

    Args:
        again: puts back what the step started from, and runs it: forward and backward, no update.
        forward_backward: knows the model, and what a bad step is.
        agreement: with the other ranks.
        original: :func:`digest` of the step that went wrong.
        step: its number, for the findings.
    """
    findings: list[Finding | None] = []
    tripped: list[bool] = []
    bits = [original]
    for _ in range(2):
        try:
            run, finding = _watched(again, forward_backward, step)
            failed = ""
        except Exception as error:  # noqa: BLE001 - the step would have been dealt with; its second run must not end it
            failed = f"it raised {type(error).__name__} when run again: {error}"
        if agreement.all_reduce_max(int(bool(failed))) > 0:
            return not_replayed(failed or ANOTHER_RANK)
        findings.append(finding)
        tripped.append(forward_backward.agree(run)[0] is not None)
        bits.append(digest(run.losses, forward_backward.parameters))
    alike = agreement.all_reduce_max(int(bits[1] != bits[2] or not _same_origin(*findings))) == 0
    same_bits = agreement.all_reduce_max(int(not alike or bits[0] != bits[1])) == 0
    return Replay(_verdict(tripped, alike), next((f for f in findings if f is not None), None), same_bits)


def _verdict(tripped: list[bool], alike: bool) -> Verdict:
    if not any(tripped):
        return "transient"
    return "persistent" if all(tripped) and alike else "nondeterministic"


def _watched(again: Again, forward_backward: ForwardBackward, step: int) -> tuple[StepRun, Finding | None]:
    watch = detect(action="log", model=forward_backward.model)
    with entered_with_new_threads(watch):
        watch.mark_step(step)
        run = again(lambda: hooks.judge_gradients(forward_backward.optimizer))  # it would be about to use them
    return run, watch.first


def _same_origin(a: Finding | None, b: Finding | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.origin, a.op, a.overload, a.node, a.module, a.name, a.stack, a.shape, a.first_index) == (
        (b.origin, b.op, b.overload, b.node, b.module, b.name, b.stack, b.shape, b.first_index)
    )
