"""Builds the wheel for this Python and its PyTorch, repairs it for manylinux, and tries it in an empty environment.

``python -m tests.packaging.build_wheel``: writes to dist/. The wheel is built from the source distribution, so that
both are tried. Exits with 1 and says why if the wheel is not fit to be published.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / "build" / "wheels"
DIST = REPOSITORY / "dist"
LARGEST = 5_000_000  # bytes
# Libraries of PyTorch's package, which the wheel requires: a second copy beside it would be another PyTorch.
FROM_PYTORCH = ["libtorch.so", "libtorch_*", "libc10*", "libgomp*"]
FIRST_FINDING = """
import torch, torchnan
with torchnan.detect():
    (torch.zeros(3) / torch.zeros(3)).sum().item()
"""


def main() -> int:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    wheel = repair(build(unpack(build_sdist(), WORK)))
    faults = faults_of(wheel) + try_in_empty_environment(wheel)
    for fault in faults:
        print(f"{wheel.name}: {fault}", file=sys.stderr)
    if not faults:
        print(f"{wheel.relative_to(REPOSITORY)}  {wheel.stat().st_size / 1e6:.1f} MB, tried in an empty environment")
    return 1 if faults else 0


def build_sdist() -> Path:
    """Returns the source distribution, made as a build frontend makes it."""
    ask = "import setuptools.build_meta as backend, sys; print('sdist:' + backend.build_sdist(sys.argv[1]))"
    printed = _output([sys.executable, "-c", ask, DIST], cwd=REPOSITORY)
    return DIST / re.findall(r"^sdist:(.+)$", printed, re.MULTILINE)[0]


def unpack(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def build(source: Path) -> Path:
    options = ["--no-build-isolation", "--no-deps", "--no-cache-dir", "-q", "-w", WORK / "built"]
    _call([sys.executable, "-m", "pip", "wheel", *options, source])
    return next((WORK / "built").glob("*.whl"))


def repair(wheel: Path) -> Path:
    """Gives the wheel the tag of the oldest glibc that it runs with."""
    excluded = [f"--exclude={library}" for library in FROM_PYTORCH]
    _call([sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", WORK / "repaired", wheel])
    return Path(shutil.copy(next((WORK / "repaired").glob("*.whl")), DIST))


def faults_of(wheel: Path) -> list[str]:
    """Returns the defects that a user of the wheel would meet."""
    faults = []
    if wheel.stat().st_size > LARGEST:
        faults.append(f"it has {wheel.stat().st_size:,} bytes, and at most {LARGEST:,} are allowed")
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        release = re.search(r"\+torch(\d+\.\d+)-", wheel.name)[1]
        if f"Requires-Dist: torch=={release}.*" not in archive.read(metadata).decode():
            faults.append(f"it does not require torch=={release}.*")
        for name in archive.namelist():
            held = archive.read(name)
            faults += [f"{name} names {path}" for path in (REPOSITORY, Path.home()) if f"{path}/".encode() in held]
    return faults


def try_in_empty_environment(wheel: Path) -> list[str]:
    """Installs the wheel, and the PyTorch it asks for, and lets it name a NaN."""
    python = WORK / "empty" / "bin" / "python"
    _call([sys.executable, "-m", "venv", WORK / "empty"])
    _call([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel])
    elsewhere = {**os.environ, "PYTHONPATH": ""}
    ended = subprocess.run([python, "-c", FIRST_FINDING], cwd=WORK, env=elsewhere, capture_output=True, text=True)
    print(ended.stderr)
    named = "made by   aten::div, output 0   at <string>:4" in ended.stderr
    return [] if named else [f"it names no NaN in a separate environment: {ended.stderr}"]


def _call(command: list[str | Path]) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, check=True)


def _output(command: list[str | Path], cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
