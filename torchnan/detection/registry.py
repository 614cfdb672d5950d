"""The detection sessions of this process, by the id that the core uses."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

from torchnan.detection.headroom import Headroom

if TYPE_CHECKING:
    import torch


class Session(Protocol):
    """The interface of :class:`torchnan.detect` for names in reports, headroom and fork."""

    model: torch.nn.Module | None

    @property
    def keeps_headroom(self) -> bool: ...
    def headroom(self) -> list[Headroom]: ...
    def _forget_other_threads(self) -> None: ...


sessions: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()


def models() -> list[torch.nn.Module]:
    """Returns the models that sessions were given."""
    return [session.model for session in list(sessions.values()) if session.model is not None]
