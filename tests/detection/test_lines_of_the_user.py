"""The report shows the user's lines, whatever lies between them and the operation."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.processes import run
from torchnan import findings

LIBRARY = """
import torch
def f1(x): return torch.log(x).sum()
def f2(x): return f1(x)
def f3(x): return f2(x)
def f4(x): return f3(x)
def f5(x): return f4(x)
def f6(x):
    loss = f5(x)
    loss.backward()
"""
USER = """import torch, deeplib
def train():
    x = torch.zeros(3, requires_grad=True)
    deeplib.f6(x)

train()
"""
FINDER = """
import importlib.util, sys
class Finder:  # as setuptools makes one for an editable install
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, FILE) if name == "deeplib" else None
sys.meta_path.append(Finder)
"""
DEEP = """import torch
def down(n):
    return torch.zeros(1).log().sum().item() if n == 0 else down(n - 1)

down(200)
"""


@pytest.fixture
def program(tmp_path):
    """A script that uses a library beside it, which is found by a search path, by an editable install or by itself."""
    folder = tmp_path / "own"
    for name in ("libs", "site-packages", "editable"):
        (folder / name).mkdir(parents=True)
        (folder / name / "deeplib.py").write_text(LIBRARY)
    url = (folder / "editable").as_uri()
    about = {"url": url, "dir_info": {"editable": True}}
    distribute(folder / "found", **{"direct_url.json": json.dumps(about)})
    finder = FINDER.replace("FILE", repr(str(folder / "editable" / "deeplib.py")))
    (folder / "found" / "sitecustomize.py").write_text(finder)
    (folder / "user.py").write_text(USER)
    return folder


def distribute(folder, **files):
    """Writes the metadata of an installed package into a folder."""
    about = folder / "deeplib-1.0.dist-info"
    about.mkdir(parents=True)
    files["METADATA"] = "Metadata-Version: 2.1\nName: deeplib\nVersion: 1.0\n"
    for name, text in files.items():
        (about / name).write_text(text)


def found(folder, script, **variables):
    log = folder / "log.jsonl"
    ended = run([sys.executable, script], cwd=folder, TORCHNAN="log", TORCHNAN_LOG=str(log), **variables)
    assert ended.returncode == 0, ended.stderr
    return findings.read(log).findings[0]


def check_library(finding, program):
    """The frames of the library, and those of the program behind them."""
    assert [frame.installed for frame in finding.stack] == [True] * 6 + [False] * 2
    assert (finding.harm.file, finding.harm.line) == (str(program / "user.py"), 4)
    stack = str(finding).partition("\n  stack     ")[2].partition("\n  see")[0].splitlines()
    assert [row.split()[-1] for row in stack] == ["f1", "f2", "f3", "f4", "more", "train", "<module>"]


@pytest.mark.parametrize("path", ["libs", "site-packages", "found"])
def test_a_library_is_known_by_its_place_or_its_metadata(program, path):
    check_library(found(program, "user.py", PYTHONPATH=str(program / path)), program)


def test_a_library_that_was_installed_beside_the_script_is_known_by_its_record(program):
    """As by ``pip install --target=.``."""
    (program / "deeplib.py").write_text(LIBRARY)
    distribute(program, RECORD="deeplib.py,sha256=1,100\nMETADATA,,\n")
    check_library(found(program, "user.py"), program)


def test_a_folder_of_the_program_is_the_users_whatever_its_name(program):
    (program / "site-packages" / "user.py").write_text(USER)
    finding = found(program, "site-packages/user.py")
    assert not any(frame.installed for frame in finding.stack)


def test_what_lies_around_the_script_is_the_users(program):
    """As ``PYTHONPATH=. python scripts/train.py`` in the folder of a project."""
    scripts = program / "libs" / "scripts"
    scripts.mkdir()
    (scripts / "user.py").write_text(USER)
    finding = found(program, "libs/scripts/user.py", PYTHONPATH=str(program / "libs"))
    assert not any(frame.installed for frame in finding.stack)
    assert finding.harm.file == str(program / "libs" / "deeplib.py")


def test_the_outermost_line_is_kept_of_a_deep_stack(tmp_path):
    (tmp_path / "deep.py").write_text(DEEP)
    finding = found(tmp_path, "deep.py")
    assert (finding.stack[0].line, finding.stack[-1].function) == (3, "<module>")
    assert "deep.py:5 <module>\n  see " in str(finding)
