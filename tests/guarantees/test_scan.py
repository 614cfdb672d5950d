"""The scan agrees with a scalar loop for every size, alignment, position and pattern, with every instruction set."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from pathlib import Path

import nlohmann_json
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torchnan
from tests.support.processes import REPOSITORY, run

pytestmark = pytest.mark.guarantee(5)

ops = torch.ops.torchnan

# -- the long forms in C++

BUILD = REPOSITORY / "build" / "python{}.{}".format(*sys.version_info)
CPP_TESTS = Path(os.environ.get("CPP_TESTS", BUILD / "tests" / "cpp" / "torchnan_tests"))
PARTS = {
    "the loops for the baseline": "Long/*_baseline",
    "the loops for avx2": "Long/*_avx2",
    "the loops for avx512": "Long/*_avx512",
    "strided views": "Long/LongEveryView.*",
    "more than 2^31 elements": "LongHugeTensor.*",
}
PARTS["the rest"] = "Long*-" + ":".join(PARTS.values())


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_the_long_tests_in_cpp(part, tmp_path, figure):
    """Fails when a loop for one instruction set reads a word less: `n - kLanes` made `n - kLanes - 1` in of_lanes()."""
    assert CPP_TESTS.exists(), f"{CPP_TESTS} is not there: `make test-cpp` builds it"
    result = tmp_path / "result.json"
    ended = run([str(CPP_TESTS), f"--gtest_filter={PARTS[part]}", f"--gtest_output=json:{result}", "--gtest_brief=1"])
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    tests = [test for suite in json.loads(result.read_text())["testsuites"] for test in suite["testsuite"]]
    if part == "the rest":
        assert not tests, "a long test that no part is for"
        return
    lacked = [message for test in tests for message in test.get("skipped", []) if "this machine has no" in str(message)]
    assert tests
    assert len(lacked) in (0, len(tests))
    figure(f"{part}: the machine has none" if lacked else f"{part}: {len(tests)} long tests, 0 mismatches")


# -- a compiler that assumes that every number is finite

COMPILER = os.environ.get("CXX") or shutil.which("c++") or "g++"
ASKS_FOR_NAN = re.compile(r"is(nan|inf|finite)\(|quiet_NaN|float_format\(|infinity\(\)")
SOURCES = [
    path
    for path in sorted((REPOSITORY / "csrc").rglob("*.cpp"))
    if ASKS_FOR_NAN.search(path.read_text()) and "python" not in path.parts
]


REFUSED = "build it without -ffast-math, -Ofast and -ffinite-math-only"


def preprocessed(source: Path, *flags: str):
    headers = Path(torch.__file__).parent / "include"
    json_headers = Path(nlohmann_json.__path__[0]) / "include"
    places = [REPOSITORY / "csrc", REPOSITORY / "csrc" / "include", headers, json_headers]
    includes = [f"-I{place}" for place in (*places, headers / "torch" / "csrc" / "api" / "include")]
    return run([COMPILER, "-std=c++20", "-E", *includes, *flags, str(source), "-o", os.devnull])


def test_a_compiler_that_takes_every_number_for_finite_is_refused():
    """Fails when base/strict_floats.h has no #error."""
    finite_scan = REPOSITORY / "csrc" / "check" / "scan" / "finite_scan.cpp"
    for flag in ("-ffast-math", "-Ofast", "-ffinite-math-only"):
        refused = preprocessed(finite_scan, flag)
        assert refused.returncode != 0
        assert REFUSED in refused.stderr
    assert preprocessed(finite_scan, "-O3").returncode == 0


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_so_is_it_by_every_source_that_asks_for_nan(source):
    """Fails when a source that uses NaN does not include base/strict_floats.h."""
    assert REFUSED in preprocessed(source, "-ffast-math").stderr


def test_the_sources_that_ask_for_nan_are_known():
    assert {"finite_scan.cpp", "norm_scan.cpp", "tensor_scan.cpp", "elementwise_attribution.cpp"} <= {
        path.name for path in SOURCES
    }


# -- the operators, and a detection, against NumPy

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FLOAT8S = [getattr(torch, name) for name in dir(torch) if name.startswith("float8_")]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
LAYOUTS = ("as it is", "transposed", "flipped", "expanded", "every other", "offset", "one element", "overlapping")


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "transposed":
        return x.transpose(0, -1) if x.dim() > 1 else x
    if layout == "flipped":
        # PyTorch does not support it
        return x if x.dtype in (*FLOAT8S, torch.complex32) else x.flip(list(range(x.dim())))
    if layout == "expanded":
        return x.unsqueeze(0).expand(3, *x.shape)
    if layout == "every other":
        return x[..., ::2] if x.dim() else x
    if layout == "offset":
        return x[1:] if x.dim() else x
    if layout == "one element":
        return x.reshape(-1)[x.numel() // 2] if x.numel() else x
    if layout == "overlapping":
        flat = x.reshape(-1)
        return flat.as_strided((max(0, len(flat) - 2), 3), (1, 1)) if len(flat) > 2 else x
    return x


@st.composite
def tensors(draw, dtypes: list[torch.dtype], planted: tuple[float, ...], layouts: tuple[str, ...] = LAYOUTS):
    """A tensor of up to a few vectors of random finite bits with planted values, in one of the layouts."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.lists(st.integers(0, 9), max_size=4))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    bits = random.integers(0, 256, (1 + math.prod(shape)) * dtype.itemsize) & 0x3B
    x = torch.from_numpy(bits.astype(np.uint8)).view(dtype)[1:].reshape(shape)
    flat = x.view(-1)
    for at, value in draw(st.lists(st.tuples(st.integers(0, 10**4), st.sampled_from(planted)), max_size=3)):
        if len(flat):
            flat[at % len(flat)] = torch.tensor(value).to(dtype)
    return laid_out(x, draw(st.sampled_from(layouts)))


def as_numpy(x: torch.Tensor) -> np.ndarray:
    """In float64, which holds all of them; the parts of complex numbers in a last dimension."""
    return (torch.view_as_real(x) if x.is_complex() else x).double().numpy(force=True).copy()


def counts(values: np.ndarray) -> list[int]:
    """NaN, +Inf and -Inf. A complex number is NaN if a part is NaN, else the kind of its first non-finite part."""
    nan = np.isnan(values).any(-1)
    sign = np.zeros(len(values))
    for part in reversed(values.T):
        sign = np.where(np.isinf(part), np.sign(part), sign)
    return [int(nan.sum()), int(((sign > 0) & ~nan).sum()), int(((sign < 0) & ~nan).sum())]


def examples(soak: bool, most: int):
    return settings(
        max_examples=10 * most if soak else most,
        deadline=None,
        derandomize=not soak,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


def test_the_operators_agree_with_numpy(soak, figure):
    """Fails when for_each_span() treats every tensor as dense."""
    dtypes = FLOATS + FLOAT8S + COMPLEX
    tried = 0

    @examples(soak, 400)
    @given(tensors(dtypes, planted=(math.nan, math.inf, -math.inf)))
    def check(x):
        nonlocal tried
        tried += 1
        expected = counts(as_numpy(x).reshape(-1, 1 + x.is_complex()))
        assert ops.count_nonfinite(x).tolist() == expected
        assert bool(ops.all_finite(x)) == (sum(expected) == 0)
        assert ops.count_nonfinite([x, x]).tolist() == [expected, expected]
        assert bool(ops.all_finite([torch.ones(3), x])) == (sum(expected) == 0)

    check()
    figure(f"{tried} tensors of {len(dtypes)} dtypes and {len(LAYOUTS)} layouts: the operators count as NumPy does")


@pytest.mark.breadth(0)
def test_a_detection_agrees_with_numpy(soak, figure):
    """Fails when a census starts to count after the first element."""
    tried = 0

    def check(x, logarithm):
        nonlocal tried
        tried += 1
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = np.log(as_numpy(x))
        with torchnan.detect(action="log", when="origin", rescan_every=1) as watch:
            logarithm(x)
        told = [([f.nan, f.posinf, f.neginf], f.first_index) for f in watch.findings]
        bad = np.argwhere(~np.isfinite(expected))
        assert told == [(counts(expected.reshape(-1, 1)), tuple(bad[0]))] if len(bad) else told == []

    written_once = tuple(layout for layout in LAYOUTS if layout not in ("expanded", "overlapping"))
    examples(soak, 60)(given(tensors(FLOATS, (0.0, -1.0)), st.just(torch.log))(check))()
    examples(soak, 60)(given(tensors(FLOATS, (0.0, -1.0), written_once), st.just(torch.log_))(check))()
    figure(f"{tried} results under detect(rescan_every=1), fresh and in place: counts and first index are NumPy's")
