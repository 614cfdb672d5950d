"""What is said of a file that is no run."""

from torchnan.config.text import LONGEST_MESSAGE, printable


class RunError(ValueError):
    """Nothing of it can be read as a run. The message says what it is instead, and what can be read."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text, LONGEST_MESSAGE))
