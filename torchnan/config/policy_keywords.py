"""The fields of a policy as keywords, for type checkers. :class:`torchnan.recovery.Policy` has their defaults and
checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torchnan.config.policy import Action


class PolicyWithoutCaptures(TypedDict, total=False):
    """The fields without those that Lightning's callback sets itself."""

    on_bad_step: str
    max_consecutive: int
    max_skips: int
    remedy: Mapping[str, Action]
    instability: Mapping[str, Action]
    retries: int
    max_norm: float | None
    exact_clip: bool
    norm_limit: float | None
    norm_factor: float | None
    norm_window: int
    max_scaler_skips: int
    try_remedies: bool
    keep: str
    max_captures: int
    capture_ranks: int
    max_capture_bytes: int
    snapshot_every: int
    snapshots: int
    snapshot_folder: str | Path | None
    rollback_depth: int
    max_rollbacks: int
    health: bool
    rewind_data: bool
    lr_factor: float
    lr_ramp: int
    clip_factor: float
    out_of_memory: str
    max_splits: int
    max_undo_bytes: int
    log: str | Path | None
    action: str  # deprecated: on_bad_step


class PolicyKeywords(PolicyWithoutCaptures, total=False):
    """All fields of a policy."""

    replay: bool
    captures: str | Path | None
