"""The times and counts of one workload, with the ratios of its rows."""

from __future__ import annotations

import dataclasses

from benchmarks.timing import Ratio, Times, ratio

PLAIN, OFF, OFF_AGAIN, DETECT = "plain", "off", "off again (A/A)", "detect()"


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
        named = {name: times for name, times in self.times.items() if base_of(name) in self.times and name != PLAIN}
        return {name: ratio(times, self.times[base_of(name)]) for name, times in named.items()}

    @property
    def is_precise(self) -> bool:
        return is_precise(self.times)


def base_of(name: str) -> str:
    """The base of a row's ratio."""
    return PLAIN if name == OFF else OFF


def is_precise(times: Times) -> bool:
    """Whether the A/A row and detect() are known within a percent."""
    return all(ratio(times[name], times[OFF]).is_within_a_percent for name in (OFF_AGAIN, DETECT) if name in times)
