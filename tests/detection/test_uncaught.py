"""An uncaught error shows the frames of the user, then the report."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.processes import run, run_python
from tests.support.rank_programs import launcher

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


WHAT_NEXT = (
    "torchnan: what next: TORCHNAN=breakpoint stops there, TORCHNAN_HTML=page.html draws it, torchnan.try_remedies() "
    "tries what mends it\n"
)


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}, {"TORCHNAN_TRACEBACK": "full"}])
def test_the_last_line_says_what_to_do_next(folder, variables):
    shown = run_python(RUN, cwd=folder, **variables).stderr
    assert shown.count("what next") == 1
    assert shown.endswith(WHAT_NEXT)


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


def test_the_hook_goes_with_the_report():
    code = """
import gc, sys, torch, torchnan
plain = sys.excepthook
def report():
    with torchnan.detect():
        torch.ones(3).neg().log().sum().item()
kept = []
for _ in range(2):
    try:
        report()
    except torchnan.NonFiniteError as error:
        kept.append(error.with_traceback(None))
for left in (1, 0):
    assert sys.excepthook is not plain
    del kept[left]
    gc.collect()
assert sys.excepthook is plain
"""
    ended = run_python(code)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("chained", ["raise KeyError('mine')", "raise KeyError('mine') from error"])
def test_the_error_of_the_program_is_shown_as_without_torchnan(chained, folder):
    code = f"""
import sys, traceback
def shown(*error):
    print("".join(traceback.format_exception(*error)), end="")
    plain(*error)
plain, sys.__excepthook__ = sys.__excepthook__, shown
sys.excepthook = shown
try:
    {RUN}
except RuntimeError as error:
    assert sys.excepthook is not shown
    {chained}
"""
    ended = run_python(code, cwd=folder)
    assert ended.returncode == 1
    assert "torch/_tensor.py" in ended.stderr
    assert ended.stdout == ended.stderr


RANKS = """
import signal, torch, torchnan
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    signal.pause()  # until torchrun ends it
with torchnan.detect():
    FAULT
"""
MADE = '(torch.ones(2, requires_grad=True) * float("nan")).sum().backward()'


def torchrun(folder, fault, **variables):
    (folder / "train.py").write_text(RANKS.replace("FAULT", fault))
    return run([*launcher(), "train.py"], cwd=folder, OMP_NUM_THREADS="1", **variables)


def test_torchrun_prints_the_report_and_ranks_fold_their_frames(tmp_path):
    ended = torchrun(tmp_path, MADE)
    of_rank, summary = ended.stderr.partition("Root Cause")[::2]
    assert ended.returncode == 1
    assert re.search(r"\n\[rank1\]:   \.\.\. \d+ frames of PyTorch\n\[rank1\]: torchnan\.NonFiniteError: ", of_rank)
    assert "[rank1]:   made by   aten::mul" in of_rank
    assert "torch/_tensor.py" not in of_rank
    assert "made by   aten::mul, output 0   at train.py:8" in summary
    assert "To enable traceback see" not in summary


def test_torchrun_prints_every_frame_on_request(tmp_path):
    ended = torchrun(tmp_path, MADE, TORCHNAN_TRACEBACK="full")
    assert ended.stderr.count("torch/_tensor.py") == 2  # of the rank, and in the summary


def test_another_error_of_a_rank_is_shown_as_without_torchnan(tmp_path):
    fault = """try:
        torch.ones(3).neg().log().sum().item()
    except torchnan.NonFiniteError as caught:
        kept = caught  # so that the hook stays
    assert kept
    torch.ones(2) @ torch.ones(3)"""
    ended = torchrun(tmp_path, fault)
    assert "[rank1]: RuntimeError: inconsistent tensor size" in ended.stderr
    assert "To enable traceback see" in ended.stderr


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
