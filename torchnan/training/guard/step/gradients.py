"""Scans all gradients of a step once for norm, largest magnitude and non-finite elements; averages gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from torchnan._load import _C
from torchnan.config.text import printable
from torchnan.detection import shards
from torchnan.detection.pause import detection_paused
from torchnan.distributed.agreement import Agreement


class GradientStats(NamedTuple):
    """Statistics of a list of tensors, taken in one scan.

    Attributes:
        norm: 2-norm over all elements, of this rank's shards only; non-finite if any element is.
        max_abs: the largest magnitude; NaN if there is a NaN, infinity if there is an Inf.
        nonfinite: names of the tensors with non-finite elements.
        squares: for sharded tensors, the sum of squares of the finite ones, each divided by the number of ranks that
            hold the same shard, so that its sum over the ranks is the square of the global norm.
        sharded: whether a rank may hold only a part of one of the tensors.
        nonfinite_buffers: names of the buffers with non-finite elements that were scanned along with them.
        tensors: number of tensors.
    """

    norm: float = 0.0
    max_abs: float = 0.0
    nonfinite: tuple[str, ...] = ()
    squares: float = 0.0
    sharded: bool = False
    nonfinite_buffers: tuple[str, ...] = ()
    tensors: int = 0


def gradients_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Returns the existing gradients with the names of their parameters."""
    return [(name, p.grad) for name, p in parameters if p.grad is not None]


def measure(named: Sequence[tuple[str, torch.Tensor]], *, ranks: int = 1) -> GradientStats:
    """Scans every tensor once. Synchronizes once per device, and not at all on the CPU.

    Args:
        named: floating-point or complex tensors of any shape, with names.
        ranks: number of processes that train together; used for ``squares``.
    """
    if not named:
        return GradientStats()
    tensors = [tensor for _, tensor in named]
    rows = _C.norms_and_magnitudes([shards.local(tensor) for tensor in tensors])
    norms, magnitudes = map(list, zip(*rows, strict=True))
    max_abs = math.nan if any(map(math.isnan, magnitudes)) else max(magnitudes)
    return GradientStats(
        norm=_norm_of_all(norms, max_abs),
        max_abs=max_abs,
        nonfinite=tuple(name for (name, _), m in zip(named, magnitudes, strict=True) if not math.isfinite(m)),
        squares=_squares(tensors, rows, ranks) if ranks > 1 else 0.0,
        sharded=any(map(shards.is_sharded, tensors)),
        tensors=len(named),
    )


def measure_gradients(
    parameters: list[tuple[str, torch.Tensor]],
    agreement: Agreement | None = None,
    buffers: Sequence[tuple[str, torch.Tensor]] = (),
) -> GradientStats:
    """Scans the gradients of parameters like :func:`measure`, and buffers along with them; in one call if all of them
    are ordinary tensors, which this rank has as a whole. Only others need the number of processes in the agreement."""
    measured = _C.measure_gradients(parameters, list(buffers))
    if measured is None:
        stats = measure(gradients_of(parameters), ranks=1 if agreement is None else agreement.ranks)
        # By the parameters: a rank may have no gradient, and all ranks must sum their norms, or none.
        sharded = any(shards.is_sharded(parameter) for _, parameter in parameters)
        return stats._replace(sharded=sharded, nonfinite_buffers=measure(buffers).nonfinite)
    return stats_of(*measured)


def stats_of(
    norms: list[float], max_abs: float, nonfinite: tuple[str, ...], nonfinite_buffers: tuple[str, ...]
) -> GradientStats:
    """Returns the statistics of gradients that this rank has as a whole, from what the core has measured."""
    return GradientStats(
        _norm_of_all(norms, max_abs), max_abs, nonfinite, nonfinite_buffers=nonfinite_buffers, tensors=len(norms)
    )


def _norm_of_all(norms: list[float], max_abs: float) -> float:
    """Returns the norm over all tensors from those of each. A NaN among the elements outweighs an Inf."""
    return math.nan if math.isnan(max_abs) else math.hypot(*norms)


def nonfinite_among(named: Iterable[tuple[str, torch.Tensor]]) -> tuple[str, ...]:
    """Returns the names of the tensors with non-finite elements; integer tensors have none."""
    return measure([(name, t.detach()) for name, t in named if t.is_floating_point() or t.is_complex()]).nonfinite


def plain_norm(named: Sequence[tuple[str, torch.Tensor]]) -> float:
    """Computes the 2-norm of the whole model's gradients with PyTorch's own functions. Collective."""
    return shards.whole(torch.nn.utils.get_total_norm([tensor for _, tensor in named])).item()


def _squares(tensors: Sequence[torch.Tensor], rows: Sequence[tuple[float, float]], ranks: int) -> float:
    return sum(
        norm * norm / shards.replicas(tensor, ranks)
        for tensor, (norm, magnitude) in zip(tensors, rows, strict=True)
        if math.isfinite(magnitude)
    )


def describe_nonfinite(named: Sequence[tuple[str, torch.Tensor]], names: Sequence[str], *, max_names: int = 5) -> str:
    """Returns text such as "h.3.attn.c_attn.weight (nan 3), wte.weight (inf 1), 2 more"."""
    tensors = dict(named)
    with detection_paused(), torch.no_grad():
        parts = [f"{printable(name, 200)} ({_counts(shards.local(tensors[name]))})" for name in names[:max_names]]
    more = len(names) - len(parts)
    return ", ".join([*parts, f"{more} more"] if more else parts)


def _counts(tensor: torch.Tensor) -> str:
    nan, posinf, neginf = (int(n) for n in torch.ops.torchnan.count_nonfinite(tensor))
    counts = (("nan", nan), ("inf", posinf), ("-inf", neginf))
    return ", ".join(f"{kind} {n}" for kind, n in counts if n)


def average_gradients(parameters: Sequence[tuple[str, torch.Tensor]], agreement: Agreement) -> None:
    """Replaces each gradient by its mean over the ranks, as a model that is kept from it would have. Collective.

    If a parameter has a gradient on some ranks only, zeros count for the others; if on none, it stays without one.
    """
    with detection_paused(), torch.no_grad():
        trained = [p for _, p in parameters if p.requires_grad]
        used = agreement.all_reduce_max_of([int(p.grad is not None) for p in trained])
        trained = [p for p, anywhere in zip(trained, used, strict=True) if anywhere]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in trained if p.grad is not None]
        for kind in {(g.dtype, g.device) for g in gradients}:
            _average_flat([g for g in gradients if (g.dtype, g.device) == kind], agreement)


def _average_flat(gradients: list[torch.Tensor], agreement: Agreement) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=agreement.group)
    sizes = [gradient.numel() for gradient in gradients]
    pieces = (flat / agreement.ranks).split(sizes)  # type: ignore[no-untyped-call]
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))
