"""A program that hangs ends at its deadline, and tells where."""

from __future__ import annotations

import pytest

from tests.support.forked_python import run_forked, run_forked_command, run_forked_file, run_forked_ranks
from tests.support.processes import run_python

FOR_EVER = """
print("begun", flush=True)
def wait_for_ever():
    while True: pass
wait_for_ever()
"""
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


def test_a_fork_has_imported_pytorch_and_nothing_of_torchnan(tmp_path):
    """Fails when the server imports torchnan, or leaves one of its modules in the program."""
    code = """
import sys
print("torch" in sys.modules, [name for name in sys.modules if name.startswith("torchnan")], sys.argv)
print(sorted(name for name in globals() if not name.startswith("__")), __name__)
"""
    assert run_forked(code, "x").stdout == "True ['torchnan_autoload'] ['-c', 'x']\n['sys'] __main__\n"


def test_a_fork_ends_as_its_program_does(tmp_path):
    ended = run_forked("import atexit; atexit.register(print, 'at exit'); raise SystemExit(3)")
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "at exit\n", "")
    assert run_forked("import os; os.kill(os.getpid(), 9)").returncode == -9
    program = tmp_path / "program.py"
    program.write_text("import sys, neighbour; print(sys.argv[1:], neighbour.__name__); 1 / 0")
    (tmp_path / "neighbour.py").write_text("")
    ended = run_forked_file(program, "a")
    assert (ended.returncode, ended.stdout) == (1, "['a'] neighbour\n")
    assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_variables_of_torchnan_hold_in_a_fork():
    code = "import torch\nprint(torch.log(torch.tensor(-1.0)).item())"
    assert run_forked(code).stdout == "nan\n"
    assert "NonFiniteError" in run_forked(code, TORCHNAN="raise").stderr
    assert run_forked_command("--version").stdout.startswith("torchnan ")


def test_forked_ranks_are_those_of_one_group(tmp_path):
    program = tmp_path / "ranks.py"
    program.write_text("""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print(dist.get_rank(), x.item())
dist.destroy_process_group()
""")
    ended = run_forked_ranks(program, 2)
    assert (ended.returncode, ended.stdout) == (0, "0 2.0\n1 2.0\n"), ended.stderr


def test_a_fork_that_hangs_is_ended_with_its_stacks():
    with pytest.raises(AssertionError, match="no end after 1 s: ") as hang:
        run_forked(
            "def wait_for_ever():\n    while True: pass\nprint('begun', flush=True)\nwait_for_ever()", deadline=1
        )
    assert "begun" in str(hang.value)
    assert "in wait_for_ever" in str(hang.value)
    assert run_forked("print(1)").stdout == "1\n"
