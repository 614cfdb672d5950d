"""Running other programs, as users do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE = 300  # seconds; only a hang reaches it


def run(arguments: list[str], *, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end with no TORCHNAN variables but the given ones."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHNAN")}
    return subprocess.run(
        arguments,
        cwd=cwd,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def run_python(
    code: str, *arguments: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own."""
    return run([sys.executable, "-c", code, *arguments], cwd=cwd, **variables)
