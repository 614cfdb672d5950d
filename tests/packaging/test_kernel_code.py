"""The code that nvcc makes of the scan has the loads that its speed depends on."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENCODINGS = 8
LOAD = r"\tld\.global\.nc\.v4\.u32 [^\n]*\n"
BETWEEN = r"(?:\t//[^\n]*\n|\tadd\.s64 [^\n]*\n)*"  # comments, and the next address


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_four_wide_loads_of_each_encoding_are_under_way_at_a_time(tmp_path):
    code = tmp_path / "scan.ptx"
    includes = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc/include'}"]
    kernel = ROOT / "csrc/device/cuda/scan_kernel.cu"
    subprocess.run(["nvcc", "-std=c++17", "-arch=sm_90", "-ptx", *includes, kernel, "-o", code], check=True)
    contiguous = re.search(r"\.entry \w+4scanE.*?\n}\n", code.read_text(), re.DOTALL)[0]
    loads = [run.count("ld.global") for run in re.findall(f"(?:{LOAD}{BETWEEN})+", contiguous)]
    assert sorted(loads) == [1] * ENCODINGS + [4] * ENCODINGS  # the rest of a chunk is read one by one
