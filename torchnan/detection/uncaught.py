"""Shows an uncaught :class:`torchnan.NonFiniteError`: the user's frames of its traceback, then the report.

Under a Trainer, Lightning or torchrun most frames of a traceback belong to installed packages. They are folded, unless
``TORCHNAN_TRACEBACK=full``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import sysconfig
import time
import traceback
from types import TracebackType

from torchnan.config import environment
from torchnan.detection import introspection, terminal
from torchnan.detection.errors import NonFiniteError

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun looks for the error of a rank


def install_excepthook() -> None:
    """Shows uncaught reports from now on, if the program has no hook and wants no full traceback."""
    if sys.excepthook is sys.__excepthook__ and not environment.wants_full_traceback(os.environ):
        sys.excepthook = _show_uncaught


def _show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    is_alone = isinstance(error, NonFiniteError) and error.__cause__ is None and error.__context__ is None
    if not is_alone:
        sys.__excepthook__(kind, error, trace)
        return
    try:
        text = _text(error, trace)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - the plain one is better than none
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write(text)
    _write_error_file(f"{folded(trace)}{error}")


def _text(error: NonFiniteError, trace: TracebackType | None) -> str:
    is_report = str(error) == str(error.finding)  # on some ranks it is one line
    if is_report and terminal.wants_color(sys.stderr):
        report = terminal.layout(error.finding, columns=terminal.width(), with_source=True)
        return f"{folded(trace, terminal.dimmed)}{report}\n"
    return f"{folded(trace)}{''.join(traceback.format_exception_only(type(error), error))}"


def folded(trace: TracebackType | None, paint: terminal.Paint = str) -> str:
    """Returns a traceback as text, with one line in the place of frames that are not the user's.

    Args:
        trace: the traceback. If no frame is the user's, all are shown.
        paint: styles that line.
    """
    frames = traceback.extract_tb(trace)
    lines = ["Traceback (most recent call last):\n"]
    if not any(_is_users(frame.filename) for frame in frames):
        return "".join(lines + traceback.format_list(frames))
    for is_users, group in itertools.groupby(frames, lambda frame: _is_users(frame.filename)):
        part = list(group)
        lines += traceback.format_list(part) if is_users else [paint(f"  ... {_named(part)}") + "\n"]
    return "".join(lines)


def _is_users(file: str) -> bool:
    is_command = os.path.dirname(file) == sysconfig.get_path("scripts")  # torchrun, torchnan
    is_installed = introspection.package_of(file) is not None
    return not (is_command or is_installed or introspection.is_internal(file))


def _named(frames: list[traceback.FrameSummary]) -> str:
    """Returns how many frames there are, and of which packages: "12 frames of lightning, PyTorch"."""
    packages = dict.fromkeys(introspection.package_of(frame.filename) or "Python" for frame in frames)
    names = ", ".join("PyTorch" if name == "torch" else name for name in packages)
    return f"{len(frames)} frame{'s' if len(frames) > 1 else ''} of {names}"


def _write_error_file(text: str) -> None:
    """Tells torchrun the error, which it shows in place of "to enable traceback see ...".

    In the form of torch/distributed/elastic/multiprocessing/errors/error_handler.py. A file that is there, as
    ``@record`` writes it, is kept.
    """
    path = os.environ.get(_ERROR_FILE)
    if not path:
        return
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    with contextlib.suppress(OSError), open(path, "x") as file:
        json.dump({"message": {"message": text, "extraInfo": extra}}, file)
