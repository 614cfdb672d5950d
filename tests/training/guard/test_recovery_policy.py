"""One table of options, for keywords, TOML and the environment; nothing wrong is taken."""

from __future__ import annotations

import ast
import dataclasses
import re

import pytest
import torch
from torch import nn

import torchnan
from tests.support.processes import REPOSITORY
from torchnan.config.options import OptionError
from torchnan.config.policy import options
from torchnan.config.policy_keywords import PolicyKeywords
from torchnan.recovery import Policy


def guard(**given):
    model = nn.Linear(1, 1)
    return torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: m(b).sum(), **given)


WRONG = {
    "on_bad_step": "warn",
    "max_consecutive": 0,
    "max_skips": -1,
    "remedy": {"data": "ignore"},
    "instability": {"spike": "retry"},
    "retries": 1.5,
    "max_norm": 0,
    "exact_clip": "yes",
    "norm_limit": float("nan"),
    "norm_factor": "3",
    "norm_window": 9,
    "max_scaler_skips": 0,
    "replay": 1,
    "try_remedies": "all",
    "keep": "deepcopy",
    "captures": "",
    "max_captures": 0,
    "capture_ranks": 0,
    "max_capture_bytes": True,
    "snapshot_every": -5,
    "snapshots": 0,
    "snapshot_folder": 3,
    "rollback_depth": 0,
    "max_rollbacks": None,
    "health": "no",
    "rewind_data": "yes",
    "lr_factor": 1.5,
    "lr_ramp": -1,
    "clip_factor": 0,
    "out_of_memory": "skip",
    "max_splits": 0,
    "max_undo_bytes": -1,
    "log": b"log",
}


def test_the_table_of_wrong_values_is_whole():
    assert WRONG.keys() == options().keys() == {field.name for field in dataclasses.fields(Policy)}


@pytest.mark.parametrize(("name", "value"), WRONG.items())
def test_a_wrong_value_is_refused(name, value, tmp_path):
    said = f"{name}={value!r} cannot be used: {name} takes "
    with pytest.raises(OptionError) as refused:
        guard(**{name: value})
    assert said in str(refused.value)
    assert options()[name].accepts in str(refused.value)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(OptionError, match=r"no option 'max_consecutives' of recovery\. Did you mean 'max_consecutive'"):
        guard(max_consecutives=3)


def test_every_default_is_accepted_by_its_own_check():
    assert Policy() == Policy(**dataclasses.asdict(Policy()))


def test_a_rollback_deeper_than_the_kept_snapshots_is_rejected():
    with pytest.raises(OptionError, match="rollback_depth=3 cannot be used: only snapshots=2 are kept"):
        guard(rollback_depth=3)


def test_toml(tmp_path):
    path = tmp_path / "train.toml"
    path.write_text(
        'lr = 1\n[train.recovery]\non_bad_step = "rollback"\nsnapshot_every = 50\n'
        '[train.recovery.remedy]\ndata = "raise"\n'
    )
    policy = Policy.from_toml(path, "train.recovery")
    assert (policy.on_bad_step, policy.snapshot_every, policy.remedy) == ("rollback", 50, {"data": "raise"})
    with pytest.raises(OptionError, match=r"train\.toml: there is no option 'lr' of recovery"):
        Policy.from_toml(path)
    with pytest.raises(OptionError, match="has no table 'recovery'"):
        Policy.from_toml(path, "recovery")
    path.write_text("on_bad_step = ")
    with pytest.raises(OptionError, match=r"train\.toml is not TOML"):
        Policy.from_toml(path)
    with pytest.raises(FileNotFoundError):
        guard(policy=tmp_path / "none.toml")


@pytest.mark.parametrize("way", ["keyword", "policy", "dict", "file", "variable"])
def test_the_old_name_of_on_bad_step_still_works_and_warns(way, tmp_path, monkeypatch):
    path = tmp_path / "recovery.toml"
    path.write_text('action = "rollback"\n')
    if way == "variable":
        monkeypatch.setenv("TORCHNAN_POLICY_ACTION", "rollback")
    ways = {
        "keyword": lambda: guard(action="rollback").policy,
        "policy": lambda: Policy(action="rollback"),
        "dict": lambda: guard(policy={"action": "rollback"}).policy,
        "file": lambda: guard(policy=path).policy,
        "variable": lambda: guard().policy,
    }
    with pytest.warns(DeprecationWarning, match="the option action of recovery is now called on_bad_step") as warned:
        assert ways[way]().on_bad_step == "rollback"
    assert [warning.filename for warning in warned] == [__file__]


def test_both_names_of_an_option_are_refused():
    with pytest.raises(OptionError, match=r"^action='skip' is an old name for on_bad_step: give on_bad_step alone"):
        Policy(action="skip", on_bad_step="raise")


def test_the_page_groups_every_option_with_its_default():
    """Fails when an option is missing in the table of docs/recovery.md, or has another default."""
    page = (REPOSITORY / "docs" / "recovery.md").read_text()
    table = page.partition("| to | set | defaults |")[2].partition("\n\n")[0]
    given = dict(re.findall(r"`(\w+)(?:=([^`]+))?`", table))
    defaults = {name: option.default for name, option in Policy.options().items()}
    written = {name: ast.literal_eval(text) if text else defaults[name] or None for name, text in given.items()}
    assert written == {name: None if default == {} else default for name, default in defaults.items()}


def test_type_checkers_know_the_keywords_of_a_guard():
    """Fails when a field is missing in PolicyKeywords, or has another type there."""
    known = {name: Policy.__annotations__[name] for name in Policy.options()} | {"action": "str"}
    written = {name: given.__forward_arg__ for name, given in PolicyKeywords.__annotations__.items()}
    assert written == known


def test_keywords_go_over_the_file(tmp_path):
    path = tmp_path / "recovery.toml"
    path.write_text("max_skips = 7\nmax_consecutive = 2\n")
    made = guard(policy=path, max_skips=8).policy
    assert (made.max_skips, made.max_consecutive) == (8, 2)
    assert guard(policy={"max_skips": 7}).policy.max_skips == 7
    assert guard(policy=Policy(max_skips=6)).policy.max_skips == 6


def test_the_environment_has_the_last_word(tmp_path, monkeypatch):
    path = tmp_path / "recovery.toml"
    path.write_text("max_skips = 7\n")
    monkeypatch.setenv("TORCHNAN_POLICY", str(path))
    monkeypatch.setenv("TORCHNAN_POLICY_ON_BAD_STEP", "raise")
    monkeypatch.setenv("TORCHNAN_POLICY_REPLAY", "0")
    monkeypatch.setenv("TORCHNAN_POLICY_LR_FACTOR", "0.25")
    monkeypatch.setenv("TORCHNAN_POLICY_REMEDY", "data=raise, norm=rollback")
    made = guard(on_bad_step="skip").policy
    assert (made.max_skips, made.on_bad_step, made.replay, made.lr_factor) == (7, "raise", False, 0.25)
    assert made.remedy == {"data": "raise", "norm": "rollback"}


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("TORCHNAN_POLICY_ON_BAD_STEPS", "skip", "no variable TORCHNAN_POLICY_ON_BAD_STEPS. Did you mean"),
        ("TORCHNAN_POLICY_ON_BAD_STEP", "stop", "POLICY_ON_BAD_STEP=stop cannot be used: it takes one of skip"),
        ("TORCHNAN_POLICY_RETRIES", "many", "TORCHNAN_POLICY_RETRIES=many cannot be used: it takes an integer"),
        ("TORCHNAN_POLICY_REMEDY", "data", "TORCHNAN_POLICY_REMEDY=data cannot be used: it takes actions"),
        ("TORCHNAN_POLICY_REPLAY", "maybe", "TORCHNAN_POLICY_REPLAY=maybe cannot be used: it takes true or false"),
    ],
)
def test_the_environment_is_strict(monkeypatch, variable, text, said):
    monkeypatch.setenv(variable, text)
    with pytest.raises(OptionError) as refused:
        guard()
    assert said in str(refused.value)


def test_detection_leaves_the_policy_its_variables(monkeypatch):
    from torchnan import startup

    of_recovery = {"TORCHNAN_POLICY_ON_BAD_STEP": "skip", "TORCHNAN_POLICY": "x.toml"}
    assert startup.options_from({"TORCHNAN": "warn", **of_recovery})
    with pytest.raises(OptionError, match="there is no variable TORCHNAN_POLICIES_ACTION"):
        startup.options_from({"TORCHNAN": "warn", "TORCHNAN_POLICIES_ACTION": "skip"})


def test_unsupported_arguments_are_rejected_before_anything_is_switched_on():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"model is a list: StepGuard takes a torch\.nn\.Module"):
        torchnan.StepGuard([model], optimizer)
    with pytest.raises(TypeError, match=r"optimizer is a Linear: StepGuard takes a torch\.optim\.Optimizer"):
        torchnan.StepGuard(model, model)
    with pytest.raises(TypeError, match="step_fn is a int: it must be callable"):
        torchnan.StepGuard(model, optimizer, 3)
    with pytest.raises(OptionError, match="save and load belong together"):
        guard(save=lambda step: None)
    with pytest.raises(OptionError, match="save and snapshot_folder are two places"):
        guard(save=print, load=print, snapshot_folder="x")
    with pytest.raises(TypeError, match=r"step\(\) needs a batch"):
        guard().step()
    with pytest.raises(
        RuntimeError, match=r"ok_to_step\(\) was called without a `with guard\.watch\(batch\):` before it\."
    ):
        guard().ok_to_step()
