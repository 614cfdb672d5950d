"""Errors of the readers."""

from torchnan.config.text import MAX_MESSAGE_BYTES, printable


class RunError(ValueError):
    """The file cannot be read as a run. The message says what it is, and which formats can be read."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text, MAX_MESSAGE_BYTES))
