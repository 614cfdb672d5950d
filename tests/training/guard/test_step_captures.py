"""Captures: everything that a bad step needs is saved, completely or not at all, and the step runs again elsewhere."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import stat
import sys
from typing import NamedTuple

import pytest
import torch
from torch import nn

import torchnan
from tests.support.forked_python import run_forked, run_forked_command
from tests.support.guarded_steps import Net, Training, bad_batch, batch_of, step_of
from tests.support.processes import REPOSITORY, run, run_python
from torchnan.capture import CaptureError, UnkeepableError
from torchnan.config.options import OptionError


def captured(tmp_path, **options):
    """A training that has captured its third step."""
    training = Training(captures=tmp_path / "captures", **options)
    for i in range(2):
        training.guard.step(batch_of(i))
    event = training.guard.step(bad_batch()).event
    return training, event


def test_a_capture_has_all_that_the_step_needs(tmp_path):
    training, event = captured(tmp_path)
    assert event.capture == str(tmp_path / "captures" / "rank-0-step-00000003")
    kept = torchnan.load_capture(event.capture)
    assert (kept.step, kept.rank, kept.ranks) == (3, 0, 1)
    assert kept.event["cause"] == "data"
    assert kept.event["bits"] == event.bits
    assert kept.report == str(event.finding)
    assert kept.versions["torch"] == torch.__version__
    torch.testing.assert_close(kept.weights, dict(training.model.named_parameters()), rtol=0, atol=0)
    torch.testing.assert_close(kept.buffers, dict(training.model.named_buffers()), rtol=0, atol=0)
    torch.testing.assert_close(kept.batches, [bad_batch()], rtol=0, atol=0, equal_nan=True)
    assert (kept.operation.op, kept.operation.overload) == ("aten::addmm", "")


def test_it_runs_again_with_the_same_bits_in_a_fresh_model(tmp_path):
    _, event = captured(tmp_path)
    torch.manual_seed(123)
    replayed = torchnan.load_capture(event.capture).replay(Net(), step_of)
    assert (replayed.verdict, replayed.same_bits) == ("persistent", True)
    assert replayed.finding.origin == "input"
    assert replayed.finding.step == 3


def test_a_spike_runs_again_too(tmp_path):
    training = Training(captures=tmp_path, norm_limit=1000.0)
    x, y = batch_of(0)
    event = training.guard.step((x, y + 1e6)).event
    assert event.cause == "norm"
    replayed = torchnan.load_capture(event.capture).replay(Net(), step_of)
    assert (replayed.verdict, replayed.same_bits, replayed.finding) == ("persistent", True, None)


def test_modules_in_evaluation_mode_stay_there(tmp_path):
    training = Training(captures=tmp_path)
    training.model.norm.eval()
    event = training.guard.step(bad_batch()).event
    model = Net()
    torchnan.load_capture(event.capture).restore(model)
    assert (model.training, model.norm.training, model.drop.training) == (True, False, True)


def test_a_step_that_was_mended_does_not_reproduce(tmp_path):
    _, event = captured(tmp_path)

    def mended(model, batch):
        return step_of(model, (batch[0].nan_to_num(), batch[1]))

    replayed = torchnan.load_capture(event.capture).replay(Net(), mended)
    assert (replayed.verdict, replayed.finding) == ("transient", None)


def test_files_are_json_and_safetensors_for_the_owner_alone(tmp_path):
    _, event = captured(tmp_path)
    files = sorted(os.listdir(event.capture))
    assert {name.rsplit(".")[-1] for name in files} == {"json", "safetensors"}
    for name in files:
        assert stat.S_IMODE(os.stat(os.path.join(event.capture, name)).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(event.capture).st_mode) == 0o700
    json.loads(
        (tmp_path / "captures" / "rank-0-step-00000003" / "capture.json").read_text(), parse_constant=pytest.fail
    )


def test_the_number_of_captures_is_bounded(tmp_path):
    training = Training(captures=tmp_path, max_captures=2, max_consecutive=9)
    events = [training.guard.step(bad_batch(i)).event for i in range(3)]
    assert [event.capture is None for event in events] == [False, False, True]
    assert events[2].notes == [f"not captured: {tmp_path} holds captures of 2 steps (max_captures)"]
    assert len(os.listdir(tmp_path)) == 2


def test_a_folder_that_was_removed_is_made_again(tmp_path):
    training = Training(captures=tmp_path / "captures", log=tmp_path / "logs" / "recovery.jsonl", max_consecutive=9)
    training.guard.step(bad_batch(0))
    for folder in ("captures", "logs"):
        shutil.rmtree(tmp_path / folder)
    event = training.guard.step(bad_batch(1)).event
    assert torchnan.load_capture(event.capture).step == 2
    assert event.notes == []
    assert len((tmp_path / "logs" / "recovery.jsonl").read_text().splitlines()) == 1
    assert training.guard.failures == {}


def test_so_is_their_size(tmp_path):
    training = Training(captures=tmp_path, max_capture_bytes=100)
    event = training.guard.step(bad_batch()).event
    assert event.capture is None
    assert "bytes are more than max_capture_bytes=100" in event.notes[0]
    assert os.listdir(tmp_path) == []


FULL = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from tests.support.guarded_steps import Training, bad_batch, batch_of
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
training = Training(captures=sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
event = training.guard.step(bad_batch()).event
assert event.capture is None, event
assert training.guard.step(batch_of(1)).applied
print(event.notes)
"""


@pytest.mark.breadth(1)
@pytest.mark.parametrize("room", [0, 100, 3000])
def test_no_room_on_the_disk_is_reported_and_training_continues(room, tmp_path):
    ended = run_python(FULL, str(tmp_path), str(REPOSITORY), str(room))
    assert ended.returncode == 0, ended.stderr
    assert "not captured: " in ended.stdout
    assert "cannot be written" in ended.stdout
    assert os.listdir(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import torch, torchnan
from tests.support.guarded_steps import Training, bad_batch, batch_of
torch.set_num_threads(1)

def options(folder):
    return dict(captures=folder / "captures", snapshot_every=1, snapshot_folder=folder / "snapshots")

def mortal(function):
    def wrapper(*args, **kwargs):
        global countdown
        countdown -= 1
        if countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapper

def train(folder):
    training = Training(**options(folder))
    training.guard.step(batch_of(0))
    for name in ("mkdir", "open", "fsync", "rename", "chmod", "close"):
        setattr(os, name, mortal(getattr(os, name)))
    training.guard.step(batch_of(1))
    training.model.a.weight.data.fill_(float("nan"))
    training.guard.step(batch_of(2))  # captured, and rolled back
    training.guard.step(batch_of(3))
    os._exit(0)

def look(folder):
    training = Training(**options(folder))
    assert training.guard.resume() is not None
    assert all(bool(p.isfinite().all()) for p in training.model.parameters())
    left = [path for kind in ("captures", "snapshots") for path in (folder / kind).iterdir()]
    assert not any(path.name.startswith(".") for path in left), left
    captures = list((folder / "captures").iterdir())
    for capture in captures:
        torchnan.load_capture(capture)
    return len(captures)

whole = []
first, stride = map(int, sys.argv[3:])
for moment in range(first, 10000, stride):
    countdown = moment
    folder = Path(sys.argv[1]) / str(moment)
    folder.mkdir()
    child = os.fork()
    if child == 0:
        train(folder)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    whole.append(look(folder))
    if status == 0:
        break
print("moments", len(whole), "captures", set(whole))
"""


KILLED_IN_PARTS = 6


@pytest.mark.breadth(1)
@pytest.mark.parametrize("part", range(KILLED_IN_PARTS))
def test_a_kill_leaves_whole_captures_and_snapshots_only(tmp_path, part):
    """At every one of the calls by which files come and go."""
    ended = run_forked(KILLED, str(tmp_path), str(REPOSITORY), str(part + 1), str(KILLED_IN_PARTS))
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    _, moments, _, captures = ended.stdout.strip().split("\n")[-1].split(maxsplit=3)
    assert int(moments) * KILLED_IN_PARTS > 40
    assert captures == "{0, 1}"


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    weight: float


class Pair(NamedTuple):
    first: object
    second: object


def test_batches_of_all_shapes_come_back(tmp_path):
    batch = Pair({"a": [Sample(torch.randn(2), 0.5)], 3: (1, "text", None, True)}, torch.ones(2, 3).t())

    def step(model, batch):
        return model(batch.first["a"][0].x) * float("nan")

    model = nn.Linear(2, 1)
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), step, captures=tmp_path)
    kept = torchnan.load_capture(guard.step(batch).event.capture).batches[0]
    assert type(kept) is Pair
    assert kept.first[3] == (1, "text", None, True)
    assert type(kept.first["a"][0]) is Sample
    torch.testing.assert_close(kept.first["a"][0].x, batch.first["a"][0].x)
    assert kept.second.stride() == (1, 3)


def test_unsupported_values_are_rejected_by_name_before_the_step_runs(tmp_path):
    ran = []
    model = nn.Linear(2, 1)
    guard = torchnan.StepGuard(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: ran.append(1), captures=tmp_path
    )
    with pytest.raises(UnkeepableError, match=r"batch\['images'\]\[1\]"):
        guard.step({"images": [torch.zeros(1), object()]})
    assert not ran


def test_captures_are_refused_without_the_library_that_writes_them(tmp_path, monkeypatch):
    """Fails if only the first bad step reveals it."""
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(OptionError, match=r"captures need safetensors: pip install safetensors\."):
        Training(captures=tmp_path)


def test_a_model_that_is_another_is_refused(tmp_path):
    _, event = captured(tmp_path)
    kept = torchnan.load_capture(event.capture)
    with pytest.raises(CaptureError, match=r"not the model that was captured: it has no parameter a\.bias, a\.weight"):
        kept.restore(nn.Linear(4, 8))
    other = Net()
    other.b = nn.Linear(8, 2)
    with pytest.raises(CaptureError, match=r"parameter b.weight is \(2, 8\) here and \(1, 8\) in the capture"):
        kept.restore(other)


def test_a_path_that_is_not_a_capture_is_rejected(tmp_path):
    with pytest.raises(CaptureError, match="there is no such folder"):
        torchnan.load_capture(tmp_path / "none")
    with pytest.raises(CaptureError, match=r"is not a capture: it has no contents\.json\. A capture is"):
        torchnan.load_capture(tmp_path)
    (tmp_path / "rank-1-step-00000007").mkdir()
    with pytest.raises(
        CaptureError, match=r"The folder has 1 capture inside: give one of them, such as .*/rank-1-step-00000007\."
    ):
        torchnan.load_capture(tmp_path)


# -- the command line

STEPS = "tests.support.guarded_steps"

PROGRAM = """
import torch
from tests.support.guarded_steps import Net, step_of

def both():
    return Net(), step_of

def mended():
    return Net(), lambda model, batch: step_of(model, (batch[0].nan_to_num(), batch[1]))
"""


def torchnan_command(*arguments, folder):
    (folder / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    return run_forked_command(*arguments, cwd=folder, PYTHONPATH=path)


def test_replay_on_the_command_line(tmp_path):
    _, event = captured(tmp_path)
    for arguments in (
        ["--step", "program:both"],
        ["--step", f"{STEPS}:step_of", "--model", f"{STEPS}:Net"],
    ):
        ended = torchnan_command("replay", event.capture, *arguments, folder=tmp_path)
        assert ended.returncode == 1, ended.stderr
        assert "torchnan: step 3 of rank 0, captured as: loss is nan" in ended.stdout
        assert "reproduced, twice, with the same origin" in ended.stdout
        assert "the same as when it was captured" in ended.stdout
        assert "an external tensor, first used by aten::addmm" in ended.stdout
    ended = torchnan_command("replay", event.capture, "--step", "program:mended", folder=tmp_path)
    assert ended.returncode == 0
    assert "NOT reproduced" in ended.stdout


@pytest.mark.breadth(2)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--step", f"{STEPS}:step_of"],
            "takes 2 arguments, so it is a step function: add --model",
        ),
        (["--step", "program"], "--step program cannot be used: it takes MODULE:FUNCTION"),
        (["--step", "program:none"], "--step program:none cannot be used: module 'program' has no attribute 'none'"),
        (["--step", "nowhere:step"], "--step nowhere:step cannot be used: No module named 'nowhere'"),
        (["--step", "program:torch"], "it is a module, not a function"),
        (
            ["--step", f"{STEPS}:batch_of", "--model", f"{STEPS}:NAN"],
            "it is a float, not a function",
        ),
    ],
)
def test_invalid_arguments_of_replay_are_rejected(arguments, said, tmp_path):
    (tmp_path / "contents.json").touch()  # looks like a capture
    ended = torchnan_command("replay", str(tmp_path), *arguments, folder=tmp_path)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_folder_that_is_not_a_capture_is_rejected_before_the_program_runs(tmp_path):
    (tmp_path / "long.py").write_text("print('imported')\ndef both():\n    print('trained')\n")
    ended = torchnan_command("replay", "missing", "--step", "long:both", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "missing cannot be read: there is no such folder" in ended.stderr


def test_extract_writes_a_program_that_shows_the_operation(tmp_path):
    _, event = captured(tmp_path)
    ended = torchnan_command("extract", event.capture, "--out", "report", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    program = tmp_path / "report" / "operation.py"
    assert program.read_text() in ended.stdout
    assert "torch.ops.aten.addmm.default(" in program.read_text()
    assert len(program.read_text().splitlines()) < 25
    shown = run([sys.executable, "-I", str(program)])
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == "torch.Size([8, 8]) torch.float32 nan 8 inf 0\n"


def test_extract_says_why_it_cannot(tmp_path):
    training = Training(captures=tmp_path, norm_limit=1e-9)
    event = training.guard.step(batch_of(0)).event
    ended = torchnan_command("extract", event.capture, folder=tmp_path)
    assert ended.returncode == 2
    assert "has no operation in it: its replay found no single one to blame (cause 'norm')" in ended.stderr


@pytest.mark.parametrize("option", ["captures", "snapshot_folder", "log"])
def test_a_folder_that_cannot_be_made_is_refused_with_its_option(tmp_path, option):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "below"
    value = folder / "log.jsonl" if option == "log" else folder
    more = {"snapshot_every": 1} if option == "snapshot_folder" else {}
    with pytest.raises(OSError, match=re.escape(f"{option}='{folder}' cannot be used: ")):
        Training(**{option: value}, **more)
