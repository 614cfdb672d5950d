"""Passes rows to TensorBoard or to a function for another tracker; only finite numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchnan.config.options import OptionError, is_path
from torchnan.config.text import brief, type_name

Callback = Callable[[int, dict[str, float]], Any]


class TensorBoard:
    """Writes event files.

    Args:
        given: a folder, or a ``SummaryWriter`` that the caller closes.

    Raises:
        ImportError: a folder is given, and tensorboard is not installed.
        TypeError: it is neither.
    """

    def __init__(self, given: str | os.PathLike[str] | Any) -> None:
        self._is_own = isinstance(given, str | Path)
        if self._is_own:
            if not is_path(given):
                raise OptionError(f"tensorboard={brief(given)} cannot be used: it takes the path of a folder.")
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError("Monitor(tensorboard=...) needs tensorboard: pip install tensorboard") from error
            given = SummaryWriter(given)
        elif not callable(getattr(given, "add_scalar", None)):
            raise TypeError(f"tensorboard is a {type_name(given)}: it takes a folder, or a SummaryWriter")
        self._writer: Any = given

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Writes the values of one step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def text(self, step: int, text: str) -> None:
        """Writes a verdict or a forecast."""
        self._writer.add_text("torchnan", f"```\n{text}\n```", step)
        self._writer.flush()

    def close(self) -> None:
        """Flushes the event files, and closes a writer of its own."""
        self._writer.flush()
        if self._is_own:
            self._writer.close()
