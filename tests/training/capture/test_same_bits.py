"""A capture replays with the bits of the step: whatever is frozen, stepped in part, or scaled."""

from __future__ import annotations

import inspect
import sys

import pytest
import torch
from torch import nn

import torchnan
from tests.support.processes import run


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def overflowing_step(model, x):
    with torch.autocast("cpu", dtype=torch.float16):
        y = model(x)
    return y.float().square().mean()


def bad_root(model, x):
    """A finite loss with a NaN in the gradients, and a NaN made at once."""
    y = model(x).square().mean()
    return y + torch.sqrt((model.b.weight * 0).sum())


def freeze(model):
    model.a.requires_grad_(False)
    return list(model.parameters())


def part(model):
    return list(model.b.parameters())


def reversed_groups(model):
    return [{"params": [p]} for p in reversed(list(model.parameters()))]


@pytest.mark.parametrize("stepped", [freeze, part, reversed_groups])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_the_bits_are_those_of_the_step(stepped, is_scaled, tmp_path):
    torch.manual_seed(0)
    model = Net()
    scaler = {"scaler": torch.amp.GradScaler("cpu", init_scale=1024.0), "max_scaler_skips": 1} if is_scaled else {}
    optimizer = torch.optim.SGD(stepped(model), lr=0.1)
    guard = torchnan.StepGuard(model, optimizer, bad_root, captures=tmp_path, **scaler)
    for _ in range(2):
        event = guard.step(torch.randn(4, 6)).event
        if event is not None:
            break
    assert event.same_bits
    replayed = torchnan.load_capture(event.capture).replay(Net(), bad_root)
    assert (replayed.verdict, replayed.same_bits, replayed.reason) == ("persistent", True, "")


def overflow(tmp_path):
    torch.manual_seed(0)
    model = Net()
    guard = torchnan.StepGuard(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        overflowing_step,
        captures=tmp_path / "captures",
        max_scaler_skips=2,
        scaler=torch.amp.GradScaler("cpu", init_scale=2.0**60),
    )
    for _ in range(3):
        event = guard.step(torch.randn(8, 6)).event
    assert event.what == "scaler"
    return event


def test_an_overflow_of_the_loss_scale_is_replayed(tmp_path):
    event = overflow(tmp_path)
    capture = torchnan.load_capture(event.capture)
    assert capture.scale == 2.0**58
    replayed = capture.replay(Net(), overflowing_step)
    assert (replayed.verdict, replayed.same_bits) == ("persistent", True)


def test_an_overflow_is_replayed_from_the_command_line(tmp_path):
    event = overflow(tmp_path)
    source = [inspect.getsource(part) for part in (Net, overflowing_step)]
    (tmp_path / "train.py").write_text("\n\n".join(["import torch\nfrom torch import nn", *source]))
    command = [
        sys.executable,
        "-m",
        "torchnan",
        "replay",
        event.capture,
        "--step",
        "train:overflowing_step",
        "--model",
        "train:Net",
    ]
    ended = run(command, cwd=tmp_path, OMP_NUM_THREADS="1")
    assert ended.returncode == 1, ended.stderr
    assert "reproduced, twice, with the same origin" in ended.stdout
    assert "bits      the same as when it was captured" in ended.stdout


def test_what_a_capture_does_not_hold_is_named_before_the_hardware(tmp_path):
    torch.manual_seed(0)
    model, outside = Net(), nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([*model.parameters(), outside], lr=0.1)

    def step(model, x):
        return model(x).square().mean() * (outside / outside)

    guard = torchnan.StepGuard(model, optimizer, step, captures=tmp_path)
    event = guard.step(torch.randn(4, 6)).event
    outside = nn.Parameter(torch.ones(()))
    replayed = torchnan.load_capture(event.capture).replay(Net(), step)
    assert replayed.verdict == "transient"
    assert replayed.reason == (
        "the capture does not hold parameters outside of the model (param_groups[0]['params'][4])"
    )
