"""Switches detection on if the environment asks for it: ``TORCHNAN=raise python train.py``."""

from __future__ import annotations

import atexit
import importlib.util
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping

from torchnan import _load, program_end
from torchnan.config import environment as _environment
from torchnan.config.detection_options import DetectionOptions
from torchnan.config.options import OptionError, message_of
from torchnan.config.text import MAX_MESSAGE_BYTES, printable, say

is_pending = False  # requested while torchnan was being imported; the import handles it at its end


def options_from(environment: Mapping[str, str]) -> DetectionOptions | None:
    """Returns the detection options that the variables set, ``None`` if detection stays off.

    Also checks the variables of recovery, so that errors appear now and not at the first StepGuard.

    Raises:
        OptionError: a variable or a value is unknown.
    """
    options = _environment.detection_options(environment, _policy_variables)
    if any(map(_environment.is_of_recovery, environment)):
        from torchnan.config import policy  # only needed to check the variables

        policy.from_environment(environment)
    return options


def _policy_variables() -> Iterable[str]:
    from torchnan.config import policy  # only needed to check the variables

    return policy.variables()


def switch_on() -> None:
    """Turns detection on for the whole program if the environment asks for it.

    An invalid variable ends the program with status 2 before it begins, because it asks for something that it would not
    get.
    """
    global is_pending
    if not hasattr(_load, "_C"):  # `import torchnan` has imported torch, which has called this function
        is_pending = True
        return
    from torchnan.detection import errors, session
    from torchnan.distributed import job as jobs

    try:
        options = options_from(os.environ)
        _say_that_nothing_is_on(_environment.ignored_variables(os.environ))
        if _environment.replaces_anomaly(os.environ):
            from torchnan.detection import anomaly

            anomaly.replace_anomaly_mode()
        if options is not None:
            errors.leave_out_source_lines()
            jobs.current()  # now, because later each rank may be in a different folder
            is_without_log = options.values["action"] == "log" and options.values["log"] is None
            path = _default_log() if is_without_log else None
            page = page_path()
            watch = session.detect.with_options(options.with_log(path) if path else options)
            session.start_program_wide(watch)
            atexit.register(program_end.finish, watch, path, page, os.getpid())
    except (OptionError, OSError, RuntimeError) as error:
        print(f"torchnan: {printable(message_of(error), MAX_MESSAGE_BYTES)}", file=sys.stderr)
        raise SystemExit(2) from None


def _say_that_nothing_is_on(ignored: list[str]) -> None:
    """Warns if options are set without ``TORCHNAN``: they switch nothing on, although the user may think so."""
    if ignored and multiprocessing.parent_process() is None:
        names, are = " and ".join(ignored[:3]), "are" if len(ignored) > 1 else "is"
        say(f"{names} {are} set, TORCHNAN is not, so nothing is checked: set TORCHNAN=raise, warn or log.")


def _default_log() -> str:
    """Returns the path of the log for TORCHNAN=log without a path: for a rank, in the folder of its job; otherwise in
    the working directory if possible."""
    from torchnan.distributed import job as jobs

    job = jobs.current()
    if job is not None:
        job.make_folder()
        return str(job.log)
    folder = os.getcwd() if os.access(os.curdir, os.W_OK) else tempfile.gettempdir()
    return os.path.join(folder, f"torchnan-{os.getpid()}.jsonl")


def page_path() -> str | None:
    """Returns the path of the page that the environment requests.

    Raises:
        OptionError: a page cannot be made at all, or not at that path.
    """
    path = _environment.page(os.environ)
    if path is None:
        return None
    missing = [name for name in ("jinja2", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(f"{_environment.PAGE} needs {missing[0]}: pip install torchnan[diagnose]")
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise OptionError(f"{_environment.PAGE}={path} cannot be used: there is no folder {folder}.")
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise OptionError(f"{_environment.PAGE}={path} cannot be used: no file can be written there.")
    if multiprocessing.parent_process() is None:
        return path
    stem, suffix = os.path.splitext(path)  # the parent process uses another path
    return f"{stem}-{os.getpid()}{suffix}"
