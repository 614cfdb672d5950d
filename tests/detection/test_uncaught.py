"""An uncaught error shows the frames of the user, then the report."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.processes import run_python

UNCAUGHT = """
import torch, torchnan
layer = torch.nn.Linear(2, 2)
with torchnan.detect():
    (layer(torch.ones(1, 2)) * float("nan")).sum().backward()
"""
RUN = "import runpy; runpy.run_path('train.py')"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(UNCAUGHT)
    return tmp_path


def test_it_is_laid_out_on_a_terminal(folder):
    shown = run_python(RUN, cwd=folder, FORCE_COLOR="1", COLUMNS="90").stderr
    assert "\x1b[1;31mtorchnan: NaN" in shown
    assert re.search(r"\.\.\. \d+ frames of PyTorch", shown)
    assert "torch/_tensor.py" not in shown
    assert "5 | (layer(torch.ones(1, 2))" in ANSI.sub("", shown)


def test_frames_of_packages_are_folded_in_plain_text_too(folder):
    shown = run_python(RUN, cwd=folder).stderr
    assert re.search(r"\n  \.\.\. \d+ frames of PyTorch\n", shown)
    assert "site-packages" not in shown
    assert 'train.py", line 5' in shown
    assert "\ntorchnan.NonFiniteError: torchnan: NaN at step 1" in shown


def test_every_frame_is_shown_on_request(folder):
    shown = run_python(RUN, cwd=folder, TORCHNAN_TRACEBACK="full").stderr
    assert "torch/_tensor.py" in shown
    assert "frames of" not in shown


def test_a_value_that_is_not_one_is_refused(folder):
    ended = run_python("import torch", TORCHNAN="raise", TORCHNAN_TRACEBACK="long")
    assert ended.returncode != 0
    assert "TORCHNAN_TRACEBACK=long cannot be used: it takes short or full." in ended.stderr


def test_all_frames_are_shown_if_none_is_the_users(tmp_path):
    code = """
import sys
from torchnan.detection.uncaught import folded
import json
try:
    json.loads("{")
except ValueError as error:
    print(folded(error.__traceback__.tb_next))
"""
    assert "json/decoder.py" in run_python(code).stdout


def test_a_hook_of_the_program_stays(folder):
    hook = "import sys; sys.excepthook = lambda *_: print('mine', file=sys.stderr); "
    assert run_python(hook + RUN, cwd=folder).stderr == "mine\n"


def test_a_run_without_an_error_keeps_its_hook():
    code = """
import sys, torch, torchnan
with torchnan.detect():
    torch.ones(3).log().sum().item()
assert sys.excepthook is sys.__excepthook__
"""
    assert run_python(code, FORCE_COLOR="1").stderr == ""


def test_torchrun_is_told_the_report(folder):
    file = folder / "error.json"
    run_python(RUN, cwd=folder, TORCHELASTIC_ERROR_FILE=str(file))
    extra = json.loads(file.read_text())["message"]["extraInfo"]
    assert "torchnan: NaN at step 1" in extra["py_callstack"]
    assert "frames of PyTorch" in extra["py_callstack"]
    assert extra["timestamp"].isdigit()


def test_an_error_file_that_is_there_is_kept(folder):
    file = folder / "error.json"
    file.write_text("{}")
    run_python(RUN, cwd=folder, TORCHELASTIC_ERROR_FILE=str(file))
    assert file.read_text() == "{}"
