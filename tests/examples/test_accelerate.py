"""examples/accelerate_loop.py: the step guard in a loop of Accelerate."""

from __future__ import annotations

import sys

import pytest

from tests.support.processes import REPOSITORY, run

pytest.importorskip("accelerate")

EXAMPLE = REPOSITORY / "examples" / "accelerate_loop.py"


def test_the_loop_continues_after_a_bad_batch_and_runs_it_again(tmp_path):
    ended = run([sys.executable, str(EXAMPLE), "captures"], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    steps = [line for line in ended.stdout.splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in steps] == [f"step {i}" for i in (1, 2, 4, 5, 6)]
    losses = [float(line.rpartition(" ")[2]) for line in steps]
    assert all(0 < loss < 2 for loss in losses)  # none of them is NaN
    line = next(i for i, text in enumerate(EXAMPLE.read_text().splitlines(), 1) if "/ counts.sum()" in text)
    assert "torchnan: step 3 was not applied (loss)" in ended.stdout
    assert "replay    persistent: wrong again, same origin, same bits" in ended.stdout
    assert f"aten::div at {EXAMPLE}:{line}: other is 0" in ended.stdout
    assert "Step 3 run again from captures/rank-0-step-00000003: persistent" in ended.stdout
    assert f"made by   aten::div, output 0   at {EXAMPLE}:{line}" in ended.stdout
    assert "was not applied" not in ended.stderr  # it is printed once
