"""The numbers that verdicts depend on, with their defaults."""

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
    """Limits of the decision tree. Windows are in steps, whatever the distance between two rows of the log.

    Attributes:
        spike_window: steps that the mean and deviation of the loss are taken from.
        spike_sigma: a loss of more than this many deviations above the mean may be a spike.
        recovery_steps: a spike that has not come back after this many steps is a persistent elevation.
        recovery_sigma: a spike has come back once the loss is within this many deviations of the mean before it.
        grad_factor: a gradient norm above this multiple of its rolling mean indicates an unusual batch.
        lr_jump: the learning rate is discontinuous where it changes by more than this factor in one step, unless its
            schedule does so regularly.
        duplicate_steps: a batch that was seen within this many steps before a spike is a duplicate.
        divergence_steps: a loss that rises for this many steps diverges.
        weight_factor: a weight norm has changed if it does so by more than this factor within ``divergence_steps``.
        lr_factor: a learning rate has increased if it grows by more than this factor within ``divergence_steps``.
        scale_floor: a loss scale below this has collapsed.
        overflow_steps: this many steps with a non-finite gradient, at loss scales that had been fine, are an overflow.
        false_alarm: probability that noise alone makes a healthy run of any length a spike or a divergence.
        headroom_share: an output above this share of its dtype's range is reported.
        headroom_steps: an output that will overflow within this many steps at its rate of growth is reported.
        least_rows: minimum number of rows in a window, if the log has a row only every few steps.
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
        """Returns a copy changed by texts ``NAME=VALUE``, as on a command line.

        Raises:
            OptionError: a name or a value cannot be used.
        """
        given = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals:
                raise OptionError(f"--set {printable(text, 200)} cannot be used: it takes NAME=VALUE.")
            given[name] = read(f"{name}=", self.option(name), value)
        return dataclasses.replace(self, **given)
