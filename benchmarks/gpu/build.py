"""Builds torchnan on the machine with the GPU, if what was brought there does not run. Imports no PyTorch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]  # made by tests/packaging/gpu_package.py
SOURCES = PACKAGE / "sources"
JSON = PACKAGE / "json"
ERROR = re.compile(r"CMake Error|[Ee]rror: (?!subprocess)")
LINES = 12  # of an error
DESCRIBE = """
import os, platform, sys, torch
gpu = torch.cuda.get_device_name() if sys.argv[1] == "cuda" else sys.argv[1]
print(f"{gpu}, PyTorch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores", flush=True)
import torchnan
"""


def describe(device: str) -> tuple[str, str]:
    """Returns what the machine is, and why torchnan cannot be imported there. The first is empty if PyTorch sees no
    such device, and the second is empty if all is well."""
    ended = subprocess.run([sys.executable, "-c", DESCRIBE, device], capture_output=True, text=True, check=False)
    why = (ended.stderr.strip().splitlines() or ["no output"])[-1]
    return ended.stdout.strip(), why if ended.returncode else ""


def build(seconds: float, log: Path) -> str:
    """Builds torchnan beside the tests and the benchmarks, on all cores. Returns why that failed."""
    sources = sorted(SOURCES.glob("torchnan-*.tar.gz"))
    if not sources:
        return f"torchnan has to be built, and there are no sources in {SOURCES}: make gpu-package"
    cmake = ["-DTORCHNAN_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native"]
    if JSON.exists():
        cmake.append(f"-DTORCHNAN_JSON_INCLUDE={JSON}")
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--upgrade", "--target", str(PACKAGE)]
    command = [sys.executable, "-m", "pip", "install", *options, str(sources[-1])]
    environment = os.environ | {"CMAKE_ARGS": " ".join([os.environ.get("CMAKE_ARGS", ""), *cmake])}
    with log.open("wb") as output:
        try:
            subprocess.run(command, env=environment, stdout=output, stderr=output, timeout=seconds, check=True)
        except subprocess.TimeoutExpired:
            return f"torchnan was not built within {seconds:.0f} s"
        except subprocess.CalledProcessError:
            return "\n".join(["torchnan was not built; build.log has more:", *first_error(log)])
    return ""


def first_error(log: Path) -> list[str]:
    """Returns the lines from the first error of CMake or a compiler on: pip prints a long traceback after it."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    first = next((number for number, line in enumerate(lines) if ERROR.search(line)), -LINES)
    return [line for line in lines[first:][:LINES] if line]
