"""Agreement between ranks: before any of them acts, all know what any of them has seen."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import os
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.distributed as dist

from torchnan._load import _C
from torchnan.config.text import printable
from torchnan.detection import introspection
from torchnan.detection.pause import detection_paused

_HAS_GROUPS = dist.is_available()  # whether PyTorch was built with them
_MICRO_BATCHES = 0xFFFF
_RANKS = 0xFFFFFFFF


class AnomalyKind(enum.IntEnum):
    """Kinds of anomaly that stop a step, the earliest in a step first; of several, the earliest is reported."""

    OUT_OF_MEMORY = 1
    LOSS = 2
    GRADIENT = 3
    BUFFER = 4  # loss and gradients are finite, and the forward pass has left a non-finite running statistic
    NORM = 5
    SCALER = 6  # the loss scale was too large: the scaler handles it
    INSTABILITY = 7  # it is finite, and a monitor finds the run unstable

    @property
    def label(self) -> str:
        """The name in logs and reports."""
        return self.name.lower()


@dataclasses.dataclass(frozen=True)
class Anomaly:
    """An anomaly that one rank has seen.

    Attributes:
        kind: what went wrong.
        text: what it saw, with values.
        micro_batch: in which of the step's micro-batches, 0-based.
        rank: of the process in its job, 0 where there is one process.
    """

    kind: AnomalyKind
    text: str
    micro_batch: int = 0
    rank: int = 0


class AgreementError(RuntimeError):
    """Raised where ranks cannot agree: one of them has died, hangs, or does something else."""


class GradientNorm(Protocol):
    """The norm of this rank's gradients, and what the norm over all ranks is computed from.

    Attributes:
        norm: 2-norm of this rank's parts.
        squares: this rank's share of the squared norm over all ranks.
        sharded: whether a rank may hold only a part of a gradient; the same on every rank.
    """

    @property
    def norm(self) -> float: ...
    @property
    def squares(self) -> float: ...
    @property
    def sharded(self) -> bool: ...


def backend_devices(group: dist.ProcessGroup | None) -> list[str]:
    """Returns the types of device on which the backends of a group take tensors."""
    return [pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")]


class Agreement:
    """Agrees over a process group; without one, every process is independent.

    Args:
        group: a ``torch.distributed`` process group of any backend. Default ``None``: the default group, if there is
            one when it is first needed.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    @property
    def ranks(self) -> int:
        """The number of processes that have to agree."""
        if not (_HAS_GROUPS and dist.is_initialized()):
            return 1
        return dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        """This process in the group."""
        return dist.get_rank(self.group) if self.ranks > 1 else 0

    @property
    def global_rank(self) -> int:
        """This process in its job."""
        own = introspection.rank()
        return (_C.rank_from_environment() or 0) if own is None else own

    def agree(self, anomaly: Anomaly | None) -> Anomaly | None:
        """Returns the worst anomaly of any rank, the same on every rank; ``None`` if there is none.

        Costs one all-reduce of an int64. Only if there is an anomaly, the rank that saw it sends the text.
        """
        if self.ranks == 1:
            return anomaly
        word = self.all_reduce_max(0 if anomaly is None else _encode(anomaly, self.rank))
        return None if word == 0 else self._tell(word, anomaly)

    def agree_with_norm(
        self, gradients: GradientNorm, anomaly: Anomaly | None, trip: Callable[[float], str | None]
    ) -> tuple[Anomaly | None, float]:
        """Returns the worst anomaly of a whole step, and the norm of its gradients, which may be the anomaly.

        If gradients are sharded, the agreement is folded into the sum that their norm needs anyway: one all-reduce of
        two float64 if every rank is healthy.

        Args:
            gradients: this rank's.
            anomaly: what this rank has seen.
            trip: returns the error of a norm, ``None`` if it is acceptable.

        Returns:
            what :meth:`agree` does, and the norm: of the whole gradient where it is sharded, NaN if it is bad anywhere.
        """
        norm, is_alone = gradients.norm, self.ranks == 1
        all_healthy = False
        if gradients.sharded and not is_alone:
            norm = self._norm_over_shards(gradients.squares, anomaly)
            all_healthy = not math.isnan(norm)
        if anomaly is None and (spike := trip(norm)) is not None:
            anomaly = Anomaly(AnomalyKind.NORM, spike, rank=self.global_rank)
        if is_alone or (all_healthy and anomaly is None):
            return anomaly, norm
        return self.agree(anomaly), norm

    def all_reduce_max(self, value: int) -> int:
        """Returns the largest value of any rank."""
        return self.all_reduce_max_of([value])[0]

    def all_reduce_max_of(self, values: list[int]) -> list[int]:
        """Returns the largest value of any rank, for each of several values."""
        if self.ranks == 1 or not values:
            return values
        return [int(n) for n in self._all_reduce(torch.tensor(values), dist.ReduceOp.MAX).tolist()]

    def gather(self, values: list[int]) -> list[list[int]]:
        """Returns the values of each rank, by rank of the group. All give equally many, none negative."""
        if self.ranks == 1:
            return [values]
        count = len(values)
        mine = [0] * (count * self.ranks)
        mine[count * self.rank : count * (self.rank + 1)] = values
        every = self.all_reduce_max_of(mine)
        return [every[i : i + count] for i in range(0, len(every), count)]

    def to_global_rank(self, rank: int) -> int:
        """Returns the rank in the job of a rank of the group."""
        if self.ranks == 1:
            return self.global_rank
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def lowest_rank_with_max(self, value: int) -> int:
        """Returns the lowest rank of the group that has the largest value."""
        most = self.all_reduce_max(value)
        return self.ranks - 1 - self.all_reduce_max(self.ranks - 1 - self.rank if value == most else 0)

    def first_failure(self, failure: str) -> str:
        """Returns the failure of the lowest rank that has one, with its rank; ``""`` if every rank went well.

        What may fail on one rank is attempted by all of them, and followed by this: then all do the same. Costs one
        all-reduce of an int64 if nothing has failed.

        Args:
            failure: why it failed on this rank; ``""`` if it went well.
        """
        if self.ranks == 1:
            return failure
        first = self.all_reduce_max(self.ranks - self.rank if failure else 0)
        if first == 0:
            return ""
        source = self.ranks - first
        return f"{self.broadcast_text(failure, source)} (rank {self.to_global_rank(source)})"

    def differing(self, values: Mapping[str, object]) -> list[str]:
        """Returns the names of the values that are not the same on every rank.

        Args:
            values: the same names on every rank; values are compared by their ``repr()``.
        """
        digests = [_digest(value) for value in values.values()]
        most = self.all_reduce_max_of([*digests, *(-digest for digest in digests)])
        largest, smallest = most[: len(digests)], most[len(digests) :]
        return [name for name, a, b in zip(values, largest, smallest, strict=True) if a != -b]

    def broadcast_text(self, text: str, source: int) -> str:
        """Returns the text of the rank ``source`` of the group, on every rank."""
        if self.ranks == 1:
            return text
        mine = text.encode("utf-8", "surrogatepass") if self.rank == source else b""
        length = self.all_reduce_max(len(mine))
        letters = torch.zeros(max(length, 1), dtype=torch.uint8)
        letters[: len(mine)] = torch.frombuffer(bytearray(mine or b"\0"), dtype=torch.uint8)[: len(mine)]
        return bytes(self._all_reduce(letters, dist.ReduceOp.MAX).tolist())[:length].decode("utf-8", "surrogatepass")

    def _tell(self, word: int, mine: Anomaly | None) -> Anomaly:
        what, micro_batch, rank = _decode(word)
        text = self.broadcast_text(mine.text if mine is not None else "", rank)
        return Anomaly(what, text, micro_batch, self.to_global_rank(rank))

    def _norm_over_shards(self, squares: float, anomaly: Anomaly | None) -> float:
        """Returns the norm over all ranks; NaN if any of them has an anomaly."""
        sums = torch.tensor([squares, 0.0 if anomaly is None else 1.0], dtype=torch.float64)
        total, troubled = self._all_reduce(sums, dist.ReduceOp.SUM).tolist()
        return math.nan if troubled else math.sqrt(total)

    def _all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> torch.Tensor:
        device = self._device()
        with detection_paused():
            moved = tensor.to(device)
            try:
                dist.all_reduce(moved, op, group=self.group)
            except RuntimeError as error:  # the group's own timeout, or a broken connection
                raise AgreementError(
                    f"torchnan: the ranks could not agree on this step: a rank has died, hangs, or is not in its "
                    f"step guard. This is rank {self.rank} of {self.ranks} (process {os.getpid()} on "
                    f"{socket.gethostname()}); look at the log of the others. The process group said: "
                    f"{printable(str(error).partition(chr(10))[0], 1000)}"
                ) from error
            return moved.cpu()

    def _device(self) -> torch.device:
        """Returns the device on which the group's backend takes tensors; the CPU if it takes those."""
        devices = backend_devices(self.group)
        if "cpu" in devices:
            return torch.device("cpu")
        return torch.device(devices[0], torch.accelerator.current_device_index())


def _digest(value: object) -> int:
    """Returns 62 bits over the text of a value."""
    return int.from_bytes(hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 2


def _encode(anomaly: Anomaly, rank: int) -> int:
    """Encodes an anomaly so that the largest of several is the earliest: by kind, then micro-batch, then rank."""
    kind = 16 - int(anomaly.kind)
    return kind << 48 | (_MICRO_BATCHES - min(anomaly.micro_batch, _MICRO_BATCHES)) << 32 | (_RANKS - rank)


def _decode(word: int) -> tuple[AnomalyKind, int, int]:
    return AnomalyKind(16 - (word >> 48)), _MICRO_BATCHES - (word >> 32 & _MICRO_BATCHES), _RANKS - (word & _RANKS)
