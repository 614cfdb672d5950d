"""The end of a program under ``TORCHNAN=``: reports values that are still referenced, and finishes log and page.

A report that would have been raised turns a success into :data:`FOUND_AT_END`. Nothing else here changes how the
program ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from torchnan.config.options import message_of
from torchnan.config.text import command_line, say

if TYPE_CHECKING:
    from torchnan.detection.errors import NonFiniteError
    from torchnan.detection.session import detect

FOUND_AT_END = 85  # exit status; those from 80 on are of the step guard


def finish(watch: detect | None, default_log: str | None, page: str | None, process: int) -> None:
    """Reports values that are still referenced when the program ends. It cannot raise any more."""
    from torchnan.detection import errors, session

    death = getattr(sys, "last_value", None)
    is_other_news = death is not None and not errors.may_be_of_nonfinite(death)
    try:
        session.end_program_wide(report_pending=not is_other_news)
    except errors.NonFiniteError as error:
        from torchnan._load import _C  # not above: this module is imported while the core is being loaded

        _C.end_with(FOUND_AT_END)
        with contextlib.suppress(OSError, ValueError):  # closed, or a pipe without a reader
            if sys.stderr is not None:
                from torchnan.detection import uncaught  # most programs end without a report

                print(_laid_out(error), file=sys.stderr)
                say(uncaught.NEXT)
    if os.getpid() != process:  # a forked child: log and page belong to the parent
        return
    if default_log is not None:
        _say_where_the_log_is(default_log)
    if watch is not None and page is not None:
        _write_page(watch, page, is_logged=default_log is not None)


def _laid_out(error: NonFiniteError) -> str:
    from torchnan.detection import terminal

    if str(error) != str(error.finding) or not terminal.wants_color(sys.stderr):
        return str(error)
    return terminal.layout(error.finding, columns=terminal.width(), with_source=True)


def _say_where_the_log_is(path: str) -> None:
    """Removes an empty log."""
    with contextlib.suppress(OSError, ValueError):
        from torchnan.distributed import job as jobs

        job = jobs.current()
        if os.path.getsize(path) == 0:
            os.remove(path)
            if job is not None:
                job.folder.rmdir()  # fails while another rank has a log in it
        elif job is None:
            say(f"findings are in {path}: {command_line('show', path)}")
        elif text := job.last_words():
            say(text)


def _write_page(watch: detect, path: str, is_logged: bool) -> None:
    """Writes the page if there are findings, and says where. A failure is reported, but never fails the program.

    Args:
        is_logged: whether the log of this rank contains its findings.
    """
    if not watch.findings:
        return
    try:
        text = f"the page of the findings is {path}" if _made_page(watch, path, is_logged) else ""
    except Exception as error:  # noqa: BLE001 - the program is over: nothing may change how it ends
        text = f"there is no page of the findings: {message_of(error) or type(error).__name__}"
    if text:
        say(text)


def _made_page(watch: detect, path: str, is_logged: bool) -> bool:
    """Writes the page. With several ranks each does so, and the last to end has seen the logs of all.

    Returns:
        whether this rank announces the page: one rank does.
    """
    from torchnan.distributed import job as jobs
    from torchnan.pages import findings_page, private_file

    dropped, job = watch.stats()["dropped"], jobs.current()
    notes = [f"{dropped:,} more findings were counted, not kept (max_findings)"] if dropped else []
    if job is None:
        source = f"process {os.getpid()} of {_program()}"
        private_file.write_text(path, findings_page.html(watch.findings, [source], notes))
        return True
    if not is_logged:
        job.keep(watch.findings)
    size = -1
    # another rank may have written meanwhile, and replaced this page by an older one
    while size != (size := job.size()):
        private_file.write_text(path, findings_page.html(job.findings(), [f"{job.folder} of {_program()}"], notes))
    return job.is_first("page")


def _program() -> str:
    """Returns the name of the script, the time, and the releases that it ran with."""
    import torch

    from torchnan import _build

    script = os.path.basename(sys.argv[0]) or "Python"
    now = time.strftime("%Y-%m-%d %H:%M")
    return f"{script} · {now} · torchnan {_build.version}, PyTorch {torch.__version__}"
