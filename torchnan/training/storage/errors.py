"""The errors of storing a value and reading it back."""

from __future__ import annotations

from torchnan.config.text import MAX_MESSAGE_BYTES, printable


class UnkeepableError(TypeError):
    """Raised for a value that cannot be stored. The message names its path, ``batch['images'][2]``, and the supported
    types."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text, MAX_MESSAGE_BYTES))


class CaptureError(ValueError):
    """Raised for a folder or a document that is missing, damaged, written by a newer torchnan, or of unknown
    classes."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text, MAX_MESSAGE_BYTES))


for _public in (UnkeepableError, CaptureError):
    _public.__module__ = "torchnan.capture"  # the public name, for tracebacks
