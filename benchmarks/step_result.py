"""The times and counts of one workload, with the ratios of its rows."""

from __future__ import annotations

import dataclasses

from benchmarks.timing import Ratio, Times, ratio

PLAIN, OFF, OFF_AGAIN, DETECT = "plain", "off", "off again (A/A)", "detect()"
KEEPING_OFF, KEEPING_DETECT = "off (malloc keeps memory)", "detect() (malloc keeps memory)"
_BASES = {OFF: PLAIN, KEEPING_DETECT: KEEPING_OFF}  # of all others: OFF


@dataclasses.dataclass
class Result:
    """One workload.

    Attributes:
        name: of the workload.
        times: by row.
        ratios: by row, to the base of the row.
        counts: of one step; exact.
        is_in_cycles: whether the times are cycles, and not seconds.
        microseconds_of_monitor: time of a Monitor in a guarded step.
    """

    name: str
    times: Times
    counts: dict[str, int]
    is_in_cycles: bool = False
    microseconds_of_monitor: float | None = None

    @property
    def ratios(self) -> dict[str, Ratio]:
        compared = [name for name in self.times if name not in _BASES.values()]
        bases = {name: _BASES.get(name, OFF) for name in compared}
        return {name: ratio(self.times[name], self.times[base]) for name, base in bases.items() if base in self.times}

    @property
    def is_precise(self) -> bool:
        return is_precise(self.times)

    @property
    def is_quiet(self) -> bool:
        """Whether the row that times the same thing twice is within a percent of 1."""
        return OFF_AGAIN not in self.ratios or abs(self.ratios[OFF_AGAIN].median - 1) <= 0.01


def is_precise(times: Times) -> bool:
    """Whether the A/A row and detect() are known within a percent."""
    return all(ratio(times[name], times[OFF]).is_within_a_percent for name in (OFF_AGAIN, DETECT) if name in times)
