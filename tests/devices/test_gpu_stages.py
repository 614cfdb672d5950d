"""The stages of `make gpu`, tried on the device that lags: they run to their ends and write their reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.stages import STAGES
from tests.devices.conftest import NAME

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(NAME != "lagging", reason="`make gpu` runs the stages themselves")


def test_all_stages_fit_into_45_minutes():
    assert max(stage.seconds for stage in STAGES.values()) <= 600
    assert sum(stage.seconds for stage in STAGES.values()) <= 45 * 60


@pytest.mark.parametrize(
    "stage",
    [
        "smoke",
        "graphs",
        *(pytest.param(name, marks=pytest.mark.slow) for name in STAGES if name not in ("smoke", "graphs")),
    ],
)
def test_a_stage_passes(machine, stage, tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", str(tmp_path), "--device", "lagging", "--only", stage]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    report = json.loads((tmp_path / f"{stage}.json").read_text())
    assert ended.returncode == 0, ended.stdout + (tmp_path / f"{stage}.log").read_text()
    assert report["error"] == ""
    assert report["verdicts"]
