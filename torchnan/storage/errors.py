"""What keeping a value and reading it back can raise."""

from __future__ import annotations

from torchnan.config.text import LONGEST_MESSAGE, printable


class UnkeepableError(TypeError):
    """A value of a kind that cannot be kept. The message names its place, ``batch['images'][2]``, and what can be."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text, LONGEST_MESSAGE))


class CaptureError(ValueError):
    """A folder or a document that cannot be read: missing, damaged, made by a newer torchnan, or of unknown classes."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text, LONGEST_MESSAGE))


for _public in (UnkeepableError, CaptureError):
    _public.__module__ = "torchnan.capture"  # as users know it, in tracebacks
