"""The keywords that the callbacks for frameworks hand on to StepGuard, for type checkers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

from torchnan.config.policy_keywords import PolicyKeywords, PolicyWithoutCaptures

if TYPE_CHECKING:
    from torchnan.config.policy import Action, Policy
    from torchnan.training.guard.event import StepEvent
    from torchnan.training.monitor import Monitor


class _GuardArguments(TypedDict, total=False):
    policy: Policy | str | os.PathLike[str] | dict[str, Any] | None
    on_instability: Callable[[StepEvent], Action | None] | None
    monitor: Monitor | None


class LightningKeywords(PolicyWithoutCaptures, _GuardArguments, total=False):
    """The keywords of ``NaNCapture``, which has ``dirpath`` and ``replay`` as parameters."""


class TransformersKeywords(PolicyKeywords, _GuardArguments, total=False):
    """The keywords of ``NaNCallback``."""
