"""The calls of `make gpu`, rehearsed on the device that lags: they keep to their time and their files, and a call that
is cut off keeps its rows."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import Call
from benchmarks.gpu.calls import CALLS, RESERVE, SECONDS, Stage
from benchmarks.gpu.verdict import Verdict
from tests.devices.conftest import NAME

REPOSITORY = Path(__file__).resolve().parents[2]
MACHINE = {"seconds": 600, "files": 8, "bytes": 16 << 20}  # the limits of a rented one, for a command
PATIENCE = 20 * SECONDS  # a machine without a GPU is slower
pytestmark = pytest.mark.skipif(NAME != "lagging", reason="`make gpu` runs the calls themselves")


def call(number: int, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "benchmarks.gpu", str(number), str(out), *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def report_of(number: int, out: Path) -> list[dict[str, object]]:
    """Returns the stages of a call's report, which the page shows too."""
    stages = json.loads((out / f"call-{number}.json").read_text())["stages"]
    page = (out / f"call-{number}.txt").read_text()
    for stage in stages:
        assert stage["name"] in page
        assert all(verdict["what"] in page for verdict in stage["verdicts"])
    return stages


@pytest.mark.parametrize("number", CALLS)
def test_the_stages_of_a_call_fit_into_its_time(number):
    assert sum(stage.seconds for stage in CALLS[number].values()) <= SECONDS - RESERVE
    assert MACHINE["seconds"] > SECONDS + RESERVE  # after it, `timeout` ends the call


@pytest.mark.parametrize("number", CALLS)
def test_the_function_of_each_stage_exists(number):
    assert all(callable(stage.load()) for stage in CALLS[number].values())


@pytest.mark.parametrize(
    ("number", "only"),
    [
        (1, "smoke,mlp-trace"),
        (2, "graphs"),
        *(pytest.param(number, "", marks=pytest.mark.breadth(0)) for number in CALLS),
    ],
)
def test_a_call_is_rehearsed(machine, number, only, tmp_path):
    names = only.split(",") if only else list(CALLS[number])
    with call(number, tmp_path, "--device=lagging", f"--seconds={PATIENCE}", f"--only={only}") as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    stages = report_of(number, tmp_path)
    assert [stage["name"] for stage in stages] == names
    assert all(stage["verdicts"] and not stage["error"] for stage in stages)
    files = list(tmp_path.iterdir())
    assert {file.name for file in files} == {f"call-{number}.{kind}" for kind in ("json", "txt", "tar.gz")}
    assert len(files) <= MACHINE["files"]
    assert all(file.stat().st_size <= MACHINE["bytes"] for file in files)
    with tarfile.open(tmp_path / f"call-{number}.tar.gz") as packed:
        assert {f"{name}.log" for name in names} < set(packed.getnames())
        last = json.load(packed.extractfile(f"call-{number}.json"))
    assert len(last["stages"]) == len(names)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_call_that_is_cut_off_keeps_its_rows(machine, how, tmp_path):
    """`timeout` sends the first, and the machine the second."""
    with call(1, tmp_path, "--device=lagging", f"--seconds={PATIENCE}", "--only=kernel,mlp") as process:
        rows = [line for line, _ in zip(process.stdout, range(3), strict=False)]  # before the stage has ended
        process.send_signal(how)
        process.communicate()
    assert process.returncode != 0
    (stage,) = report_of(1, tmp_path)
    assert len(rows) == 3
    assert all(any(verdict["what"] in row for verdict in stage["verdicts"]) for row in rows)
    assert stage["error"] == "cut off"
    assert "FAIL  cut off" in (tmp_path / "call-1.txt").read_text()
    assert (tmp_path / "call-1.tar.gz").exists() == (how == signal.SIGTERM)


def test_a_stage_that_hangs_is_ended_at_its_limit_and_keeps_its_rows(tmp_path, monkeypatch):
    """A Python that writes one row and then waits for a child for ever."""
    row = json.dumps([dataclasses.asdict(Verdict("a row", 1.0))])
    python = tmp_path / "python"
    python.write_text(f"#!/bin/bash\necho '{row}' > ${{@: -1}}\nsleep infinity & echo $! > {tmp_path}/child\nwait\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    hangs = Call(1, tmp_path, SECONDS, "lagging")
    hangs.run_stage("hangs", Stage("", seconds=10), tmp_path)
    (stage,) = report_of(1, tmp_path)
    assert stage["error"] == "not finished after 10 s"
    assert [verdict["what"] for verdict in stage["verdicts"]] == ["a row"]
    state = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_what_the_time_does_not_suffice_for_fails(machine, tmp_path):
    with call(1, tmp_path, "--device=lagging", f"--seconds={RESERVE}") as process:
        process.communicate()
    assert process.returncode == 1
    assert {stage["error"] for stage in report_of(1, tmp_path)} == {"not begun: the time of the call was over"}


def test_without_a_gpu_a_call_says_so(tmp_path):
    with call(1, tmp_path) as process:
        output, _ = process.communicate()
    assert process.returncode == 1
    (stage,) = report_of(1, tmp_path)
    assert stage["error"].startswith("PyTorch sees no cuda here: ")
    assert stage["error"] in output
