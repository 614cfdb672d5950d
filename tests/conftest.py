"""The state that every test starts from and must restore, and which tests run: the short forms, or the long ones."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

# Several processes share few cores, and a thread that waits for another one must not take a core for that.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import torch._dynamo  # as the first optimizer would, in the middle of a test

from torchnan._load import _C

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "tests" / "guarantees" / "data" / "figures.json"
GUARANTEES = ROOT / "docs" / "guarantees.md"  # written from the figures
PASSED = pytest.StashKey[set[str]]()  # of a soak: the tests that earlier ones have run at this commit


@pytest.fixture(autouse=True)
def clean_slate():
    """Seeds, and fails a test that leaves detection on or tensors remembered."""
    torch.manual_seed(0)
    yield
    key = torch._C._parse_dispatch_key(_C.interceptor_key_name())
    assert _C.open_scopes() == 0
    assert not _C.has_nonfinite()
    assert not torch._C._dispatch_tls_local_include_set().has(key)


@pytest.fixture(autouse=True, scope="module")
def young_heap():
    """Freezes objects left by earlier tests and their libraries: neither garbage collection nor a report's search
    visits them again."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="the long forms, alone; writes the guarantees' figures")
    parser.addoption(
        "--tier",
        choices=["all", "sample", "rest"],
        default="all",
        help="sample: of tests with many cases, some that a fixed seed draws; rest: what the sample leaves out",
    )


def pytest_collection_modifyitems(config, items):
    sampled = _sample(items)

    def runs(item) -> bool:
        is_long = item.get_closest_marker("slow") is not None
        if config.getoption("--soak"):
            is_in_soak = is_long or item.get_closest_marker("guarantee") is not None
            return is_in_soak and item.nodeid not in config.stash[PASSED]
        return (
            not is_long
            and {"all": True, "sample": item in sampled, "rest": item not in sampled}[config.getoption("--tier")]
        )

    config.hook.pytest_deselected(items=[item for item in items if not runs(item)])
    # The longest first: none is left over for one core at the end.
    items[:] = sorted((item for item in items if runs(item)), key=lambda item: item.get_closest_marker("slow") is None)


def _sample(items) -> set[pytest.Item]:
    """Returns every test, but of those marked as breadth only as many cases as the marker says: always the same ones,
    spread evenly over the parameters."""
    sampled, cases = set(), defaultdict(list)
    for item in items:
        breadth = _breadth(item)
        if breadth is None:
            sampled.add(item)
        elif item.get_closest_marker("slow") is None:
            cases[item.nodeid.split("[")[0], breadth].append(item)
    for (test, count), group in cases.items():
        draw = random.Random(test)
        slices = [group[i * len(group) // count : (i + 1) * len(group) // count] for i in range(count)]
        sampled.update(draw.choice(part) for part in slices if part)
    return sampled


def _breadth(item: pytest.Item) -> int | None:
    """Returns how many cases the sample draws; ``None`` if it takes all. A marker of the case overrules that of its
    test, which pytest would call the closest."""
    own = [marker for marker in item.own_markers if marker.name == "breadth"]
    marker = own[-1] if own else item.get_closest_marker("breadth")
    return None if marker is None else marker.args[0]


@pytest.fixture
def soak(request) -> bool:
    """Whether this is the long form."""
    return request.config.getoption("--soak")


@pytest.fixture
def figure(request):
    """Records a measured figure: ``figure("1,000 forks, 0 hangs")``. One sentence a test, in docs/guarantees.md.

    The cases of a parametrised test share one sentence if it has counts, which are added up:
    ``figure("{forks:,} forks, 0 hangs", forks=10)``.
    """
    marker = request.node.get_closest_marker("guarantee")

    def tell(text: str, **counts: int) -> None:
        test = request.node.nodeid.split("[")[0] if counts else request.node.nodeid
        request.node.user_properties.append(("figure", [marker.args[0], test, text, counts]))
        print(text.format(**counts) if counts else text)

    return tell


class Figures:
    """Collects the figures of the tests from every process that runs some, and writes them to a file after a soak.

    A soak takes hours. Each test that passes is noted in a file of the commit, and the next soak goes on with the
    others.
    """

    def __init__(self, notes: Path | None) -> None:
        self.notes = notes
        self.passed: set[str] = set()
        self.told: dict[str, list[object]] = {}
        self.sums: dict[str, Counter[str]] = defaultdict(Counter)
        if notes is not None and notes.exists():
            for line in notes.read_text().splitlines():
                self._add(*json.loads(line))

    def _add(self, test: str, figures: list[list[object]]) -> None:
        self.passed.add(test)
        for number, case, text, counts in figures:
            self.sums[case].update(counts)
            self.told[case] = [number, text.format(**self.sums[case]) if counts else text]

    def pytest_configure_node(self, node) -> None:  # of xdist: every process must collect the same tests
        node.workerinput["passed"] = sorted(self.passed)

    def pytest_runtest_logreport(self, report) -> None:
        if report.when != "call" or not report.passed:
            return
        figures = [value for name, value in report.user_properties if name == "figure"]
        self._add(report.nodeid, figures)
        if self.notes is not None:
            self.notes.parent.mkdir(parents=True, exist_ok=True)
            with self.notes.open("a") as file:
                print(json.dumps([report.nodeid, figures]), file=file)

    def pytest_sessionfinish(self) -> None:
        if not self.told:
            return
        kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        FIGURES.write_text(json.dumps({**kept, **self.told}, indent=1, sort_keys=True) + "\n")
        from tests.support import write_guarantees_page

        write_guarantees_page.write()


def _notes_of_commit() -> Path | None:
    """Returns the file of this commit; ``None`` if there are changes that are not committed, but for the figures."""

    def git(*arguments: str | Path) -> str:
        command = ["git", "-C", ROOT, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{FIGURES}", f":!{GUARANTEES}")
    return None if changes else ROOT / "build" / "soak" / f"{git('rev-parse', '--short', 'HEAD')}.jsonl"


class FailuresAtOnce:
    """Prints a line for a failure when it happens; its traceback comes at the end, with the others."""

    def __init__(self, config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash and crash.message else "see below"
            self.config.get_terminal_writer().line(f"\nFAILED {report.nodeid} - {why}")


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.stash[PASSED] = set(config.workerinput.get("passed", ()))
        return
    config.pluginmanager.register(FailuresAtOnce(config))
    if config.getoption("--soak"):
        figures = Figures(_notes_of_commit())
        config.stash[PASSED] = figures.passed
        config.pluginmanager.register(figures)
