"""Loads ``_testing`` (csrc/python/testing.cpp): what only tests ask the core for. Built by ``make test-cpp``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import torchnan  # noqa: F401 (loads the core that the extension is linked to)

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / f"python{sys.version_info.major}.{sys.version_info.minor}"
NAME = f"_testing{sysconfig.get_config_var('EXT_SUFFIX')}"
EXTENSION = Path(os.environ.get("TESTING_EXTENSION", BUILD / "csrc" / "python" / NAME))


def load() -> ModuleType:
    """Returns the extension; builds it if the build folder has none yet."""
    if not EXTENSION.exists():
        command = ["cmake", "--build", str(BUILD), "--target", "_testing"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        assert EXTENSION.exists(), f"`make test-cpp` builds {EXTENSION}\n{built.stdout}{built.stderr}"
    spec = importlib.util.spec_from_file_location("_testing", EXTENSION)
    assert spec is not None
    assert spec.loader is not None
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension


_testing = load()
