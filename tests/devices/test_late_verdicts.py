"""A step guard on a device applies a step before it has its verdict. The device undoes a bad step by itself."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import torchnan
from tests.devices.conftest import of_kernel

pytestmark = of_kernel

GOOD, BAD, INFINITE = "good", "bad", "infinite"


def batch(kind: str, device: torch.device) -> torch.Tensor:
    values = torch.randn(8, 4)
    if kind == BAD:
        values = -values.abs() - 100.0  # step_loss() takes the logarithm of a negative number
    elif kind == INFINITE:
        values[3, 1] = torch.inf
    return values.to(device)


def make_model(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)).to(device)


def step_loss(model: nn.Module, values: torch.Tensor) -> torch.Tensor:
    return model(values).square().mean() + (values.sum() + 1000.0).log()


class Training:
    """A model, an optimizer and a guard, and what they have become."""

    def __init__(self, device: torch.device, make_optimizer: Callable[..., Any] = torch.optim.AdamW, **options: Any):
        self.device = device
        self.model = make_model(device)
        self.optimizer = make_optimizer(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.guard = torchnan.StepGuard(self.model, self.optimizer, step_loss, scheduler=self.scheduler, **options)
        self.results: list[Any] = []

    def step(self, kind: str = GOOD) -> None:
        self.results.append(self.guard.step(batch(kind, self.device)))

    def on_device(self) -> list[torch.Tensor]:
        """Weights, running statistics and the optimizer's state on the device."""
        state = [value for entry in self.optimizer.state.values() for value in entry.values()]
        tensors = [*self.model.state_dict().values(), *state]
        return [tensor.detach().cpu().clone() for tensor in tensors if tensor.device.type != "cpu"]

    def everything(self) -> dict[str, Any]:
        return {
            "guard": self.guard.state_dict(),
            "model": {name: value.cpu() for name, value in self.model.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "random": [torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()],
            "results": [(result.step, result.applied, result.norm) for result in self.results],
            "losses": [result.loss.cpu() for result in self.results],
            "events": [(str(event), event.losses, event.good_step, event.bits) for event in self.guard.events],
            "step": self.guard.step_number,
        }


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().view(-1).view(torch.uint8)


def same(one: Any, other: Any) -> bool:
    """Whether two nested values have the same bits; a NaN is equal to another."""
    if isinstance(one, torch.Tensor):
        return torch.equal(bits(one), bits(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def one_by_one(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, amsgrad=True, foreach=False)


OPTIMIZERS = [
    torch.optim.SGD, sgd, torch.optim.Adam, torch.optim.AdamW, one_by_one, torch.optim.NAdam, torch.optim.RAdam,
    torch.optim.Adagrad, torch.optim.RMSprop,
]  # fmt: skip


def test_a_healthy_step_does_not_wait_for_a_device_that_keeps_up(machine, device):
    training = Training(device)
    training.step()  # makes the optimizer's state
    training.step()
    for _ in range(3):
        values = batch(GOOD, device)
        assert machine.count(lambda values=values: training.guard.step(values)) == (0, 0)
    assert training.everything()["step"] == 5


def test_a_healthy_step_does_not_wait_for_its_own_verdict(machine, device):
    training = Training(device)
    batches = [batch(GOOD, device) for _ in range(6)]
    for values in batches[:2]:
        training.guard.step(values)

    def steps() -> None:
        for values in batches[2:]:
            training.guard.step(values)

    waits, copies = machine.count(steps)
    assert (waits, copies) == (3, 0)  # each for the step before; the first of these had been read
    assert not torch.accelerator.current_stream().query()


def test_a_step_waits_if_the_limit_leaves_no_room(machine, device):
    training = Training(device, max_undo_bytes=1)
    training.step()
    values = batch(GOOD, device)
    assert machine.count(lambda: training.guard.step(values))[0] > 0
    assert machine.copy_launches() == 0


def test_the_device_undoes_a_bad_step_before_the_host_hears_of_it(machine, device):
    training = Training(device)
    training.step()
    training.step()
    before = training.on_device()
    training.step(BAD)
    assert same(training.on_device(), before)
    assert training.guard._reporter.events == []


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [BAD, INFINITE])
def test_a_bad_step_leaves_what_it_leaves_if_it_is_waited_for(machine, device, make_optimizer, kind):
    order = [GOOD, GOOD, kind, GOOD, GOOD, kind, kind, GOOD, kind]

    def train(**options: Any) -> dict[str, Any]:
        random.seed(1)
        numpy.random.seed(1)
        training = Training(device, make_optimizer, **options)
        for each in order:
            training.step(each)
        return training.everything()

    waiting = train(max_undo_bytes=0)
    machine.reset_counts()
    late = train()
    assert machine.copy_launches() >= 10
    assert [applied for _, applied, _ in waiting["results"]] == [each == GOOD for each in order]
    for part, value in waiting.items():
        assert same(late[part], value), part


def test_the_origin_is_named(device):
    training = Training(device)
    for kind in (GOOD, GOOD, BAD, GOOD):
        training.step(kind)
    (event,) = training.guard.events
    assert (event.step, event.verdict, event.finding.op) == (3, "persistent", "aten::log")
    assert training.results[2].event is event
    assert not training.results[2].applied


def test_a_checkpoint_has_the_counters_of_the_steps_that_were_applied(device):
    training = Training(device)
    for kind in (GOOD, GOOD, BAD):
        training.step(kind)
    saved = training.optimizer.state_dict()
    assert {float(entry["step"]) for entry in saved["state"].values()} == {2.0}
    assert training.scheduler.last_epoch == 2
    assert len(training.guard.events) == 1


def test_rates_that_the_program_sets_afterwards_stay(device):
    def train(**options: Any) -> list[float]:
        training = Training(device, **options)
        rates = []
        for i, kind in enumerate((GOOD, BAD, GOOD, GOOD, BAD, GOOD)):
            training.step(kind)
            for group in training.optimizer.param_groups:
                group["lr"] = 0.007 if i == 1 else group["lr"]
        training.guard.state_dict()
        rates += [group["lr"] for group in training.optimizer.param_groups]
        return [*rates, *(float(value) for value in training.on_device()[0].flatten())]

    assert train() == train(max_undo_bytes=0)


def test_a_step_that_is_finite_when_it_is_run_again_is_applied(device):
    def train(**options: Any) -> tuple[list[bool], list[Any], dict[str, Any]]:
        factors: list[float] = []

        def sometimes(model: nn.Module, values: torch.Tensor) -> torch.Tensor:
            loss = model(values).square().mean()
            return loss * factors.pop() if factors else loss

        model = make_model(device)
        optimizer = torch.optim.AdamW(model.parameters())
        guard = torchnan.StepGuard(model, optimizer, sometimes, **options)
        results = []
        for i in range(6):
            factors[:] = [torch.nan] if i == 3 else []
            results.append(guard.step(batch(GOOD, device)))
        causes = [(event.step, event.cause, event.action) for event in guard.events]
        return [result.applied for result in results], causes, optimizer.state_dict()

    waiting, late = train(max_undo_bytes=0), train()
    assert late[0] == waiting[0] == [True] * 6
    assert late[1] == waiting[1] == [(4, "transient", "retry")]
    assert same(late[2], waiting[2])


def test_training_that_cannot_go_on_stops_in_the_next_step(device):
    training = Training(device, max_skips=0)
    training.step()
    training.step()
    before = training.on_device()
    training.step(BAD)
    with pytest.raises(torchnan.recovery.TrainingStopped) as stopped:
        training.step()
    assert stopped.value.event.step == 3
    assert training.guard.step_number == 3
    assert same(training.on_device(), before)
    assert not training.results[2].applied


def test_exit_codes_wait_for_the_last_verdict(device, capsys):
    training = Training(device, max_skips=0)
    with pytest.raises(SystemExit) as ended, torchnan.recovery.exit_codes():
        for kind in (GOOD, GOOD, BAD):
            training.step(kind)
    assert ended.value.code == 83
    assert "step 3 was not applied" in capsys.readouterr().err


def test_a_rollback_goes_on_from_the_snapshot(device):
    training = Training(device, snapshot_every=2, remedy={"operation": "rollback"}, health=False)
    for kind in (GOOD, GOOD, BAD, GOOD):
        training.step(kind)
    (event,) = training.guard.events
    assert (event.step, event.action, event.snapshot) == (3, "rollback", 2)
    assert training.guard.step_number == 3
    assert [result.step for result in training.results] == [1, 2, 3, 3]
    assert [result.applied for result in training.results] == [True, True, False, True]


def test_a_batch_that_was_written_to_cannot_be_run_again(device, capsys):
    training = Training(device)
    writes = [False]

    def writing(model: nn.Module, values: torch.Tensor) -> torch.Tensor:
        if writes[0]:
            values.add_(1.0)
        return step_loss(model, values)

    training.guard._forward_backward.step_fn = writing
    for kind in (GOOD, GOOD, BAD):
        training.step(kind)
    before = training.on_device()
    writes[0] = True
    training.step()
    assert not training.results[-1].applied
    assert same(training.on_device(), before)
    assert "step 4 was left out: it has written to its batch, so it could not be run again" in capsys.readouterr().err
    writes[0] = False
    training.step()
    assert training.results[-1].applied


def test_a_device_that_answers_no_more_is_waited_for(machine, device):
    training = Training(device)
    for kind in (GOOD, GOOD):
        training.step(kind)
    before = training.on_device()
    machine.break_device()
    try:
        training.step(BAD)
    finally:
        machine.break_device(False)
    assert same(training.on_device(), before)
    assert len(training.guard._reporter.events) == 1
    training.step()
    assert [result.applied for result in training.results] == [True, True, False, True]


def buffer_of_infinities(training: Training) -> None:
    training.model.register_buffer("mask", torch.full((2,), -torch.inf).to(training.device))


def with_hook(training: Training) -> None:
    training.optimizer.register_step_post_hook(lambda *_: None)


def with_own_class(training: Training) -> None:
    training.optimizer.__class__ = type("Own", (torch.optim.AdamW,), {})


@pytest.mark.parametrize(
    "options", [{"max_undo_bytes": 0}, {"max_norm": 1.0}, {"norm_limit": 1e9}, {"norm_factor": 1e9},
                {"on_bad_step": "raise"}, {"rewind_data": True}, {"snapshot_every": 1}], ids=str,
)  # fmt: skip
def test_what_needs_a_verdict_before_the_update_waits_for_it(machine, device, options):
    waits_in(machine, Training(device, **options))


@pytest.mark.parametrize("change", [buffer_of_infinities, with_hook, with_own_class])
def test_an_update_that_may_write_elsewhere_waits(machine, device, change):
    training = Training(device)
    change(training)
    waits_in(machine, training)


def waits_in(machine: Any, training: Training) -> None:
    training.step()
    training.step()
    values = batch(GOOD, training.device)
    launches = machine.count(lambda: training.guard.step(values))
    assert launches[0] > 0
    assert machine.copy_launches() == 0


def test_a_watched_step_waits_as_detection_must_know_what_is_put_back(machine, device):
    training = Training(device)
    with torchnan.detect(action="log") as watch:
        for kind in (GOOD, GOOD, BAD, GOOD):
            training.step(kind)
        assert [result.applied for result in training.results] == [True, True, False, True]
    assert [finding.op for finding in watch.findings if finding.level == "error"] in ([], ["aten::log"])


def test_a_result_can_be_copied(device):
    training = Training(device)
    for kind in (GOOD, GOOD, GOOD):
        training.step(kind)
    copied = copy.deepcopy(training.results[2])
    assert (copied.step, copied.applied, copied.event) == (3, True, None)
    assert copied.norm == training.results[2].norm
