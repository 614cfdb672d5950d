"""The result of a health check."""

from __future__ import annotations

import dataclasses

from torchnan.config.text import printable


@dataclasses.dataclass(frozen=True)
class Trouble:
    """One problem of one rank.

    Attributes:
        rank: of the process in its group; ``None`` if the check cannot tell which it is.
        kind: ``"missing"`` (no answer in time), ``"hangs"`` (it answered, but the all-reduce did not end: the rank did
            not return from it, or has waited for it), ``"sum"`` (the all-reduce gave a wrong sum), ``"product"`` (the
            device multiplies wrong), ``"differs"`` (the device computes other bits than the same devices of most
            ranks) or ``"device"`` (the driver reports errors).
        text: the observation, with values.
    """

    rank: int | None
    kind: str
    text: str

    def __str__(self) -> str:
        who = "a rank" if self.rank is None else f"rank {self.rank}"
        return f"{who}: {printable(self.text, 1000)}"


@dataclasses.dataclass(frozen=True)
class HealthReport:
    """The outcome of a health check, on one rank.

    Attributes:
        rank: of this process in its group.
        ranks: number of processes in the group.
        troubles: the problems, by rank; empty if all ranks are healthy.
        notes: the checks that were left out, and why; driver messages that are not errors.
        checked: the checks that were made.
    """

    rank: int
    ranks: int
    troubles: tuple[Trouble, ...]
    notes: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are no troubles."""
        return not self.troubles

    def __str__(self) -> str:
        of = f"{self.ranks} ranks" if self.ranks > 1 else "this process"
        lines = [f"torchnan: {of}: {'healthy' if self.ok else 'NOT healthy'}"]
        lines += [f"  {trouble}" for trouble in self.troubles]
        lines += [f"  checked: {printable(check, 1000)}" for check in self.checked]
        return "\n".join(lines + [f"  note: {printable(note, 1000)}" for note in self.notes])
