"""The core under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer: no report."""

from __future__ import annotations

import re

import pytest

from tests.support import sanitizers

pytestmark = [pytest.mark.guarantee(7), pytest.mark.slow]

REPORTS = re.compile("Sanitizer: |runtime error: ")

WRONG = [
    ("asan", "beyond the end", "heap-buffer-overflow"),
    ("asan", "overflow", "signed integer overflow"),
    ("tsan", "race", "data race"),
]


@pytest.fixture(scope="module", params=["asan", "tsan"])
def kind(request) -> str:
    sanitizers.build(request.param)
    return request.param


def count_of_tests(output: str) -> int:
    return int(re.findall(r"(\d+) tests? from|(\d+) passed", output)[-1][0] or re.findall(r"(\d+) passed", output)[-1])


def test_the_sanitizer_is_awake(kind):
    """An error in code with the flags and options of the tests is reported."""
    program = sanitizers.build_broken(kind)
    assert sanitizers.run([str(program), "right"]).returncode == 0
    for sanitizer, way, words in WRONG:
        if sanitizer == kind:
            told = sanitizers.run([str(program), way])
            assert told.returncode == sanitizers.REPORT, told.stdout
            assert words in told.stdout
            assert REPORTS.search(told.stdout)


def test_the_cpp_tests_are_clean(kind, figure):
    done = sanitizers.run_cpp_tests(kind)
    assert done.returncode == 0, done.stdout
    assert not REPORTS.search(done.stdout), done.stdout
    figure(f"{count_of_tests(done.stdout)} C++ tests under {sanitizers.SANITIZERS[kind]} sanitizers, 0 reports")


def test_the_python_tests_are_clean(kind, figure):
    if kind == "tsan":
        pytest.skip("under ThreadSanitizer all of Python and PyTorch would have to be built with it")
    done = sanitizers.run_python_tests()
    assert done.returncode == 0, done.stdout
    assert not REPORTS.search(done.stdout), done.stdout
    figure(f"{count_of_tests(done.stdout)} Python tests under {sanitizers.SANITIZERS[kind]} sanitizers, 0 reports")
