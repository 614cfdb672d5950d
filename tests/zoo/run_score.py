"""Runs the scorer of the zoo like a user."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.processes import REPOSITORY, run

ZOO = REPOSITORY / "tests" / "zoo"
DEADLINE = 3000  # seconds for all programs of a folder; only a hang reaches it


def score(
    programs: Path, adapter: Path, folder: Path, ids: list[str] | None = None
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Scores a file of programs, or a folder of them; returns how that ended, and a row for each program."""
    scores = folder / "scores.json"
    command = [sys.executable, str(ZOO / "score.py"), "--adapter", str(adapter), "--zoo", str(programs)]
    ended = run([*command, "--json", str(scores), *(ids or [])], deadline=DEADLINE)
    assert scores.exists(), ended.stdout + ended.stderr
    return ended, json.loads(scores.read_text())["rows"]
