"""All gradients of a step in one scan: their norm, the largest of them, and which are not finite."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch

from torchnan.config.text import printable
from torchnan.detection import shards
from torchnan.detection.pause import detection_paused


@dataclasses.dataclass(frozen=True)
class GradientStats:
    """What one scan over tensors says.

    Attributes:
        norm: 2-norm of all elements together, of this rank's parts only; not finite if any element is not.
        most: the largest magnitude; NaN if there is a NaN, infinity if there is an Inf.
        bad: names of the tensors that are not finite.
        squares: of sharded tensors, sum of squares without the bad ones, each divided by the number of ranks that hold
            the same part: its sum over the ranks is the square of the global norm.
        sharded: this rank may hold only a part of one.
    """

    norm: float = 0.0
    most: float = 0.0
    bad: tuple[str, ...] = ()
    squares: float = 0.0
    sharded: bool = False


def gradients_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """The gradients that there are, under the names of their parameters."""
    return [(name, p.grad) for name, p in parameters if p.grad is not None]


def measure(named: Sequence[tuple[str, torch.Tensor]], *, ranks: int = 1) -> GradientStats:
    """Reads every tensor once. One synchronisation a device, none on the CPU.

    Args:
        named: floating-point or complex tensors of any shape, with names.
        ranks: how many processes train together, for ``squares``.
    """
    if not named:
        return GradientStats()
    with detection_paused(), torch.no_grad():
        table = _table([shards.local(tensor) for _, tensor in named])
        norms, magnitudes = table.unbind(1)
        norm, most = torch.linalg.vector_norm(norms).item(), magnitudes.max().item()
        good = torch.isfinite(magnitudes)
        squares = _squares(named, norms.where(good, 0.0), ranks) if ranks > 1 else 0.0
        bad = () if bool(good.all()) else tuple(named[int(i)][0] for i in (~good).nonzero())
    return GradientStats(norm, most, bad, squares, any(shards.is_sharded(tensor) for _, tensor in named))


def nonfinite_among(named: Iterable[tuple[str, torch.Tensor]]) -> tuple[str, ...]:
    """Names of the tensors that are not finite; those of integers always are."""
    return measure([(name, t.detach()) for name, t in named if t.is_floating_point() or t.is_complex()]).bad


def plain_norm(named: Sequence[tuple[str, torch.Tensor]]) -> float:
    """The 2-norm of the whole model's gradients by PyTorch's own functions. All ranks must ask."""
    return shards.whole(torch.nn.utils.get_total_norm([tensor for _, tensor in named])).item()


def _squares(named: Sequence[tuple[str, torch.Tensor]], norms: torch.Tensor, ranks: int) -> float:
    copies = [shards.replicas(tensor, ranks) for _, tensor in named]
    return float((norms.square() / torch.tensor(copies, dtype=torch.float64)).sum())


def _table(tensors: list[torch.Tensor]) -> torch.Tensor:
    """[n, 2] float64 on the CPU: norm and largest magnitude of each."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) == 1:
        measured: torch.Tensor = torch.ops.torchnan.measure(tensors)
        return measured.cpu()
    table = torch.empty(len(tensors), 2, dtype=torch.float64)
    for device in devices:
        rows = [i for i, tensor in enumerate(tensors) if tensor.device == device]
        table[rows] = torch.ops.torchnan.measure([tensors[i] for i in rows]).cpu()
    return table


def describe_nonfinite(named: Sequence[tuple[str, torch.Tensor]], bad: Sequence[str], *, most_names: int = 5) -> str:
    """ "h.3.attn.c_attn.weight (nan 3), wte.weight (inf 1), 2 more"."""
    tensors = dict(named)
    with detection_paused(), torch.no_grad():
        said = [f"{printable(name, 200)} ({_counts(shards.local(tensors[name]))})" for name in bad[:most_names]]
    more = len(bad) - len(said)
    return ", ".join([*said, f"{more} more"] if more else said)


def _counts(tensor: torch.Tensor) -> str:
    nan, posinf, neginf = (int(n) for n in torch.ops.torchnan.count_nonfinite(tensor))
    counts = (("nan", nan), ("inf", posinf), ("-inf", neginf))
    return ", ".join(f"{kind} {n}" for kind, n in counts if n)
