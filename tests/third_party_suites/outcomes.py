"""The outcomes of the tests of a run: written by this file as a pytest plugin, read and compared by run.py.

One line of JSON per test and phase, written at once, so that a crash loses nothing before it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
from pathlib import Path


def _write(test: str, what: str, outcome: str, told: str = "") -> None:
    with open(os.environ["SUITES_OUTCOMES"], "a") as file:
        file.write(json.dumps({"test": test, "what": what, "outcome": outcome, "told": told[-2000:]}) + "\n")


def pytest_collectreport(report):
    if report.failed:
        _write(report.nodeid, "collect", "failed", report.longreprtext)


def pytest_runtest_setup():
    import numpy
    import torch

    torch.manual_seed(0)  # some suites draw the values that they assert on
    random.seed(0)
    numpy.random.seed(0)


def pytest_runtest_logreport(report):
    # Setup and teardown are outcomes of their own where they are not what one expects of them.
    if report.when == "call" or not report.passed:
        expected = "x" if hasattr(report, "wasxfail") else ""
        _write(report.nodeid, report.when, expected + report.outcome, report.longreprtext if report.failed else "")


def pytest_warning_recorded(warning_message, nodeid):
    _write(nodeid, "warning", warning_message.category.__name__)


def pytest_sessionfinish(exitstatus):
    _write("(the whole run)", "end", str(int(exitstatus)))


@dataclasses.dataclass
class Run:
    """One run of a suite."""

    outcomes: dict[str, str]  # by test
    warnings: set[tuple[str, str]]  # test, category
    told: dict[str, str]  # by failed test
    seconds: float  # of processor time

    def differences(self, other: Run) -> dict[str, tuple[str, str]]:
        """Tests with another outcome, those missing from one of the runs among them."""
        tests = {**self.outcomes, **other.outcomes}
        pairs = {test: (self.outcomes.get(test, "not run"), other.outcomes.get(test, "not run")) for test in tests}
        return {test: pair for test, pair in pairs.items() if pair[0] != pair[1]}


def read(path: Path, seconds: float) -> Run:
    """A run from its lines."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    outcomes: dict[str, str] = {}
    for line in lines:
        if line["what"] != "warning":
            outcome = line["outcome"] if line["what"] == "call" else f"{line['what']} {line['outcome']}"
            so_far = outcomes.get(line["test"])
            outcomes[line["test"]] = f"{so_far}, {outcome}" if so_far and so_far != outcome else outcome
    return Run(
        outcomes,
        {(line["test"], line["outcome"]) for line in lines if line["what"] == "warning"},
        {line["test"]: line["told"] for line in lines if line["told"]},
        seconds,
    )
