"""Running other programs, as users do."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import uuid
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE = 300  # seconds; only a hang reaches it
TIME_FOR_STACKS = 10  # seconds that a process has for telling where it hangs


def run(
    arguments: list[str], *, cwd: Path | None = None, deadline: float = DEADLINE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end with no TORCHNAN variables but the given ones.

    After the deadline the program and all its children are killed, and the test fails with their output: Python
    processes print the stacks of all their threads.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHNAN")}
    mark = f"STARTED_BY_TEST={uuid.uuid4()}"  # inherited: by it whatever the program has started is found
    name, value = mark.split("=")
    with subprocess.Popen(
        arguments,
        cwd=cwd,
        env={**environment, "PYTHONFAULTHANDLER": "1", name: value, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        preexec_fn=restore_ctrl_c if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else None,
    ) as program:
        try:
            output, errors = program.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            command = " ".join(shlex.quote(str(argument)) for argument in arguments)
            raise AssertionError(f"no end after {deadline:g} s: {command}\n{_last_words(program, mark)}") from None
        except BaseException:
            _signal(_marked(mark), signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(arguments, program.returncode, output, errors)


def restore_ctrl_c() -> None:
    """A shell starts what it puts into the background with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _last_words(program: subprocess.Popen[str], mark: str) -> str:
    """Ends a program and its children one after the other, so that their stacks are not mixed."""
    for process in sorted(_marked(mark)):
        _signal([process], signal.SIGABRT)  # faulthandler prints the stacks
        for _ in range(10 * TIME_FOR_STACKS):
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.communicate(timeout=0.1)  # a full pipe would stop them
            if process not in _marked(mark):
                break
    _signal(_marked(mark), signal.SIGKILL)
    output, errors = program.communicate(timeout=TIME_FOR_STACKS)
    return f"--- stdout\n{output}\n--- stderr, and the stacks\n{errors}"


def _marked(mark: str) -> list[int]:
    """The processes that have this in their environment, and have not ended."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # belongs to another user, or is gone
            if mark.encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def run_python(
    code: str, *arguments: str, cwd: Path | None = None, deadline: float = DEADLINE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a separate process."""
    return run([sys.executable, "-c", code, *arguments], cwd=cwd, deadline=deadline, **variables)
