"""Shows an uncaught :class:`torchnan.NonFiniteError`: the user's frames of its traceback, then the report.

Under a Trainer, Lightning or torchrun most frames of a traceback belong to installed packages. They are folded, unless
``TORCHNAN_TRACEBACK=full``.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import os
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from types import TracebackType

from torchnan.config import environment
from torchnan.config.text import counted
from torchnan.detection import introspection, notebook, terminal
from torchnan.detection.errors import NonFiniteError

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun looks for the error of a rank
_HEAD = "Traceback (most recent call last):\n"
NEXT = (
    "what next: TORCHNAN=breakpoint stops there, TORCHNAN_HTML=page.html draws it, torchnan.try_remedies() tries what "
    "mends it"
)
_Hook = Callable[[type[BaseException], BaseException, "TracebackType | None"], object]

_reports: set[weakref.ref[NonFiniteError]] = set()  # those that the program may still leave uncaught
_others_hook: _Hook = sys.__excepthook__  # which shows all other errors


def show_if_uncaught(error: NonFiniteError) -> None:
    """Shows a report if it ends the program. The hook is removed when the program has caught the error and dropped it.

    A hook of the program stays: only Python's own is replaced, also inside that of ``init_process_group``.
    """
    global _others_hook
    hook = sys.excepthook
    if hook is not _show_uncaught:
        if _prefix(hook) is None:
            return
        _others_hook, sys.excepthook = hook, _show_uncaught
    _reports.add(weakref.ref(error, _forget))


def _forget(report: weakref.ref[NonFiniteError]) -> None:
    _reports.discard(report)
    if not _reports and sys.excepthook is _show_uncaught:
        sys.excepthook = _others_hook


def _prefix(hook: _Hook) -> str | None:
    """Returns what a hook prints before each line: "[rank1]: " for that of ``init_process_group``; ``None`` if it does
    more than that."""
    if hook is sys.__excepthook__:
        return ""
    if getattr(hook, "__module__", None) != "torch.distributed.distributed_c10d":
        return None
    inside = inspect.getclosurevars(hook).nonlocals
    return f"{inside['excepthook_prefix']}: " if inside["old_hook"] is sys.__excepthook__ else None


def _show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, NonFiniteError):
        _others_hook(kind, error, trace)
        return
    try:
        text = _text(error, trace, _prefix(_others_hook) or "") if _is_folded(error) else ""
    except Exception:  # noqa: BLE001 - the plain one is better than none
        text = ""
    if text:
        sys.stderr.write(text)
    else:
        _others_hook(kind, error, trace)
    if _is_report(error) and sys.stderr is not None:
        sys.stderr.write(f"{_prefix(_others_hook) or ''}torchnan: {NEXT}\n")
    is_full = environment.wants_full_traceback(os.environ)
    _write_error_file(f"{_full(trace) if is_full else folded(trace)}{error}")


def _lines_in_ipython(error: NonFiniteError) -> list[str]:
    trace = error.__traceback__
    while trace is not None and introspection.package_of(trace.tb_frame.f_code.co_filename) == "IPython":
        trace = trace.tb_next
    text = _text(error, trace) if _is_folded(error) else "".join(traceback.format_exception(None, error, trace))
    return notebook.with_cells(text).splitlines()


NonFiniteError._render_traceback_ = _lines_in_ipython  # type: ignore[attr-defined]  # IPython calls it


def _is_report(error: NonFiniteError) -> bool:
    """Whether the message is the report. On some ranks it is one line."""
    return str(error) == str(error.finding)


def _is_folded(error: NonFiniteError) -> bool:
    """Whether only the user's frames are shown: not on request, and not if the error is part of a chain."""
    is_alone = error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    return is_alone and not environment.wants_full_traceback(os.environ)


def _text(error: NonFiniteError, trace: TracebackType | None, prefix: str = "") -> str:
    """Returns the user's frames and the report, each line behind a prefix."""
    notes = getattr(error, "__notes__", ())
    if _is_report(error) and not notes and terminal.wants_color(sys.stderr):
        report = terminal.layout(error.finding, columns=terminal.width() - len(prefix), with_source=True)
        text = f"{folded(trace, terminal.dimmed)}{report}\n"
    else:
        text = f"{folded(trace)}{''.join(traceback.format_exception_only(type(error), error))}"
    return "".join(f"{prefix}{line}" for line in text.splitlines(keepends=True))


def folded(trace: TracebackType | None, paint: terminal.Paint = str) -> str:
    """Returns a traceback as text, with one line in the place of frames that are not the user's.

    Args:
        trace: the traceback. If no frame is the user's, all are shown.
        paint: styles that line.
    """
    frames = traceback.extract_tb(trace)
    if not any(_is_users(frame.filename) for frame in frames):
        return _full(trace)
    lines = [_HEAD]
    for is_users, group in itertools.groupby(frames, lambda frame: _is_users(frame.filename)):
        part = list(group)
        lines += traceback.format_list(part) if is_users else [paint(f"  ... {_named(part)}") + "\n"]
    return "".join(lines)


def _full(trace: TracebackType | None) -> str:
    return "".join([_HEAD, *traceback.format_tb(trace)])


def _is_users(file: str) -> bool:
    return introspection.package_of(file) is None and not introspection.is_internal(file)


def _named(frames: list[traceback.FrameSummary]) -> str:
    """Returns how many frames there are, and of which packages: "12 frames of lightning, PyTorch"."""
    packages = dict.fromkeys(introspection.package_of(frame.filename) or "Python" for frame in frames)
    names = ", ".join("PyTorch" if name == "torch" else name for name in packages)
    return f"{counted(len(frames), 'frame')} of {names}"


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
