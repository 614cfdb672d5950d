"""The tables that `make bench` writes, with the line that names their origin."""

from __future__ import annotations

import datetime
import platform
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.step_result import DETECT, OFF_AGAIN
from tests.support import marked_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.step_result import Result
    from benchmarks.timing import Ratio

REPOSITORY = Path(__file__).resolve().parents[1]
IN_README = ("mlp", "gpt2", "gpt2-bf16", "bert", "resnet50", "llama", "diffusion", "mamba", "policy")
ROWS = {
    "off": "off",
    "off again (A/A)": "off again (A/A)",
    "detect()": "`detect()`",
    "detect() (malloc keeps memory)": "`detect()`, malloc keeps memory",
    "StepGuard": "`StepGuard`",
    "set_detect_anomaly": "`set_detect_anomaly`",
    "forward hooks": "forward hooks",
    "Python dispatch mode": "dispatch mode in Python",
    "Inductor's nan_asserts": "`nan_asserts`",
}


def machine(threads: int) -> str:
    """Where and when a table was measured."""
    return f"{_commit()}, {datetime.date.today()}, PyTorch {torch.__version__}, {threads} threads, {_processor()}"


def uncommitted() -> list[str]:
    """Returns the files that differ from the commit; files that git does not know are left out.

    Raises:
        subprocess.CalledProcessError: this is not a git repository.
    """
    git = ["git", "-C", str(REPOSITORY), "diff", "--name-only", "HEAD"]
    return subprocess.run(git, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def write(results: Mapping[str, Result], origin: str) -> None:
    """Writes the tables in README and in docs/performance.md.

    Args:
        results: by workload.
        origin: as :func:`machine` returned it before the first measurement.

    Raises:
        ValueError: the machine disturbs a workload. Nothing is written.
    """
    disturbed = [result for result in results.values() if not result.is_quiet]
    if disturbed:
        rows = ", ".join(f"{result.name} ({result.ratios[OFF_AGAIN].median:.3f})" for result in disturbed)
        raise ValueError(
            f"nothing is written: the same step, timed twice, differs by more than a percent: {rows}. Wait until the "
            "machine is quiet, or measure with --cycles, which are written as such."
        )
    marked_tables.write(REPOSITORY / "README.md", "make bench", short_table(results))
    is_in_cycles = any(result.is_in_cycles for result in results.values())
    unit = " In cycles of one thread, not in time." if is_in_cycles else ""
    long = f"{long_table(results)}\nMeasured at {origin}.{unit}\n"
    marked_tables.write(REPOSITORY / "docs" / "performance.md", "make bench", long)


def short_table(results: Mapping[str, Result]) -> str:
    """A column for each workload that the README shows: anomaly mode, detect(), and detect() of the compiled step. A
    ratio of detect() is shown only if it is known within a percent to each side."""
    columns = [key for key in IN_README if key in results]
    compiled = {key: results[f"{key}-compiled"] for key in columns if f"{key}-compiled" in results}
    rows = {
        "`set_detect_anomaly`": [_known_digits(results[key].ratios["set_detect_anomaly"]) for key in columns],
        "`detect()`": [_exact_cell(results[key]) for key in columns],
        "`detect()`, compiled": [_exact_cell(compiled[key]) if key in compiled else "" for key in columns],
    }
    heads = [results[key].name.split()[0].rstrip(",") + (", bf16" if key.endswith("-bf16") else "") for key in columns]
    lines = [_row("time of a step", heads), _row("---", ["---"] * len(columns))]
    return "".join(lines + [_row(name, cells) for name, cells in rows.items()])


def long_table(results: Mapping[str, Result]) -> str:
    """A row for each workload."""
    modes = [mode for mode in ROWS if any(mode in result.ratios for result in results.values())]
    lines = [_row("step", [ROWS[mode] for mode in modes]), _row("---", ["---"] * len(modes))]
    return "".join(lines + [_row(result.name, [_cell(result, mode) for mode in modes]) for result in results.values()])


def _exact_cell(result: Result) -> str:
    """The median of detect(); nothing if its interval is wider than a percent to each side."""
    ratio = result.ratios[DETECT]
    return f"{ratio.median:.2f}" if ratio.is_within_a_percent else ""


def _known_digits(ratio: Ratio) -> str:
    """The median, with a digit less for each tenfold of its interval."""
    width = ratio.high - ratio.low
    return f"{ratio.median:.{2 if width <= 0.02 else 1 if width <= 0.2 else 0}f}"


def _cell(result: Result, mode: str) -> str:
    """The median; with its interval if that is wider than a percent to each side."""
    if mode not in result.ratios:
        return ""
    ratio = result.ratios[mode]
    wide = "" if ratio.is_within_a_percent else f" ({ratio.low:.2f}-{ratio.high:.2f})"
    return f"{ratio.median:.3f}{wide}"


def _row(head: str, cells: list[str]) -> str:
    return f"| {head} | {' | '.join(cells)} |\n"


def _commit() -> str:
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "no commit"


def _processor() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()
