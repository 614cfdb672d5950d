"""Delivers findings to the user: the functions that the core calls to raise and to warn. Among several ranks the first
to find a cause reports it in full; the others report it in a line or not at all. Every rank raises its errors."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import TYPE_CHECKING

from torchnan.config.text import say
from torchnan.detection import errors, signal_handlers
from torchnan.detection.errors import warn_of_detector as warn_of_detector
from torchnan.detection.finding import Finding

if TYPE_CHECKING:
    from torchnan.distributed.job import Job

_has_spoken = False


def NonFiniteError(finding: Finding, report: str) -> errors.NonFiniteError:
    """Returns the error to raise, by the name that the core knows."""
    error = errors.NonFiniteError(finding, _among_ranks(finding, report)[0])
    with signal_handlers.suppressed():  # a traceback with all frames is better than no report
        from torchnan.detection import uncaught  # not needed before something is found

        uncaught.show_if_uncaught(error)
    return error


def warn(finding: Finding, report: str) -> None:
    """Warns at the user's source line, unless another rank does."""
    text, is_needed = _among_ranks(finding, report)
    if is_needed:
        errors.warn(finding, text)


def stop_in_debugger(finding: Finding) -> None:
    """Opens the debugger in the user's frame."""
    from torchnan.detection import debugger  # few programs need it

    debugger.stop(finding)


def _among_ranks(finding: Finding, report: str) -> tuple[str, bool]:
    """Returns the text for this rank, and whether to show it."""
    from torchnan.distributed import job as jobs  # not needed until something is found

    job = jobs.current()
    if job is None:
        return report, True
    try:
        text = job.text_of(finding, report)
    except Exception as error:  # noqa: BLE001 - whatever the folder holds: said twice is better than never
        signal_handlers.let_through(error)
        return report, True
    _say_last_words(job)
    return text


def _say_last_words(job: Job) -> None:
    """Makes the rank print at the end of its program what the others have seen."""
    global _has_spoken
    if _has_spoken:
        return
    _has_spoken = True
    process = os.getpid()

    @atexit.register
    def at_exit() -> None:
        with contextlib.suppress(OSError, ValueError, LookupError):  # a folder that is gone, a log that was damaged
            if os.getpid() == process and (text := job.last_words()):
                say(text)
