"""Switches detection on where the environment asks for it: ``TORCHNAN=raise python train.py``."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from torchnan import _load
from torchnan.config import environment as _environment
from torchnan.config.options import OptionError, message_of
from torchnan.config.text import MAX_MESSAGE_BYTES, printable

is_pending = False  # asked for while torchnan was being imported, which does it at its end


def options_from(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns the options of detection that the variables ask for, ``None`` if it is to stay off.

    Variables of recovery are checked, too: refused now, and not by the first StepGuard.

    Raises:
        OptionError: a variable or a value that is not known.
    """
    options = _environment.detection_options(environment, _policy_variables)
    if any(map(_environment.is_of_recovery, environment)):
        from torchnan.recovery import policy

        policy.from_environment(environment)
    return options


def _policy_variables() -> Iterable[str]:
    from torchnan.recovery import policy  # not needed to switch detection on

    return policy.variables()


def switch_on() -> None:
    """Turns detection on for the whole program if the environment asks for it.

    A variable that cannot be used ends the program with status 2 before it has begun: it asked for something that it
    would not get.
    """
    global is_pending
    if not hasattr(_load, "_C"):  # `import torchnan` has imported torch, which has called us
        is_pending = True
        return
    from torchnan.detection import session

    try:
        options = options_from(os.environ)
        if options is not None:
            session.set_detect(True, **options)
            atexit.register(_at_exit)
    except (OptionError, OSError, RuntimeError) as error:
        print(f"torchnan: {printable(message_of(error), MAX_MESSAGE_BYTES)}", file=sys.stderr)
        raise SystemExit(2) from None


def _at_exit() -> None:
    """Reports what is still referenced when the program ends; there is nobody left to raise to."""
    from torchnan.detection import errors, session

    failed = getattr(sys, "last_value", None) is not None  # the program has died of something: that is its news
    try:
        session.end_program_wide(report_pending=not failed)
    except errors.NonFiniteError as error:
        with contextlib.suppress(OSError, ValueError):  # closed, or a pipe that nobody reads
            if sys.stderr is not None:
                print(error, file=sys.stderr)
