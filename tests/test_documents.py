"""The first pages of docs/ that users read: each program in them runs, and each command prints what the page shows."""

from __future__ import annotations

import re

import pytest

from tests.support.document_examples import run_examples
from tests.support.processes import REPOSITORY, run_python


@pytest.mark.breadth(1)
@pytest.mark.parametrize(
    "page", ["start", "reports", "debugging", pytest.param("recipes", marks=pytest.mark.breadth(0))]
)
def test_the_examples_print_the_output_on_the_page(page, tmp_path):
    """To write the output of a command into the page: python -m tests.support.document_examples docs/PAGE.md."""
    examples = run_examples(REPOSITORY / "docs" / f"{page}.md", tmp_path)
    assert examples
    for example in examples:
        assert example.is_as_shown(), f"$ {example.command}\n{example.printed}"


def test_the_first_page_has_the_report_of_the_readme():
    _, report = re.findall(r"```(?:python)?\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)[:2]
    assert report in (REPOSITORY / "docs" / "index.md").read_text()


def test_the_public_names_are_the_same_wherever_they_are_listed():
    page = (REPOSITORY / "docs" / "api.md").read_text()
    documented = set(re.findall(r"^\.\. auto\w+:: torchnan\.(\w+)$", page, re.MULTILINE))
    code = "import torchnan; print(*dir(torchnan)); print(*torchnan.__all__)"
    shown, listed = (set(line.split()) for line in run_python(code).stdout.splitlines())
    assert listed == documented
    assert {name for name in shown if not name.startswith("__")} == documented
    assert {"__version__", "__all__"} <= shown
    assert "public interface is `torchnan.__all__`" in (REPOSITORY / "docs" / "release.md").read_text()


def _sources():
    suffixes = {".h", ".cpp", ".py", ".pyi"}
    return [p for folder in ("csrc", "torchnan") for p in (REPOSITORY / folder).rglob("*") if p.suffix in suffixes]


def test_functions_on_the_design_page_exist():
    """A function that was renamed would be looked for in vain."""
    page = (REPOSITORY / "docs" / "design.md").read_text()
    names = {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)\(\)`", page)}
    assert "is_harmless" in names
    code = "\n".join(path.read_text() for path in _sources())
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", code)] == []


# What stands wherever the code tells one harm, field or type of device from another.
WITNESSES = {
    "a harm": r"HarmKind::k(Guard|OptimizerState)\b|report_tensors\(\"optimizer_state",
    "a field of a finding": r"\b(lineage_omitted|module_type)\b",
    "a type of device": r'\bkCUDA\b|is_cuda\(|hasROCM|"cuda", ',
}


@pytest.mark.parametrize("change", WITNESSES)
def test_the_map_names_every_place_of_a_change(change):
    """A place that the map lacks is forgotten by whoever makes the change."""
    page = (REPOSITORY / "docs" / "design.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {change} |"))
    named = set(re.findall(r"(\w+)\.(?:cpp|h|py|j2)\b", row))
    found = {path.stem for path in _sources() if re.search(WITNESSES[change], path.read_text())}
    assert found
    assert found - named == set()
