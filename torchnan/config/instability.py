"""The kinds of instability that a diagnosis reports and a recovery policy can handle."""

from __future__ import annotations

from typing import Literal, get_args

Instability = Literal[  # the worst first
    "nonfinite",
    "fp16_overflow",
    "loss_scale_collapse",
    "loss_scale_constant",
    "silent_divergence",
    "persistent_elevation",
    "spike",
    "plateau",
]
INSTABILITIES: tuple[Instability, ...] = get_args(Instability)
