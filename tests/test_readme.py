"""The first screen of the README is a promise: its example is run, and its output compared."""

from __future__ import annotations

import re
import sys

from tests.support.processes import REPOSITORY, run


def test_the_example_prints_the_report_in_the_readme(tmp_path):
    readme = (REPOSITORY / "README.md").read_text()
    code, output = re.findall(r"```(?:python)?\n(.*?)```", readme, re.DOTALL)[:2]
    (tmp_path / "train.py").write_text(code)
    ended = run([sys.executable, "train.py"], cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr[ended.stderr.index("torchnan.NonFiniteError") :] == output


def test_every_file_that_the_documents_link_to_exists():
    for document in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("tests/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
