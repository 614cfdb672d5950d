"""Builds the wheel for this Python, with a core for each PyTorch, and tries it beside each in an empty environment.

``python -m tests.packaging.build_wheel [2.13 2.15 ...]``: writes to dist/. The wheel is built from the source
distribution, so that both are tried. A PyTorch that does not exist for this Python is left out of the wheel, and named.
Exits with 1 and says why if the wheel is not fit to be published.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / "build" / "wheels"
TORCH = REPOSITORY / "build" / "torch"  # kept from one call to the next
DIST = REPOSITORY / "dist"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
RELEASES = ("2.11", "2.12", "2.13", "2.14", "2.15")
LARGEST = 3_000_000  # bytes for each core
# Libraries of PyTorch's package, which the wheel requires: a second copy beside it would be another PyTorch.
FROM_PYTORCH = ["libtorch.so", "libtorch_*", "libc10*", "libgomp*"]
FIRST_FINDING = """
import torch, torchnan
with torchnan.detect():
    (torch.zeros(3) / torch.zeros(3)).sum().item()
"""
NAMED = "made by   aten::div, output 0   at <string>:4"  # by the program above


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", default=RELEASES, help=f"of PyTorch (default: {' '.join(RELEASES)})")
    releases = parser.parse_args().releases
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    folders = {release: folder for release in releases if (folder := download_pytorch(release))}
    wheel = repair(build(unpack(build_sdist(), WORK), list(folders.values())))
    faults = faults_of(wheel, list(folders))
    for release in folders:
        faults += try_in_empty_environment(wheel, release)
    for fault in faults:
        print(f"{wheel.name}: {fault}", file=sys.stderr)
    if not faults:
        size = f"{wheel.stat().st_size / 1e6:.1f} MB"
        print(f"{wheel.relative_to(REPOSITORY)}  {size}, tried with PyTorch {', '.join(folders)} in empty environments")
    return 1 if faults else 0


def download_pytorch(release: str) -> Path | None:
    """Returns the folder of a PyTorch, alone: a build takes its headers and links to it, and runs none of it."""
    folder = TORCH / f"python{sys.version_info.major}.{sys.version_info.minor}-torch{release}"
    if not (folder / "torch").exists():
        options = ["-q", "--no-deps", "--python", sys.executable, "--target", folder]
        ended = subprocess.run(["uv", "pip", "install", *options, f"torch=={release}.*"], check=False)
        if ended.returncode != 0:
            print(f"PyTorch {release} is left out: it cannot be installed for this Python", flush=True)
            return None
    return folder / "torch"


def build_sdist() -> Path:
    """Returns the source distribution, made as a build frontend makes it."""
    ask = "import setuptools.build_meta as backend, sys; print('sdist:' + backend.build_sdist(sys.argv[1]))"
    printed = _output([sys.executable, "-c", ask, DIST], cwd=REPOSITORY)
    return DIST / re.findall(r"^sdist:(.+)$", printed, re.MULTILINE)[0]


def unpack(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def build(source: Path, folders: list[Path]) -> Path:
    options = ["--no-build-isolation", "--no-deps", "--no-cache-dir", "-q", "-w", WORK / "built"]
    _call([sys.executable, "-m", "pip", "wheel", *options, source], TORCH_DIRS=os.pathsep.join(map(str, folders)))
    return next((WORK / "built").glob("*.whl"))


def repair(wheel: Path) -> Path:
    """Gives the wheel the tag of the oldest glibc that it runs with."""
    excluded = [f"--exclude={library}" for library in FROM_PYTORCH]
    _call([sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", WORK / "repaired", wheel])
    return Path(shutil.copy(next((WORK / "repaired").glob("*.whl")), DIST))


def faults_of(wheel: Path, releases: list[str]) -> list[str]:
    """Returns the defects that a user of the wheel would meet."""
    faults = []
    if wheel.stat().st_size > LARGEST * len(releases):
        faults.append(f"it has {wheel.stat().st_size:,} bytes, and at most {LARGEST * len(releases):,} are allowed")
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        required = re.search(r"^Requires-Dist: (torch\b.*)$", archive.read(metadata).decode(), re.MULTILINE)[1]
        fits = Requirement(required).specifier
        faults += [f"it requires {required}, without {release}" for release in releases if f"{release}.0" not in fits]
        faults += [f"it requires {required}, with {other}" for other in others_than(releases) if f"{other}.0" in fits]
        for name in archive.namelist():
            held = archive.read(name)
            faults += [f"{name} names {path}" for path in (REPOSITORY, Path.home()) if f"{path}/".encode() in held]
    return faults


def others_than(releases: list[str]) -> list[str]:
    """Returns the releases between, before and after those of the wheel."""
    minors = [int(release.split(".")[1]) for release in releases]
    others = set(range(min(minors) - 1, max(minors) + 2)) - set(minors)
    return [f"2.{minor}" for minor in sorted(others)]


def try_in_empty_environment(wheel: Path, release: str) -> list[str]:
    """Installs the wheel beside a PyTorch, and lets it name a NaN."""
    python = WORK / f"empty-torch{release}" / "bin" / "python"
    _call(["uv", "venv", "-q", "--python", sys.executable, python.parents[1]])
    _call(["uv", "pip", "install", "-q", "--python", python, f"torch=={release}.*", wheel])
    elsewhere = {**os.environ, "PYTHONPATH": ""}
    ended = subprocess.run([python, "-c", FIRST_FINDING], cwd=WORK, env=elsewhere, capture_output=True, text=True)
    print(ended.stderr)
    return (
        []
        if NAMED in ended.stderr
        else [f"it names no NaN with PyTorch {release} in an empty environment: {ended.stderr}"]
    )


def _call(command: list[str | Path], **variables: str) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, check=True, env={**os.environ, **variables})


def _output(command: list[str | Path], cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
