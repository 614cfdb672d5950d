"""The keywords of detection, for type checkers. The core has their defaults, and checks their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch

    from torchnan.detection.finding import Finding


class DetectKeywords(TypedDict, total=False):
    """The keywords of :class:`torchnan.detect` and :func:`torchnan.set_detect`."""

    action: str | Callable[[Finding], object]
    check_nan: bool
    check_inf: bool
    when: str
    backward: bool
    stacks: bool
    skip_ops: Sequence[str]
    rescan_every: int
    headroom: bool
    max_findings: int
    max_copied_bytes: int
    max_preserved_bytes: int
    max_explanation_seconds: int
    log: str | Path | None
    model: torch.nn.Module | None
    exact: bool  # deprecated, like `sample`
    sample: int
