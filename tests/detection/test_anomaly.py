"""torchnan in the place of PyTorch's anomaly mode: PyTorch's signatures and switches, torchnan's errors."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest
import torch

import torchnan
from tests.support.forked_python import run_forked
from torchnan.detection import session


def backward_of_a_root():
    x = torch.zeros(2, requires_grad=True)
    (x.sqrt() * 0).sum().backward()  # 0 * inf
    torch.optim.SGD([x], 0.1).step()


@pytest.mark.parametrize("name", ["set_detect_anomaly", "detect_anomaly"])
def test_the_signatures_are_pytorchs(name):
    ours, theirs = (inspect.signature(getattr(holder, name)) for holder in (torchnan, torch.autograd))
    assert [(p.name, p.default) for p in ours.parameters.values()] == [
        (p.name, p.default) for p in theirs.parameters.values()
    ]


def test_it_is_switched_on_and_off_like_a_function():
    torchnan.set_detect_anomaly(True)
    try:
        with pytest.raises(torchnan.NonFiniteError) as raised:
            backward_of_a_root()
        assert raised.value.finding.node == "SqrtBackward0"
        assert raised.value.finding.stack[0].function.endswith("backward_of_a_root")
    finally:
        torchnan.set_detect_anomaly(False)
    backward_of_a_root()
    assert not session.is_program_wide()


def test_as_context_managers_they_restore_the_previous_mode():
    with torchnan.set_detect_anomaly(True):
        with torchnan.detect_anomaly(), torchnan.set_detect_anomaly(False):
            assert not session.is_program_wide()
        assert session.is_program_wide()
    assert not session.is_program_wide()
    with torchnan.detect_anomaly(check_nan=False):
        backward_of_a_root()


def test_an_infinity_is_not_an_anomaly_and_leaving_raises_nothing():
    with torchnan.detect_anomaly():
        assert torch.ones(1).div(0).item() == float("inf")
        kept = torch.zeros(1).log() * 0
    assert kept.isnan().item()


def test_a_detection_that_is_on_already_stays_as_it_is():
    watch = torchnan.set_detect(True, action="log")
    try:
        with torchnan.detect_anomaly():
            torch.zeros(1).log().item()
        assert session.is_program_wide()
        assert watch.first.op == "aten::log"
    finally:
        torchnan.set_detect(False)


SCRIPT = """
import torch
torch.autograd.set_detect_anomaly(True)
x = torch.zeros(2, requires_grad=True)
(x.sqrt() * 0).sum().backward()
torch.optim.SGD([x], 0.1).step()
"""


def test_a_variable_replaces_pytorchs_in_scripts_as_they_are():
    ended = run_forked(SCRIPT, TORCHNAN_REPLACE_ANOMALY="1")
    assert "made by   aten::div in SqrtBackward0" in ended.stderr or "in SqrtBackward0, output 0" in ended.stderr
    assert "Anomaly" not in ended.stderr
    refused = run_forked("import torch", TORCHNAN_REPLACE_ANOMALY="yes")
    assert refused.returncode == 2
    assert "TORCHNAN_REPLACE_ANOMALY=yes cannot be used: it takes 0 or 1." in refused.stderr


FORWARD = """import torch
def loss(x):
    y = x.log()
    return y.sum()
loss(torch.tensor([-2.0]))
"""
OPTIMIZER = """import torch
w = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.AdamW([w])
w.sqrt().sum().backward()
optimizer.step(); a = 1; b = 2
print("ended")
"""


def debugged(program, commands, tmp_path, **variables):
    script = tmp_path / "train.py"
    script.write_text(program)
    variables |= {"TORCHNAN": "breakpoint", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, script], input=commands, env=os.environ | variables, capture_output=True, text=True
    )


def test_breakpoint_opens_the_debugger_in_the_users_frame(tmp_path):
    ended = debugged(FORWARD, "p x\nn\np y\nc\n", tmp_path, TORCHNAN_WHEN="origin")
    assert ended.returncode == 0, ended.stderr
    assert "made by   aten::log, output 0" in ended.stdout
    asked = ended.stdout.split("the debugger is at ")[1].splitlines()
    assert asked[:4] == [
        f"{tmp_path}/train.py:3",
        f"> {tmp_path}/train.py(3)loss()",
        "-> y = x.log()",
        "(Pdb) tensor([-2.])",
    ]
    assert asked[4:7] == [f"(Pdb) > {tmp_path}/train.py(4)loss()", "-> return y.sum()", "(Pdb) tensor([nan])"]


@pytest.mark.parametrize("command", ["n", "s"])
def test_the_debugger_continues_to_the_users_next_line(command, tmp_path):
    ended = debugged(OPTIMIZER, f"{command}\nc\n", tmp_path)
    asked = [line for line in ended.stdout.splitlines() if line.startswith(("-> ", "(Pdb) > "))]
    assert asked == [
        "-> optimizer.step(); a = 1; b = 2",
        f"(Pdb) > {tmp_path}/train.py(6)<module>()",
        '-> print("ended")',
    ]
    assert ended.stdout.endswith("(Pdb) ended\n")


def test_leaving_the_debugger_ends_the_program(tmp_path):
    ended = debugged(OPTIMIZER, "q\n", tmp_path)
    assert ended.returncode == 1
    assert ended.stdout.endswith("(Pdb) ")
    assert ended.stderr == ""
