"""The ``TORCHNAN`` variables of the environment, and the detection options that they set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchnan.config.detection_options import OLD_NAMES, DetectionOptions, with_new_names
from torchnan.config.options import Option, OptionError, is_path, read, suggest
from torchnan.config.text import printable

POLICY = "TORCHNAN_POLICY"  # prefix of recovery's variables
REQUIRE_CUDA = "TORCHNAN_REQUIRE_CUDA"
REPLACE_ANOMALY = "TORCHNAN_REPLACE_ANOMALY"
PAGE = "TORCHNAN_HTML"
TRACEBACK = "TORCHNAN_TRACEBACK"
_OTHERS = (PAGE, REPLACE_ANOMALY, REQUIRE_CUDA, TRACEBACK)  # variables that set no option of detection


def modes() -> tuple[str, ...]:
    """Returns the values that ``TORCHNAN`` takes."""
    return (*DetectionOptions.option("action").names, "1", "0")


def detection_options(
    environment: Mapping[str, str], policy_variables: Callable[[], Iterable[str]] = tuple
) -> DetectionOptions | None:
    """Returns the options that the variables set, ``None`` if detection stays off.

    ``TORCHNAN`` is one of raise, warn, log, breakpoint, 1 (the same as raise), or 0. 0 turns detection off whatever
    else is set and whatever user code asks for; the core reads it itself, once. An empty value counts as unset.
    ``TORCHNAN_<NAME>`` sets the option of that name.

    Args:
        environment: names and values.
        policy_variables: returns the names of recovery's variables, to suggest one for a misspelt name.

    Raises:
        OptionError: a variable or a value is unknown.
    """
    mode, known = environment.get("TORCHNAN", ""), modes()
    if mode not in ("", *known):
        raise OptionError(
            f"TORCHNAN={printable(mode, 200)} cannot be used: it takes one of {', '.join(known)}.{suggest(mode, known)}"
        )
    given = {
        _name(variable): _value(variable, text, policy_variables)
        for variable, text in sorted(environment.items())
        if is_of_detection(variable)
    }
    if mode not in ("", "1", "0") and given.setdefault("action", mode) != mode:
        raise OptionError(f"TORCHNAN={mode} and TORCHNAN_ACTION={given['action']} disagree: set one of them.")
    requires_cuda(environment)  # checked now, and not by the first detection session
    replaces_anomaly(environment)
    page(environment)
    wants_full_traceback(environment)
    options = DetectionOptions.from_checked(with_new_names(given))
    return None if mode in ("", "0") else options


def ignored_variables(environment: Mapping[str, str]) -> list[str]:
    """Returns the variables that set options of detection while ``TORCHNAN`` does not switch it on."""
    needs_it = [variable for variable in environment if variable == PAGE or is_of_detection(variable)]
    return [] if environment.get("TORCHNAN") else sorted(needs_it)


def is_of_detection(variable: str) -> bool:
    """Returns whether a variable sets an option of detection."""
    is_other = variable in _OTHERS or is_of_recovery(variable)
    return variable.startswith("TORCHNAN_") and not is_other


def is_of_recovery(variable: str) -> bool:
    """Returns whether a variable is one that a :class:`torchnan.StepGuard` reads."""
    return variable == POLICY or variable.startswith(f"{POLICY}_")


def requires_cuda(environment: Mapping[str, str]) -> bool:
    """Returns whether ``TORCHNAN_REQUIRE_CUDA=1`` forbids detection if tensors on GPUs cannot be scanned.

    Raises:
        OptionError: the value is not 0, 1 or empty.
    """
    return _flag(environment, REQUIRE_CUDA)


def replaces_anomaly(environment: Mapping[str, str]) -> bool:
    """Returns whether ``TORCHNAN_REPLACE_ANOMALY=1`` replaces PyTorch's anomaly mode by torchnan's.

    Raises:
        OptionError: the value is not 0, 1 or empty.
    """
    return _flag(environment, REPLACE_ANOMALY)


def page(environment: Mapping[str, str]) -> str | None:
    """Returns the absolute path that ``TORCHNAN_HTML`` gives for a page of the findings, ``None`` if it is not set.

    Raises:
        OptionError: the value cannot be a path.
    """
    if PAGE not in environment:
        return None
    path: str = read(f"{PAGE}=", Option(None, "a path", is_path, str, "a path"), environment[PAGE])
    return os.path.abspath(path)


def wants_full_traceback(environment: Mapping[str, str]) -> bool:
    """Returns whether ``TORCHNAN_TRACEBACK=full`` asks for every frame of an uncaught error.

    Raises:
        OptionError: the value is not short, full or empty.
    """
    given = environment.get(TRACEBACK, "")
    if given not in ("", "short", "full"):
        raise OptionError(f"{TRACEBACK}={printable(given, 200)} cannot be used: it takes short or full.")
    return given == "full"


def _flag(environment: Mapping[str, str], name: str) -> bool:
    given = environment.get(name, "")
    if given not in ("", "0", "1"):
        raise OptionError(f"{name}={printable(given, 200)} cannot be used: it takes 0 or 1.")
    return given == "1"


def _name(variable: str) -> str:
    return variable[len("TORCHNAN_") :].lower()


def _value(variable: str, text: str, policy_variables: Callable[[], Iterable[str]]) -> Any:
    known = [f"TORCHNAN_{option.upper()}" for option in DetectionOptions.options()]
    if variable not in known and _name(variable) not in OLD_NAMES:
        suggestion = suggest(variable, [*known, *_OTHERS, POLICY, *policy_variables()])
        raise OptionError(
            f"there is no variable {printable(variable, 100)}.{suggestion} Variables: TORCHNAN, "
            f"{', '.join([*known, *_OTHERS])}, {POLICY}, {POLICY}_<FIELD>."
        )
    return read(f"{variable}=", DetectionOptions.option(_name(variable)), text)
