"""Every number that a verdict depends on, with its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

from torchnan.config.options import (
    OptionError,
    Settings,
    greater_than,
    is_number,
    nonnegative_int,
    parse_float,
    read,
    setting,
)
from torchnan.config.text import printable


def _fraction(default: float) -> Any:
    return setting(default, "a number above 0 and below 1", lambda v: is_number(v) and 0 < v < 1, parse_float)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thresholds(Settings):
    """What counts as what. Windows are in steps, whatever the distance between two rows of the log is.

    Attributes:
        spike_window: steps that the mean and deviation of the loss are taken from.
        spike_sigma: a loss of more deviations than this above the mean may be a spike.
        recovery_steps: a spike that has not come back after as many steps is a persistent elevation.
        recovery_sigma: it has come back once the loss is within so many deviations of the mean before it.
        grad_factor: a gradient norm of more than so many times its rolling mean tells of a batch unlike the others.
        lr_jump: the learning rate is discontinuous where it changes by more than this factor in a step, and its
            schedule does not do the same regularly.
        duplicate_steps: a batch that was seen within so many steps before a spike is a duplicate.
        divergence_steps: a loss that rises for as many steps diverges.
        weight_factor: a weight norm that changes by more than this factor within ``divergence_steps``.
        lr_factor: a learning rate that grows by more than this factor within them has increased.
        scale_floor: a loss scale below this has collapsed.
        overflow_steps: as many steps with a non-finite gradient, at loss scales that had been fine, are an overflow.
        false_alarm: chance of a healthy run of any length to be called a spike, or diverging, by its noise alone.
        headroom_share: an output above this share of its dtype's range is told.
        headroom_steps: and one that will overflow within so many steps at the rate it grows.
        least_rows: windows hold at least as many rows, if the log has a row only every few steps.
    """

    TOPIC: ClassVar[str] = "diagnosis"

    spike_window: int = nonnegative_int(100, minimum=2)
    spike_sigma: float = greater_than(3.0, 0)
    recovery_steps: int = nonnegative_int(50, minimum=1)
    recovery_sigma: float = greater_than(0.5, 0)
    grad_factor: float = greater_than(30.0, 1)
    lr_jump: float = greater_than(2.0, 1)
    duplicate_steps: int = nonnegative_int(100, minimum=1)
    divergence_steps: int = nonnegative_int(200, minimum=10)
    weight_factor: float = greater_than(2.0, 1)
    lr_factor: float = greater_than(1.02, 1)
    scale_floor: float = greater_than(1.0, 0)
    overflow_steps: int = nonnegative_int(2, minimum=1)
    false_alarm: float = _fraction(0.001)
    headroom_share: float = _fraction(0.5)
    headroom_steps: int = nonnegative_int(10_000)
    least_rows: int = nonnegative_int(20, minimum=8)

    def with_texts(self, texts: Iterable[str]) -> Thresholds:
        """With what ``NAME=VALUE`` says, as on a command line.

        Raises:
            OptionError: a name or a value that cannot be used.
        """
        given = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals:
                raise OptionError(f"--set {printable(text, 200)} cannot be used: it takes NAME=VALUE.")
            given[name] = read(name, self.option(name), value)
        return dataclasses.replace(self, **given)
