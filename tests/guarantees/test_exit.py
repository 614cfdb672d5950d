"""The interpreter ends in bounded time, whatever torchnan was doing, and as it would without torchnan."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.processes import run, run_python

pytestmark = pytest.mark.guarantee(15)

EXITS = Path(__file__).with_name("programs") / "exits.py"
DEADLINE = 600  # seconds for all of them; only a hang reaches it


def ends(folder: Path, times: int, *ways: str) -> dict[str, dict[str, list[tuple[int, str]]]]:
    """(exit status, stderr) of each end, by way, with torchnan ("true") and without."""
    arguments = [sys.executable, str(EXITS), str(folder), str(times), *ways]
    done = run(arguments, deadline=DEADLINE, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    return {
        way: {switch: [(status, errors) for status, errors in all_] for switch, all_ in both.items()}
        for way, both in json.loads(done.stdout).items()
    }


WAYS = (
    "normal",
    "an_exception",
    "os_exit",
    "sys_exit_in_a_scope",
    "sys_exit_in_a_thread",
    "still_on",
    "kept_in_a_global",
    "kept_in_a_cycle",
    "with_a_callback_of_its_own",
    "imported_at_exit",
    "a_stuck_callback",
)


@pytest.mark.breadth(0)
def test_a_program_ends_as_it_does_without_torchnan(tmp_path, soak, figure):
    """The same exit status, the same words on stderr.

    Fails when __exit__ in _detect.py returns True, and when it prints."""
    times = 100 if soak else 3
    for way, ended in ends(tmp_path, times, *WAYS).items():
        assert Counter(ended["true"]) == Counter(ended["false"] * times), way
    figure(f"{len(WAYS)} ways to end, {times} times each: the exit status and stderr of a program without torchnan")


# PyTorch does this to a daemon thread that returns from an operation after Python has ended, also without torchnan.
ABORTED_BY_PYTORCH = (6, "terminate called without an active exception")
# libstdc++ prints this if a second thread is at the same point
TWO_ABORTED_BY_PYTORCH = (6, "terminate called recursively")


def test_daemon_threads_at_work_when_the_program_ends(tmp_path, soak, figure):
    times = 100 if soak else 5
    (ended,) = ends(tmp_path, times, "daemon_threads").values()
    kinds = Counter((status, errors.partition("\n")[0]) for status, errors in ended["true"] + ended["false"])
    assert set(kinds) <= {(0, ""), ABORTED_BY_PYTORCH, TWO_ABORTED_BY_PYTORCH}, kinds
    aborted = kinds[ABORTED_BY_PYTORCH] + kinds[TWO_ABORTED_BY_PYTORCH]
    figure(
        f"{times} ends beside 3 daemon threads at work, 0 hangs; PyTorch aborts {aborted} of them, as it does without"
    )


def test_ten_thousand_findings_do_not_hold_up_the_end(tmp_path, figure):
    """Fails when one of them is not written: seen with emit() leaving out the 777th."""
    assert ends(tmp_path, 1, "many_findings")["many_findings"]["true"] == [(0, "")]
    figure("10,000 findings in the log, all of them there when the program ends")


def test_a_pipe_without_a_reader_is_rejected_at_once(tmp_path):
    """Fails when the log is opened without O_NONBLOCK: the program waits forever for a reader."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ended = run_python("import torch", deadline=120, TORCHNAN="log", TORCHNAN_LOG=str(pipe))
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"torchnan: log '{pipe}' cannot be opened")


SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
if "torch" in sys.argv:
    import torch, torchnan
there = interpreters.create()
told = None
try:
    told = interpreters.run_string(there, "import torchnan")
except Exception as error:
    told = error
interpreters.destroy(there)
print(getattr(told, "formatted", told))
"""


@pytest.mark.parametrize("before", ["nothing", "torch"])
def test_a_subinterpreter_is_reported_that_pytorch_does_not_work_there(before):
    """Fails without check_interpreter(): PyTorch crashes there, or waits forever."""
    ended = run_python(SUBINTERPRETER, before, deadline=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "ImportError" in ended.stdout
    assert "torchnan was imported in subinterpreter 1. PyTorch does not work there" in ended.stdout
