"""Imports from the checkout itself, as `make build` sets it up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_program_beside_the_clone_imports_the_package_and_not_the_clone(tmp_path):
    (tmp_path / "torchnan").symlink_to(REPOSITORY)  # as `git clone` names it
    program = tmp_path / "train.py"
    program.write_text("import torchnan\nprint(torchnan.detect.__name__)\n")
    ran = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout == "detect\n", ran.stderr
