"""Detection for programs that know nothing of it: ``TORCHNAN=raise python train.py``."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from torchnan.config import options as _options
from torchnan.config.text import LONGEST_MESSAGE, printable

POLICY = "TORCHNAN_POLICY"  # where recovery's variables begin
REQUIRE_CUDA = "TORCHNAN_REQUIRE_CUDA"
MODES = ("raise", "warn", "log", "1", "0")

is_pending = False


def options_from(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The options that the variables ask for, ``None`` if detection is to stay off.

    ``TORCHNAN`` is one of raise, warn, log, 1 (the same as raise), 0 (off, whatever else is set, and whatever the
    program asks for: the core reads that for itself, once); empty it is as unset. ``TORCHNAN_<NAME>`` sets the option
    of that name.

    Raises:
        OptionError: a variable or a value that is not known.
    """
    mode = environment.get("TORCHNAN", "")
    if mode not in ("", *MODES):
        said = printable(mode, 200)
        raise _options.OptionError(f"TORCHNAN={said} cannot be used: it takes one of {', '.join(MODES)}.")
    given = {
        _name(variable): _value(variable, text)
        for variable, text in sorted(environment.items())
        if is_of_detection(variable)
    }
    if any(map(_is_of_recovery, environment)):
        from torchnan.recovery import policy

        policy.from_environment(environment)  # refused now, and not by the first StepGuard
    if mode in _options.ACTIONS and given.setdefault("action", mode) != mode:
        raise _options.OptionError(f"TORCHNAN={mode} and TORCHNAN_ACTION={given['action']} disagree: set one of them.")
    requires_cuda(environment)  # refused now, and not by the first detection
    options = _options.check(given)
    return None if mode in ("", "0") else options


def is_of_detection(variable: str) -> bool:
    """Not those of recovery, which a :class:`torchnan.StepGuard` reads, and of what must be there."""
    return variable.startswith("TORCHNAN_") and variable != REQUIRE_CUDA and not _is_of_recovery(variable)


def requires_cuda(environment: Mapping[str, str]) -> bool:
    """Whether detection shall not begin where it could not look at tensors on GPUs: ``TORCHNAN_REQUIRE_CUDA=1``.

    Raises:
        OptionError: a value that is neither 0, 1 nor empty.
    """
    given = environment.get(REQUIRE_CUDA, "")
    if given not in ("", "0", "1"):
        raise _options.OptionError(f"{REQUIRE_CUDA}={printable(given, 200)} cannot be used: it takes 0 or 1.")
    return given == "1"


def _is_of_recovery(variable: str) -> bool:
    return variable == POLICY or variable.startswith(f"{POLICY}_")


def _name(variable: str) -> str:
    return variable[len("TORCHNAN_") :].lower()


def _value(variable: str, text: str) -> Any:
    known = [f"TORCHNAN_{option.upper()}" for option in _options.TABLE]
    if variable not in known:
        from torchnan.recovery import policy

        nearest = _options.nearest(variable, [*known, POLICY, *policy.variables()])
        raise _options.OptionError(
            f"there is no variable {printable(variable, 100)}.{nearest} Variables: TORCHNAN, {', '.join(known)}, "
            f"{POLICY}, {POLICY}_<FIELD>."
        )
    return _options.read(variable, _options.TABLE[_name(variable)], text)


def switch_on() -> None:
    """Turns detection on for the whole program if the environment asks for it.

    A variable that cannot be used ends the program with status 2 before it has begun: it asked for something that it
    would not get.
    """
    global is_pending
    torchnan = sys.modules["torchnan"]
    if not hasattr(torchnan, "set_detect"):
        is_pending = True  # `import torchnan` has imported torch, which has called us: it calls again when it is done
        return
    try:
        options = options_from(os.environ)
        if options is not None:
            torchnan.set_detect(True, **options)
            atexit.register(_at_end)
    except (_options.OptionError, OSError, RuntimeError) as error:
        print(f"torchnan: {printable(_options.message_of(error), LONGEST_MESSAGE)}", file=sys.stderr)
        raise SystemExit(2) from None


def _at_end() -> None:
    """Reports what is still held when the program ends; there is nobody left to raise to."""
    from torchnan.detection import errors, session

    failed = getattr(sys, "last_value", None) is not None  # the program has died of something: that is its news
    try:
        session.end_program_wide(judge=not failed)
    except errors.NonFiniteError as error:
        with contextlib.suppress(OSError, ValueError):  # closed, or a pipe that nobody reads
            if sys.stderr is not None:
                print(error, file=sys.stderr)
