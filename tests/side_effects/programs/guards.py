"""Trainings under a step guard, which replays bad steps; remedies that are tried; captures that are replayed.

Without torchnan a bad step is skipped by hand. A guard calls the step function again, as docs/recovery.md says, so the
calls are not compared. All else is: the replays, and what they run, leave no trace.
"""

from __future__ import annotations

import copy
import importlib
import os
import shutil
import signal
import threading
from pathlib import Path

import torch
from torch import nn

from tests.side_effects.program import BAD, program

NAN = float("nan")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.drop = nn.Dropout(0.25)

    def forward(self, x):
        return self.last(self.drop(self.first(x).relu())).squeeze(1)


def batches(bad, count=5):
    """The third has a NaN, or an input whose root has no slope."""
    made = [(torch.randn(6, 4), torch.randn(6)) for _ in range(count)]
    if bad:
        made[2][0][1, 1] = NAN
    return made


def squared_error(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def root(model, batch):
    """The backward pass makes a NaN where the batch has one."""
    x, y = batch
    hidden = model(x.nan_to_num()).square() * (~x.isnan()).all(1)
    return (hidden.sqrt() - y).square().mean()


def train(record, model, optimizer, step, data, **options):
    """Trains, and skips bad steps: by hand, or with a guard."""
    if record.torchnan is not None:
        guard = record.torchnan.StepGuard(model, optimizer, step, **options)
        for batch in data:
            guard.step(batch)
        return
    for batch in data:
        optimizer.zero_grad()
        loss = step(model, batch)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        if torch.isfinite(loss) and all(torch.isfinite(gradient).all() for gradient in gradients):
            optimizer.step()


def state(record, model, optimizer):
    record.value("weights", dict(model.named_parameters()))
    record.value("optimizer", optimizer.state_dict())
    record.value("drawn", torch.rand(2))


def made(model=None):
    model = Model() if model is None else model
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


@program(guards=True)
def a_guarded_training(record, bad):
    model, optimizer = made()
    train(record, model, optimizer, squared_error, batches(bad))
    state(record, model, optimizer)


@program(guards=True)
def a_guarded_training_of_a_compiled_model(record, bad):
    model, optimizer = made()
    train(record, torch.compile(model), optimizer, root, batches(bad))
    state(record, model, optimizer)


@program(guards=True)
def a_guarded_training_with_hooks(record, bad):
    """Those of the optimizer run for each step that is applied."""
    model, optimizer = made()
    optimizer.register_step_pre_hook(lambda *_: record.value("before the step", optimizer.param_groups[0]["lr"]))
    optimizer.register_step_post_hook(lambda *_: record.value("after the step", optimizer.param_groups[0]["lr"]))
    model.first.register_forward_hook(lambda module, *_: record.value("training", module.training) or None)
    train(record, model, optimizer, squared_error, batches(False))
    state(record, model, optimizer)


@program(guards=True)
def a_guarded_training_beside_a_thread_that_draws(record, bad):
    model, optimizer = made()
    data = batches(bad, 30)
    data[5:] = [data[2]] * 4 if bad else data[5:9]
    stop, ready, drawn = threading.Event(), threading.Event(), []

    def draw():
        while not stop.is_set():
            drawn.append(int(torch.randint(0, 2**62, ()).item()))
            ready.set()

    thread = threading.Thread(target=draw)
    thread.start()
    ready.wait()
    train(record, model, optimizer, squared_error, data)
    stop.set()
    thread.join()
    record.value("all distinct", len(set(drawn)) == len(drawn))
    torch.manual_seed(0)  # how many were drawn depends on time


@program(guards=True)
def batches_of_a_guarded_training(record, bad):
    """Freed when the program lets go of them."""
    model, optimizer = made()

    def data():
        for number, (x, y) in enumerate(batches(bad)):
            record.watch(**{f"batch {number}": x})
            yield x + 0, y

    train(record, model, optimizer, squared_error, data())
    record.watch(model=model, weight=model.first.weight, optimizer=optimizer)
    del model, optimizer


class TimeLimit(Exception):
    """What the handler of the program raises."""


@program(guards=True)
def a_time_limit_of_a_guarded_training(record, bad):
    """A handler that raises in any run of the step reaches the program."""
    model, optimizer = made()
    calls = []

    def handler(number, frame):
        raise TimeLimit("too late")

    def step(model, batch):
        calls.append(len(calls))
        if len(calls) == 4:  # of a bad training a replay
            signal.raise_signal(signal.SIGUSR1)
        return squared_error(model, batch)

    signal.signal(signal.SIGUSR1, handler)
    try:
        train(record, model, optimizer, step, batches(bad))
        record.value("raised", False)
    except TimeLimit:
        record.value("raised", True)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    torch.manual_seed(0)


@program(guards=True)
def modes_of_a_guarded_training(record, bad):
    model, optimizer = made()
    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.save_on_cpu():
        train(record, model, optimizer, root, batches(bad))
        record.value("autocast", torch.get_autocast_dtype("cpu"))
    state(record, model, optimizer)


def step_of(model, batch, loss):
    def step():
        model.zero_grad()
        value = loss(model, batch)
        value.backward()
        return value

    return step


@program(guards=True, variants=(BAD,))
def remedies_that_are_tried(record, bad):
    """Beside a training that does not try them."""
    model, optimizer = made()
    data = batches(bad)
    for batch in data[:2]:
        step_of(model, batch, root)()
        optimizer.step()
    if record.torchnan is not None:
        record.torchnan.try_remedies(step_of(model, data[2], root), model=model)
    record.value("gradients", [parameter.grad for parameter in model.parameters()])
    state(record, model, optimizer)


@program(guards=True, variants=(BAD,))
def remedies_of_a_compiled_model(record, bad):
    model, optimizer = made()
    compiled = torch.compile(model)
    data = batches(bad)
    step_of(compiled, data[0], root)()
    if record.torchnan is not None:
        record.torchnan.try_remedies(step_of(compiled, data[2], root), model=model)
    record.value("gradients", [parameter.grad for parameter in model.parameters()])
    step_of(compiled, data[1], root)()
    state(record, model, optimizer)


@program(guards=True)
def remedies_of_a_guard(record, bad):
    model, optimizer = made()
    train(record, model, optimizer, root, batches(bad), try_remedies=True)
    state(record, model, optimizer)


def files_in(folder):
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@program(guards=True, variants=(BAD,))
def a_capture_that_is_replayed(record, bad):
    """In the process that made it, beside a training that makes none."""
    model, optimizer = made()
    train(record, model, optimizer, squared_error, batches(bad), captures="captures")
    if record.torchnan is not None:
        files = files_in("captures")
        (folder,) = Path("captures").iterdir()
        capture = record.torchnan.load_capture(folder)
        assert capture.replay(copy.deepcopy(model), squared_error).verdict == "persistent"
        capture.try_remedies(copy.deepcopy(model), squared_error)
        assert files_in("captures") == files
        shutil.rmtree("captures")
    state(record, model, optimizer)


@program(guards=True, variants=(BAD,))
def a_capture_that_a_command_replays(record, bad):
    """``torchnan replay`` writes no file and leaves its capture as it is."""
    model, optimizer = made()
    train(record, model, optimizer, squared_error, batches(bad), captures="captures")
    if record.torchnan is not None:
        files = files_in(".")
        (folder,) = Path("captures").iterdir()
        functions = ["--step", f"{__name__}:squared_error", "--model", f"{__name__}:Model"]
        child = os.fork()
        if child == 0:
            os._exit(importlib.import_module("torchnan.cli").main(["replay", str(folder), *functions, "--remedies"]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1  # the value recurs
        assert files_in(".") == files
        shutil.rmtree("captures")
    state(record, model, optimizer)
