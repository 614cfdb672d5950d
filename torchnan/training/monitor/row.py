"""The row of one step, and how it is written as JSON."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

VERSION = 1


@dataclasses.dataclass(slots=True)
class Row:
    """Numbers of one step; ``None`` where a number is not known.

    Attributes:
        step: number of the step.
        loss: mean over the micro-batches.
        grad_norm: 2-norm of all gradients before clipping.
        lr: learning rate of each parameter group.
        loss_scale: scale that the step was run with.
        skipped: whether the optimizer did not apply the step.
        weight_norm: 2-norm of each parameter group's weights; only every few steps.
        update_ratio: size of the last update of each parameter group relative to the norm of its weights; estimated
            from a sample, only every few steps.
        batch_digest: 16 hexadecimal digits, the same for the same batch.
        headroom: dtype and largest absolute value of each module's output since the last measurement.
    """

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    lr: list[float] | None = None
    loss_scale: float | None = None
    skipped: bool | None = None
    weight_norm: list[float] | None = None
    update_ratio: list[float] | None = None
    batch_digest: str | None = None
    headroom: dict[str, tuple[str, float]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the known values by name."""
        named = {name: getattr(self, name) for name in FIELDS}
        return {name: value for name, value in named.items() if value is not None}

    def scalars(self, groups: list[str]) -> dict[str, float]:
        """Returns the finite numbers for a tracker; those of parameter groups as ``"lr/<group>"``.

        Args:
            groups: names of the parameter groups.
        """
        single = {"loss": self.loss, "grad_norm": self.grad_norm, "loss_scale": self.loss_scale}
        found = {name: float(value) for name, value in single.items() if value is not None}
        if self.skipped is not None:
            found["skipped"] = float(self.skipped)
        for name in ("lr", "weight_norm", "update_ratio"):
            values = getattr(self, name) or ()
            for i, value in enumerate(values):
                group = groups[i] if i < len(groups) else str(i)
                found[f"{name}/{group}" if len(values) > 1 else name] = float(value)
        return {name: value for name, value in found.items() if math.isfinite(value)}


FIELDS = tuple(field.name for field in dataclasses.fields(Row))
