"""Headroom on its whole way: from a detection by the log to a forecast that comes true."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import torchnan
from tests.support.guarded_steps import NAN, Training
from tests.support.monitored_training import lines_of, rows_of
from torchnan.diagnosis import diagnose, read

GROWTH = 1.04  # largest output of one module, in a step
DOUBLING = math.log(2) / math.log(GROWTH)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.up(x).tanh())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class GrowingTraining:
    """One in float16 with the weight decay of ``layers.1.down`` of the wrong sign."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = Model().half().requires_grad_(False)
        self.model.layers[1].down.requires_grad_(True)
        self.optimizer = torch.optim.SGD(self.model.layers[1].down.parameters(), lr=1.0)
        self.optimizer.param_groups[0]["weight_decay"] = 1 - GROWTH
        self.x = torch.randn(4, 8).half()
        self.steps = 0

    def step(self):
        self.optimizer.zero_grad()
        output = self.model(self.x)
        loss = output.float().tanh().square().mean() / 100
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss, output

    def overflow(self):
        """The step at which it comes, if the training is left to itself."""
        while self.step()[1].isfinite().all():
            pass
        return self.steps


def train(training, monitor, steps):
    for _ in range(steps):
        loss, _ = training.step()
        monitor.step(loss=loss, model=training.model, optimizer=training.optimizer)


def test_an_overflow_is_forecast_at_its_step_with_its_module(tmp_path, capsys):
    """Live, and from the log. Fails when headroom is not queried, and when it is not written."""
    path, training = tmp_path / "run.jsonl", GrowingTraining()
    monitor = torchnan.Monitor(log=path, headroom_every=5)
    with torchnan.detect(headroom=True):
        train(training, monitor, 200)
        monitor.close()
    (forecast,) = diagnose(read(path)).forecasts
    overflow = training.overflow()
    assert forecast.overflow == pytest.approx(overflow, rel=0.02)
    assert forecast.doubling == pytest.approx(DOUBLING, rel=0.02)
    assert (forecast.module, forecast.dtype, forecast.enough) == ("layers.1.down", "float16", "bfloat16")
    assert overflow > 250
    (told,) = [line for line in lines_of(path) if "forecast" in line]
    assert told["forecast"]["module"] == "layers.1.down"
    assert told["step"] < 200
    assert told["forecast"]["overflow"] == pytest.approx(overflow, rel=0.1)
    assert "layers.1.down output reached" in capsys.readouterr().err


def test_a_row_has_the_largest_values_since_the_last_row(tmp_path):
    """The true values, of all modules. Fails when every row asks, and when bounds are taken for values."""
    path, training = tmp_path / "run.jsonl", GrowingTraining()
    monitor = torchnan.Monitor(log=path, headroom_every=3)
    largest = []
    with torchnan.detect(headroom=True) as watch:
        for _ in range(7):
            loss, output = training.step()
            wide = torch.rand(100, 100).sigmoid()  # proved, not read
            monitor.step(loss=loss + wide[0, 0] * 0)
            largest.append(output.detach().abs().max().item())
        told = [one for one in watch.headroom() if one.op == "aten::sigmoid"]
    assert [one.exact for one in told] == [False]
    rows = {row["step"]: row["headroom"] for row in rows_of(path) if "headroom" in row}
    assert list(rows) == [3, 6]
    assert [row["layers.1.down"] for row in rows.values()] == [
        ["float16", max(largest[:3])],
        ["float16", max(largest[3:6])],
    ]
    names = {f"layers.{i}{part}" for i in range(2) for part in ("", ".up", ".down")}
    assert all(names < set(row) and "aten::sigmoid" not in row for row in rows.values())
    assert rows[3]["aten::mean"][0] == "float32"  # outside every module


def headroom_rows(path, around=None, every=2, **options):
    """The headroom of a short training, with only the training inside of ``around``."""
    training, monitor = GrowingTraining(), torchnan.Monitor(log=path, headroom_every=every, **options)
    for _ in range(4):
        if around is None:
            loss, _ = training.step()
        else:
            with around:
                loss, _ = training.step()
        monitor.step(loss=loss)
    return [row["step"] for row in rows_of(path) if "headroom" in row]


def test_a_detection_that_is_over_by_then_is_named(tmp_path):
    """Fails when ``watch=`` is not kept."""
    watch = torchnan.detect(headroom=True)
    assert headroom_rows(tmp_path / "named.jsonl", watch, watch=watch) == [2, 4]
    assert headroom_rows(tmp_path / "not.jsonl", watch) == []


def test_the_one_of_the_program_is_asked_inside_of_a_scope_that_keeps_nothing(tmp_path):
    """Fails when only the innermost scope is checked."""
    torchnan.set_detect(True, headroom=True)
    try:
        assert headroom_rows(tmp_path / "program.jsonl") == [2, 4]
        with torchnan.detect(action="log"):
            monitor = torchnan.Monitor(log=tmp_path / "scope.jsonl", headroom_every=1)
        training = GrowingTraining()
        loss, _ = training.step()
        with torchnan.detect(action="log"):
            monitor.step(loss=loss)
        assert "layers.1.down" in rows_of(tmp_path / "scope.jsonl")[0]["headroom"]
    finally:
        torchnan.set_detect(False)


def test_a_detection_without_headroom_is_not_asked(tmp_path, capsys):
    """Nor is it an error. Fails when every detection is asked."""
    with torchnan.detect():
        assert headroom_rows(tmp_path / "run.jsonl") == []
    assert headroom_rows(tmp_path / "run.jsonl") == []
    with torchnan.detect(headroom=True):
        assert headroom_rows(tmp_path / "never.jsonl", every=0) == []
    assert capsys.readouterr().err == ""


def test_a_guard_hands_it_on(tmp_path):
    """Before the step: a row has what came before it. What a replay does is not in it."""
    path = tmp_path / "run.jsonl"
    monitor = torchnan.Monitor(log=path, headroom_every=2)
    training = Training(monitor=monitor)
    with torchnan.detect(headroom=True, action="log"):
        for i in range(6):
            x, y = torch.full((8, 4), 2.0**i), torch.zeros(8)
            if i == 2:
                y[1] = NAN
            training.guard.step((x, y))
    rows = {row["step"]: row["headroom"] for row in rows_of(path) if "headroom" in row}
    assert len(rows) == 3
    assert all({"a", "norm", "b"} <= set(row) for row in rows.values())
