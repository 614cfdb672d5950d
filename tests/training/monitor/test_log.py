"""The log: bounded, rotated, for its owner alone, and readable whatever has happened to the program."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys

import pytest

import torchnan
from tests.support.forked_python import run_forked
from tests.support.monitored_training import lines_of, rows_of
from torchnan.diagnosis import read

SMALL = 2**16


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def fill(path, steps, **options):
    monitor = torchnan.Monitor(log=path, live=False, max_bytes=SMALL, **options)
    for i in range(1, steps + 1):
        monitor.step(step=i, loss=1.0 / i, lr=[0.125] * 20)
    return monitor


def test_a_full_file_becomes_part_1_and_the_oldest_goes(path):
    fill(path, 2500, parts=3)
    parts = sorted(path.parent.iterdir())
    assert [part.name for part in parts] == ["run.jsonl", "run.jsonl.1", "run.jsonl.2"]
    assert all(part.stat().st_size <= SMALL for part in parts)
    steps = [row["step"] for part in (parts[2], parts[1], parts[0]) for row in rows_of(part)]
    assert steps == list(range(steps[0], 2501))
    assert 1 < steps[0] < 2000
    headers = [lines_of(part)[0] for part in parts]
    assert {header["started"] for header in headers} == {headers[0]["started"]}
    assert [header.get("continued") for header in headers] == [True, True, True]


def test_nothing_is_lost_unasked(path):
    fill(path, 6000)
    assert len(list(path.parent.iterdir())) > 16
    assert read(path).step.tolist() == list(range(1, 6001))


def test_a_log_whose_folder_is_removed_is_begun_again(tmp_path):
    path = tmp_path / "logs" / "run.jsonl"
    monitor = fill(path, 10)
    shutil.rmtree(path.parent)
    for i in range(11, 21):
        monitor.step(step=i, loss=1.0 / i)
    assert read(path).step.tolist() == list(range(11, 21))
    assert lines_of(path)[0]["torchnan"] == "run"
    assert monitor.failures == {}


def test_a_rotated_log_is_read_as_one_run(path):
    fill(path, 1500)
    assert len(list(path.parent.iterdir())) > 2
    run = read(path)
    assert run.step.tolist() == list(range(1, 1501))
    assert run.starts == [1]
    assert run.notes == []


def test_a_restart_appends_and_rotates_on(path):
    fill(path, 300)
    monitor = torchnan.Monitor(log=path, live=False, max_bytes=SMALL)
    for i in range(301, 501):
        monitor.step(step=i, loss=1.0, lr=[0.125] * 20)
    run = read(path)
    assert run.step.tolist() == list(range(1, 501))
    assert run.starts == [1, 301]
    assert path.stat().st_size <= SMALL


def test_files_are_for_their_owner_alone(path):
    nested = path.parent / "a" / "run.jsonl"
    fill(nested, 1000)
    for file in nested.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(nested.parent.stat().st_mode) == 0o700


KILLED = """
import os, signal, sys
import torchnan
monitor = torchnan.Monitor(log=sys.argv[1], live=False)
for i in range(1, 51):
    monitor.step(loss=1.0 / i)
print("written", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_program_has_lost_nothing(path):
    ended = run_forked(KILLED, str(path))
    assert ended.returncode == -signal.SIGKILL
    assert [row["step"] for row in rows_of(path)] == list(range(1, 51))


ENDLESS = """
import sys
import torchnan
monitor = torchnan.Monitor(log=sys.argv[1], live=False, max_bytes=65536, parts=100)
print("begun", flush=True)
while True:
    monitor.step(loss=1.0, grad_norm=2.0, lr=[0.125] * 20)
"""


def killed_while_writing(path, lines):
    """Killed at any moment after so many bytes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHNAN")}
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE, env=environment
    ) as program:
        try:
            program.stdout.readline()
            while bytes_written(path) < lines * 200:
                assert program.poll() is None
        finally:
            program.kill()
    return read(path)


def bytes_written(path):
    total = 0
    for part in path.parent.glob("run.jsonl*"):
        with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
            total += part.stat().st_size
    return total


@pytest.mark.parametrize("lines", [50, 700])
def test_a_program_that_is_killed_while_it_writes_leaves_a_log_that_can_be_read(path, lines):
    run = killed_while_writing(path, lines)
    assert run.step.tolist() == list(range(1, len(run) + 1))
    assert len(run) >= lines / 2


@pytest.mark.slow
def test_long_form_a_program_that_is_killed_at_any_moment(tmp_path):
    for i in range(40):
        folder = tmp_path / str(i)
        folder.mkdir()
        run = killed_while_writing(folder / "run.jsonl", 20 + 37 * i)
        assert run.step.tolist() == list(range(1, len(run) + 1))


def test_a_line_that_was_cut_is_not_added_to(path):
    fill(path, 3)
    with open(path, "a") as file:
        file.write('{"step": 4, "lo')
    torchnan.Monitor(log=path, live=False).step(step=5, loss=1.0)
    lines = path.read_text().splitlines()
    assert lines[-3] == '{"step": 4, "lo'
    assert json.loads(lines[-1])["step"] == 5
    assert read(path).step.tolist() == [1, 2, 3, 5]


@pytest.mark.parametrize("begun", ["", '{"torch', '{"torchnan": "run", "ver'])
def test_a_log_whose_first_line_was_cut_is_gone_on_with(path, begun):
    path.write_text(begun)
    torchnan.Monitor(log=path, live=False).step(step=5, loss=1.0)
    assert read(path).step.tolist() == [5]


def test_a_full_disk_is_reported_once_and_training_continues(path):
    code = f"""
import resource, torchnan
monitor = torchnan.Monitor(log={str(path)!r}, live=False)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
for i in range(100):
    monitor.step(loss=1.0)
print(monitor.failures)
"""
    ended = run_forked(code)
    assert ended.returncode == 0, ended.stderr
    lost = int(ended.stdout.rpartition(" ")[2].strip("}\n"))
    assert ended.stderr.count("writing to the monitor's log failed") == 1
    assert len(rows_of(path)) + lost == 100
