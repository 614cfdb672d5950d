"""The tables of `make bench` name the commit that was measured."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import steps, tables
from benchmarks.step_result import DETECT, KEEPING_DETECT, KEEPING_OFF, OFF, OFF_AGAIN, Result

TIMES = {
    OFF: [1.0] * 6,
    OFF_AGAIN: [1.0] * 6,
    DETECT: [1.02] * 6,
    KEEPING_OFF: [2.0] * 6,
    KEEPING_DETECT: [2.06] * 6,
    "set_detect_anomaly": [2.0] * 6,
}
PAGE = "Before.\n<!-- make bench -->\nold\n<!-- end -->\nAfter.\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A clean repository with the two pages."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "docs" / "performance.md").write_text(PAGE)
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "pages"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    monkeypatch.setattr(tables, "REPOSITORY", tmp_path)
    return tmp_path


def test_writing_is_refused_with_uncommitted_changes(repository, monkeypatch, capsys):
    """Nothing is measured before. Fails without the check in main()."""
    (repository / "README.md").write_text(PAGE + "changed\n")
    monkeypatch.setattr(sys, "argv", ["steps", "--write", "--steps", "unknown"])
    with pytest.raises(SystemExit):
        steps.main()
    assert "commit first: README.md" in capsys.readouterr().err
    assert (repository / "README.md").read_text() == PAGE + "changed\n"


def test_both_pages_name_the_clean_commit(repository):
    """Fails when write() asks for the commit after it has changed README."""
    assert tables.uncommitted() == []
    commit = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    tables.write({"mlp": Result("MLP 8x64", TIMES, {})}, tables.machine(1))
    assert "| `detect()` | 1.02 |" in (repository / "README.md").read_text()
    page = (repository / "docs" / "performance.md").read_text()
    assert f"Measured at {commit}, " in page
    assert "| MLP 8x64 | 1.000 | 1.020 | 1.030 | 2.000 |" in page
    assert tables.uncommitted() == ["README.md", "docs/performance.md"]


def test_a_disturbed_measurement_is_not_written(repository):
    """Fails when write() does not look at the row that times the same thing twice."""
    disturbed = {**TIMES, OFF_AGAIN: [1.011] * 6}
    with pytest.raises(ValueError, match=r"differs by more than a percent: GPT-2 \(1\.011\)\. Wait until"):
        tables.write({"mlp": Result("MLP", TIMES, {}), "gpt2": Result("GPT-2", disturbed, {})}, tables.machine(1))
    assert tables.uncommitted() == []


def test_cycles_are_named_as_such(repository):
    tables.write({"mlp": Result("MLP", TIMES, {}, is_in_cycles=True)}, tables.machine(1))
    assert "In cycles of one thread, not in time." in (repository / "docs" / "performance.md").read_text()


@pytest.mark.parametrize(("spread", "anomaly", "detection"), [(0.01, "2.00", "1.02"), (0.1, "2.0", ""), (0.5, "2", "")])
def test_the_short_table_shows_what_is_known(spread, anomaly, detection):
    """A ratio of detect() that may be more than a percent larger or smaller is left out."""
    times = {name: [*row[:3], *(time + spread for time in row[3:])] for name, row in TIMES.items()}
    times[OFF] = TIMES[OFF]
    shown = tables.short_table({"mlp": Result("MLP", times, {})})
    assert f"| `set_detect_anomaly` | {anomaly} |\n| `detect()` | {detection} |\n" in shown


def test_each_mode_of_a_default_run_has_a_column():
    """Fails if the name of a mode has a comma, at which the option --modes is split."""
    modes = ",".join(steps.MODES).split(",")
    assert {OFF_AGAIN, *modes} == set(tables.ROWS)
