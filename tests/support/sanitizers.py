"""Builds torchnan with a sanitizer and runs tests on it: ``python -m tests.support.sanitizers asan`` (or ``tsan``).

PyTorch and Python are as they always are, without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GUARANTEES = REPOSITORY / "tests" / "guarantees"
SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}
REPORT = 66  # exit status of a program that has been reported

# Python and PyTorch keep much memory until the process ends, so leaks are not informative.
OPTIONS = {
    "ASAN_OPTIONS": f"detect_leaks=0:exitcode={REPORT}",
    "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:exitcode={REPORT}",
    # A child of fork() cannot join its parent's threads.
    "TSAN_OPTIONS": f"suppressions={GUARANTEES / 'data' / 'tsan.supp'}:ignore_noninstrumented_modules=1:"
    f"report_thread_leaks=0:exitcode={REPORT}",
    "OMP_NUM_THREADS": "1",  # GNU OpenMP synchronises in ways that no sanitizer sees
}
# The long ones read gigabytes, one element after the other. ThreadSanitizer sees neither how GNU OpenMP's threads wait
# for each other, nor anything in what one thread does alone.
LEFT_OUT = {
    "asan": ("Long*",),
    "tsan": ("Long*", "EveryDtype/*", "Layouts/*", "Sizes/*", "SharedScan.*", "SharedExtents.*"),
}
PYTHON_TESTS = (
    *(f"detection/test_{name}.py" for name in ("detect", "backward", "report", "bound_rules", "guard")),
    *("guarantees/test_threads.py", "guarantees/test_fork.py"),
)


def folder(kind: str) -> Path:
    return REPOSITORY / "build" / kind


def build(kind: str) -> None:
    binaries = Path(sys.executable).parent
    environment = {**os.environ, **OPTIONS, "PATH": f"{binaries}:{os.environ['PATH']}"}  # the build lists the tests
    settings = {
        "CMAKE_BUILD_TYPE": "None",
        "CMAKE_CXX_FLAGS": "-O1",
        "Python3_EXECUTABLE": sys.executable,
        "TORCHNAN_CUDA": "OFF",  # no sanitizer sees what runs on a GPU
        "TORCHNAN_PYTHON": "ON" if kind == "asan" else "OFF",
        "TORCHNAN_SANITIZERS": SANITIZERS[kind],
        "TORCHNAN_TESTS": "ON",
    }
    given = [f"-D{name}={value}" for name, value in settings.items()]
    configure = ["cmake", "-S", str(REPOSITORY), "-B", str(folder(kind)), "-G", "Ninja", *given]
    # Without the tests of failing allocations, which have an operator new of their own.
    targets = ["torchnan_tests", "torchnan_device_tests", *(["torchnan", "_C"] if kind == "asan" else [])]
    for command in (configure, ["cmake", "--build", str(folder(kind)), "--target", *targets]):
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def run(command: list[str], *, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with the sanitizers' options; its output, both kinds together, in ``stdout``."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **OPTIONS, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def run_cpp_tests(kind: str, program: str = "torchnan_tests") -> subprocess.CompletedProcess[str]:
    tests = str(folder(kind) / "tests" / "cpp" / program)
    return run([tests, "--gtest_brief=1", f"--gtest_filter=-{':'.join(LEFT_OUT[kind])}"])


def run_python_tests() -> subprocess.CompletedProcess[str]:
    """On a copy of the package and its tests with the instrumented libraries; the sanitizers' own have to be the first
    that Python loads."""
    copied = folder("asan") / "copied"
    shutil.rmtree(copied, ignore_errors=True)
    built = shutil.ignore_patterns("lib", "include", "share", "__pycache__")
    shutil.copytree(REPOSITORY / "torchnan", copied / "torchnan", ignore=built)
    shutil.copytree(REPOSITORY / "tests", copied / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", copied)
    installed = ["cmake", "--install", str(folder("asan")), "--prefix", str(copied / "torchnan")]
    subprocess.run(installed, check=True, stdout=subprocess.DEVNULL)
    first = [_of_compiler(f"lib{name}.so") for name in ("asan", "ubsan", "stdc++")]
    return run(
        [sys.executable, "-m", "pytest", *(f"tests/{name}" for name in PYTHON_TESTS)],
        cwd=copied,
        PYTHONPATH=str(copied),
        LD_PRELOAD=" ".join(first),
    )


def _of_compiler(library: str) -> str:
    return subprocess.run(
        ["c++", f"-print-file-name={library}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def build_broken(kind: str) -> Path:
    """A program in which each of the sanitizers has something to report."""
    program = folder(kind) / "broken"
    flags = ["-std=c++20", "-O1", "-g", f"-fsanitize={SANITIZERS[kind]}"]
    subprocess.run(["c++", *flags, str(GUARANTEES / "native" / "broken.cpp"), "-o", str(program)], check=True)
    return program


def main() -> int:
    kind = sys.argv[1]
    build(kind)
    done = [
        run_cpp_tests(kind),
        run_cpp_tests(kind, "torchnan_device_tests"),
        *([run_python_tests()] if kind == "asan" else []),
    ]
    for one in done:
        print(one.stdout)
    return max(one.returncode for one in done)


if __name__ == "__main__":
    sys.exit(main())
