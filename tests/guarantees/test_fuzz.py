"""Whatever bytes a reader gets, it returns the readable part, or its own error.

The inputs in ``fuzz/corpus`` are hostile, or once broke something; in the soak, fuzzers search for more.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

import torchnan
from tests.guarantees.fuzz import log_file
from tests.guarantees.fuzz.log_file import is_for_a_terminal
from tests.support.processes import REPOSITORY, run

pytestmark = pytest.mark.guarantee(12)

FUZZ = Path(__file__).with_name("fuzz")
SECONDS = int(os.environ.get("FUZZ_SECONDS", "600"))
SLACK = 300  # seconds to begin and to end in; only a hang reaches it
PYTHON = ("log_file", "capture", "settings")


def corpus(reader):
    return sorted((FUZZ / "corpus" / reader).iterdir())


PAST = [pytest.param(reader, path, id=f"{reader}-{path.stem}") for reader in PYTHON for path in corpus(reader)]


@pytest.mark.parametrize(("reader", "path"), PAST)
def test_a_past_finding_is_none_any_more(reader, path):
    """Fails when the fault that an input is named after returns: seen with code as the name of an operator."""
    importlib.import_module(f"tests.guarantees.fuzz.{reader}").one(path.read_bytes())


@pytest.mark.parametrize("path", corpus("finding"), ids=lambda path: path.stem)
def test_a_line_is_a_finding_or_a_value_error(path):
    """The same inputs run through the C++ harness in ``tests/cpp``."""
    with contextlib.suppress(ValueError):
        finding = torchnan.Finding.from_json(path.read_bytes())
        assert is_for_a_terminal(str(finding))
        assert torchnan.Finding.from_json(finding.to_json()).to_json() == finding.to_json()


# -- fuzzers

HARNESS_SOURCES = (
    *(f"csrc/report/{name}.cpp" for name in ("enum_names", "finding_json", "finding_json_reader", "finding_text")),
    *(f"csrc/report/{name}.cpp" for name in ("number_text", "own_frame", "repetitions", "truncate")),
    *(f"csrc/base/{name}.cpp" for name in ("format", "printable")),
)


@pytest.mark.parametrize("source", HARNESS_SOURCES)
def test_a_source_of_the_harness_is_there(source):
    """Fails when a file is renamed: the fuzzer itself runs only in the soak."""
    assert (REPOSITORY / source).exists()


def told(output: str) -> str:
    """libFuzzer's summary of a run: executions and coverage."""
    executions = int(re.findall(r"stat::number_of_executed_units: (\d+)", output)[-1])
    coverage = re.findall(r"cov: (\d+)", output)[-1]
    return f"{executions:,} executions in {SECONDS} s, {coverage} edges, 0 findings"


def fuzz(command, reader, seeds, tmp_path):
    """Runs until the time is over; a fault is an error that prints the path of its input."""
    for name in ("new", "seeds"):
        (tmp_path / name).mkdir()
    for i, seed in enumerate(seeds):
        (tmp_path / "seeds" / f"{i}").write_bytes(seed)
    limits = f"-max_total_time={SECONDS} -max_len=16384 -len_control=0 -timeout=60 -rss_limit_mb=4096"
    folders = [tmp_path / "new", tmp_path / "seeds", FUZZ / "corpus" / reader]
    ended = run(
        [*command, *map(str, folders), *limits.split(), "-print_final_stats=1", f"-artifact_prefix={tmp_path}/"],
        cwd=REPOSITORY,
        deadline=SECONDS + SLACK,
        OMP_NUM_THREADS="1",
    )
    assert ended.returncode == 0, ended.stderr[-8000:]
    return told(ended.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("reader", PYTHON)
def test_a_fuzzer_of_a_python_reader_finds_nothing(reader, tmp_path, figure):
    pytest.importorskip("atheris")
    seeds = importlib.import_module(f"tests.guarantees.fuzz.{reader}").seeds()
    command = [sys.executable, "-m", "tests.guarantees.fuzz", reader]
    figure(f"{reader}: {fuzz(command, reader, seeds, tmp_path)}")


@pytest.fixture
def harness(tmp_path):
    """Runs the reader and the writers of findings with libFuzzer and the sanitizers of addresses and undefined
    behaviour."""
    compiler = shutil.which("clang++")
    if compiler is None:
        pytest.skip("no clang++ here: apt-get install clang libclang-rt-dev")
    json = importlib.util.find_spec("nlohmann_json")
    found = [f"{folder}/include" for folder in (json.submodule_search_locations if json else [])]
    includes = ["csrc", "csrc/include", *found, f"{Path(torch.__file__).parent}/include"]
    built = run(
        [
            *(compiler, "-std=c++20", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"),
            *(f"-I{folder}" for folder in includes),
            *(*HARNESS_SOURCES, str(FUZZ / "finding.cpp"), "-o", str(tmp_path / "harness")),
        ],
        cwd=REPOSITORY,
        deadline=600,
    )
    assert built.returncode == 0, built.stderr
    return str(tmp_path / "harness")


@pytest.mark.slow
def test_a_fuzzer_of_findings_in_cpp_finds_nothing(harness, tmp_path, figure):
    lines = log_file.seeds()[0].splitlines()
    figure(f"finding (C++, ASan, UBSan): {fuzz([harness], 'finding', lines, tmp_path)}")
