"""Many threads, forward and backward, while others switch detection on and off, read, raise, and hold the GIL."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import run

pytestmark = pytest.mark.guarantee(7)

PROGRAMS = Path(__file__).with_name("programs")
MANY = 64


def many_threads(threads: int, operations: int, repetitions: int) -> list[dict[str, int]]:
    arguments = [str(number) for number in (threads, operations, repetitions)]
    ended = run([sys.executable, str(PROGRAMS / "many_threads.py"), *arguments], deadline=900, OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_many_threads_find_each_its_own_and_compute_the_same(figure):
    """Values, findings and lines are checked by the threads themselves.

    Fails when the tuples of a Finding are filled in place, and when _program.py calls gc.get_objects(): SystemError in
    a thread whose tuple another thread has seen."""
    (done,) = many_threads(MANY, 200, 1)
    figure(
        f"{MANY} threads and 5 that come, go, read and hold the GIL: {done['operations']:,} operations, 0 differences"
    )


@pytest.mark.slow
def test_many_threads_for_long(figure):
    begin = time.monotonic()
    (done,) = many_threads(MANY, 100_000, 1)
    figure(
        f"{MANY} threads x 100,000 operations, {done['operations']:,} of them under one detection, "
        f"0 differences, in {time.monotonic() - begin:.0f} s"
    )


@pytest.mark.slow
def test_many_threads_again_and_again(figure):
    done = many_threads(MANY, 200, 50)
    figure(f"{len(done)} new processes of {MANY} threads, {len(done)} ended")


@pytest.mark.breadth(0)
def test_the_ways_in_which_programs_come_to_have_threads(soak, figure):
    """Fails when ThreadState::watch() adopts no open scope: inter-op threads find nothing. Other ways to make it fail
    are listed beside the scenes."""
    repetitions = 10 if soak else 1
    for _ in range(repetitions):
        ended = run([sys.executable, str(PROGRAMS / "thread_scenes.py")], OMP_NUM_THREADS="1")
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    figure(f"{len(ended.stdout.split())} ways to have threads, {repetitions} times each")
