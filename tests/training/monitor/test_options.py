"""Invalid options of a Monitor are rejected before anything is written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchnan
from tests.support.monitored_training import rows_of
from torchnan.config.options import OptionError
from torchnan.training.monitor.keywords import MonitorKeywords
from torchnan.training.monitor.options import MonitorOptions

WRONG = {
    "log": ("", OptionError, "log='' cannot be used: log takes a path, or nothing"),
    "max_bytes": (10, OptionError, "max_bytes=10 cannot be used: max_bytes takes an integer of at least 65536"),
    "parts": (1, OptionError, "parts=1 cannot be used: parts takes an integer of at least 2, or nothing"),
    "all_ranks": (1, OptionError, "all_ranks=1 cannot be used: all_ranks takes true or false"),
    "headroom_every": (1.5, OptionError, "headroom_every=1.5 cannot be used: headroom_every takes an integer"),
    "watch": (True, OptionError, "watch is a bool: it takes a torchnan.detect, or None"),
    "weights_every": (-1, OptionError, "weights_every=-1 cannot be used"),
    "live": (None, OptionError, "live=None cannot be used: live takes true or false"),
    "judge_every": (0, OptionError, "judge_every=0 cannot be used: judge_every takes an integer of at least 1"),
    "window": (49, OptionError, "window=49 cannot be used: window takes an integer of at least 50"),
    "rerun_in_fp32": ("no", OptionError, "rerun_in_fp32='no' cannot be used"),
    "dtype": ("half", OptionError, "dtype='half' cannot be used: dtype takes one of float32, float16, bfloat16"),
    "logg": ("x", OptionError, "there is no option 'logg' of the monitor. Did you mean 'log'?"),
    "thresholds": (3, OptionError, "thresholds is a int: it takes Thresholds, a dict, or the path of a TOML file"),
    "tensorboard": (3, TypeError, "tensorboard is a int: it takes a folder, or a SummaryWriter"),
    "callback": (3, TypeError, "callback is a int: it must be callable"),
    "on_instability": ("x", TypeError, "on_instability is a str: it must be callable"),
    "meta": ([1], OptionError, "meta=[1] cannot be used: it takes a dict of strings and numbers"),
}


def test_type_checkers_know_the_keywords_of_a_monitor():
    """Fails when an option is missing in MonitorKeywords, or has another type there."""
    known = {name: MonitorOptions.__annotations__[name] for name in MonitorOptions.options() if name != "log"}
    assert {name: given.__forward_arg__ for name, given in MonitorKeywords.__annotations__.items()} == known


@pytest.mark.parametrize(("name", "wrong"), WRONG.items())
def test_a_wrong_option_is_refused(name, wrong):
    value, error, said = wrong
    with pytest.raises(error) as refused:
        torchnan.Monitor(**{name: value})
    assert said in str(refused.value)


def test_a_detection_without_headroom_is_refused():
    with pytest.raises(OptionError, match=r"make it with torchnan\.detect\(headroom=True\)"):
        torchnan.Monitor(watch=torchnan.detect())


def test_meta_that_json_does_not_have_is_refused():
    with pytest.raises(OptionError, match="is not JSON serializable"):
        torchnan.Monitor(meta={"model": object()})


def test_thresholds_come_from_a_dict_or_a_file(tmp_path):
    with pytest.raises(OptionError, match="there is no option 'sigma' of diagnosis"):
        torchnan.Monitor(thresholds={"sigma": 3})
    (tmp_path / "t.toml").write_text("spike_sigma = 0\n")
    with pytest.raises(OptionError, match="spike_sigma=0 cannot be used"):
        torchnan.Monitor(thresholds=tmp_path / "t.toml")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"loss": "3"}, "loss is a str: it takes a number, or a tensor of one element"),
        ({"loss": torch.ones(2)}, r"loss is a Tensor of shape \(2,\): it takes a number"),
        ({"loss": True}, "loss is a bool"),
        ({"grad_norm": [1.0]}, "grad_norm is a list"),
        ({"lr": {"a": 1}}, "lr is a dict"),
        ({"model": 3}, r"model is a int: it takes a torch\.nn\.Module"),
        ({"optimizer": nn.Linear(1, 1)}, r"optimizer is a Linear: it takes a torch\.optim\.Optimizer"),
        ({"scaler": 2.0}, r"scaler is a float: it takes a torch\.amp\.GradScaler"),
        ({"skipped": 1}, "skipped=1 cannot be used: it takes True or False"),
        ({"step": -1}, "step=-1 cannot be used: it takes the number of the step, 0 or above"),
        ({"step": 1.0}, r"step=1\.0 cannot be used"),
    ],
)
def test_a_wrong_part_of_a_step_is_refused(tmp_path, given, said):
    path = tmp_path / "run.jsonl"
    monitor = torchnan.Monitor(log=path)
    with pytest.raises(TypeError, match=said):
        monitor.step(**given)
    assert rows_of(path) == []


def test_a_log_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        torchnan.Monitor(log=tmp_path / "file" / "run.jsonl")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="give a path that is not a link"):
        torchnan.Monitor(log=tmp_path / "link")


@pytest.mark.parametrize("text", ["loss\n1.0\n", '{"step": 1}\n', '{"torchnan": "log"}'])
def test_a_file_that_is_something_else_is_refused_and_left_as_it_is(tmp_path, text):
    (tmp_path / "mine").write_text(text)
    with pytest.raises(OptionError, match=r"mine'.*is not the log of a monitor. Use another name"):
        torchnan.Monitor(log=tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == text
