"""The keywords of a Monitor, for type checkers. MonitorOptions has their defaults and checks."""

from __future__ import annotations

from typing import TypedDict


class MonitorKeywords(TypedDict, total=False):
    """The options of :class:`torchnan.Monitor` apart from ``log``, which is its first argument."""

    max_bytes: int
    parts: int | None
    all_ranks: bool
    weights_every: int
    headroom_every: int
    live: bool
    judge_every: int
    window: int
    rerun_in_fp32: bool
    dtype: str | None
