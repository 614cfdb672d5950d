"""Separate environments for other packages, which use the torch and torchnan of this one."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path


def python_of(folder: Path) -> Path:
    """Returns the interpreter of the environment in a folder."""
    return folder / "venv" / "bin" / "python"


def install(folder: Path, needed: list[str]) -> None:
    """Makes the environment if necessary, and installs missing packages."""
    if not python_of(folder).exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        theirs = next((folder / "venv" / "lib").glob("python*/site-packages"))
        # An editable install uses a .pth file, which is read only in a site folder.
        (theirs / "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n")
    stamp = folder / "venv" / "installed.json"
    if stamp.exists() and json.loads(stamp.read_text()) == needed:
        return
    kept = [f"{name}=={metadata.version(name).split('+')[0]}\n" for name in ("torch", "numpy", "scipy", "pytest")]
    (folder / "constraints.txt").write_text("".join(kept))
    options = ["-m", "pip", "install", "-q", "-c", folder / "constraints.txt"]
    subprocess.run([python_of(folder), *options, *needed], check=True)
    stamp.write_text(json.dumps(needed))


def version_of(folder: Path, package: str) -> str:
    """Returns the version of a package that is installed there."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    found = subprocess.run([python_of(folder), "-c", code], check=True, capture_output=True, text=True)
    return found.stdout.strip()
