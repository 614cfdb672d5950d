"""Pauses detection while torchnan itself works with tensors."""

from __future__ import annotations

from types import TracebackType

import torch

from torchnan._load import _C


class detection_paused:
    """Runs the block below the interceptor on this thread: torchnan's own operations do not belong to the user."""

    __slots__ = ("_guard",)

    def __enter__(self) -> None:
        self._guard = None
        if _C.open_scopes() == 0:
            return
        key = torch._C._parse_dispatch_key(_C.interceptor_key_name())
        assert key is not None
        self._guard = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key))
        self._guard.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._guard is not None:
            self._guard.__exit__(kind, error, traceback)
