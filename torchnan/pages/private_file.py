"""Writes a text file that only its owner can read, because it contains names and numbers of the run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file in one step: a concurrent reader sees the old one. A device or a pipe is written to directly.

    Raises:
        OSError: it cannot be written.
    """
    content = (text.rstrip("\n") + "\n").encode("utf-8", "backslashreplace")
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
        else:
            _replace(target, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _replace(target: Path, content: bytes) -> None:
    handle, partial = tempfile.mkstemp(prefix=f".{target.name[:50]}.", dir=target.parent)  # mode 0600
    try:
        with open(handle, "wb") as file:
            file.write(content)
        os.replace(partial, target)
    except BaseException:
        os.unlink(partial)
        raise
