"""A program that hangs ends at its deadline, and tells where."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python

HANGS = """
import os, threading
if os.fork() == 0:
    os.setsid()
def wait_for_ever():
    threading.Event().wait()
threading.Thread(target=wait_for_ever).start()
wait_for_ever()
"""


def test_a_hang_is_ended_with_its_children_and_all_stacks():
    """Fails when `run()` leaves the end to `subprocess.run(timeout=)`: no stacks, and the child lives on."""
    with pytest.raises(AssertionError, match="no end after 3 s: ") as hang:
        run_python(HANGS, deadline=3)
    story = str(hang.value)
    # The child has ended as well: it held the other end of the pipes, and they were read to their end.
    assert story.count("in wait_for_ever") == 4, story  # two threads of two processes
