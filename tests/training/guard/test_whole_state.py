"""A rollback restores the whole training state, or refuses before it has changed anything."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import torchnan
from tests.support.captured_output import logged
from tests.support.guarded_steps import NAN, Net, assert_same, batch_of, step_of
from torchnan.config.options import OptionError
from torchnan.recovery import TrainingStopped


def guard_of(model, optimizer, step_fn=step_of, **options):
    return torchnan.StepGuard(model, optimizer, step_fn, snapshot_every=2, health=False, lr_factor=1.0, **options)


def spoil(model):
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = NAN


class Counted(torch.optim.Optimizer):
    """Keeps part of its state in attributes, as optimizers of research code do."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        self.count, self.history = 0, []
        self.velocity = {p: torch.zeros_like(p) for group in self.param_groups for p in group["params"]}
        self.mean = torch.zeros(())

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        self.history.append(self.count)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.velocity[p].mul_(0.9).add_(p.grad)
                    self.mean = self.mean + p.grad.mean()
                    p.sub_(self.velocity[p], alpha=group["lr"] / self.count)


class Wrapped(torch.optim.Optimizer):
    """Steps an optimizer of its own, as Lookahead does."""

    def __init__(self, base):
        super().__init__([p for group in base.param_groups for p in group["params"]], {"lr": 1.0})
        self.base, self.count = base, 0

    def step(self, closure=None):
        self.count += 1
        self.base.step()


class Extra(Net):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        return super().forward(x)

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("kind", ["adamw", "attributes", "wrapped", "extra state"])
def test_training_after_a_rollback_is_that_after_the_snapshot(kind, where, tmp_path):
    """Bit for bit, as if the steps between had not been."""

    def run(*, rolls_back):
        torch.manual_seed(0)
        model = Extra() if kind == "extra state" else Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        if kind == "attributes":
            optimizer = Counted(model.parameters())
        elif kind == "wrapped":
            optimizer = Wrapped(optimizer)
        folder = {"snapshot_folder": tmp_path / str(rolls_back)} if where == "disk" else {}
        guard = guard_of(model, optimizer, **folder)
        for i in range(2):
            guard.step(batch_of(i))
        if rolls_back:
            guard.step(batch_of(7))
            spoil(model)
            assert guard.step(batch_of(8)).event.snapshot == 2
        for i in range(2, 5):
            assert guard.step(batch_of(i)).applied
        attributes = (optimizer.count, optimizer.history, optimizer.mean) if kind == "attributes" else ()
        return copy.deepcopy((model.state_dict(), attributes, getattr(optimizer, "count", None)))

    assert_same(run(rolls_back=True), run(rolls_back=False))


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_further_modules_and_objects_are_restored(where, tmp_path):
    torch.manual_seed(0)
    model, critic = Net(), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    of_critic = torch.optim.Adam(critic.parameters())
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    folder = {"snapshot_folder": tmp_path} if where == "disk" else {}
    also = {"average": average, "critic": critic, "of_critic": of_critic, "plateau": plateau}
    guard = guard_of(model, optimizer, also=also, **folder)

    def train(i):
        result = guard.step(batch_of(i))
        average.update_parameters(model)
        critic(batch_of(i)[0]).square().mean().backward()
        of_critic.step()
        of_critic.zero_grad()
        plateau.step(float(i))
        return result

    train(0)
    guard.step(batch_of(1))
    parts = (model, optimizer, average, critic, of_critic)
    expected, of_plateau = copy.deepcopy(([part.state_dict() for part in parts], plateau.state_dict()))
    train(2)
    spoil(model)
    assert guard.step(batch_of(3)).event.snapshot == 2
    assert_same([part.state_dict() for part in parts], expected)
    assert plateau.state_dict() == of_plateau


def test_what_cannot_be_part_of_the_state_is_refused():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"also\[0\] is a float: also takes modules, optimizers and objects with"):
        guard_of(model, optimizer, also=[1.0])
    with pytest.raises(TypeError, match="also is a Net: it takes a list of objects, or a dict"):
        guard_of(model, optimizer, also=Net())
    with pytest.raises(OptionError, match="also has the name 'optimizer', which is taken"):
        guard_of(model, optimizer, also={"optimizer": optimizer})
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(
        OptionError, match=r"ReduceLROnPlateau, whose step\(\) needs metrics: .* give also=\[scheduler\]"
    ):
        guard_of(model, optimizer, scheduler=plateau)


def test_attributes_that_are_not_restored_are_named_at_the_start():
    model = Net()
    optimizer = Counted(model.parameters())
    optimizer.draw = torch.Generator()
    with logged() as told:
        guard_of(model, optimizer)
    assert told == [
        "torchnan: a rollback does not restore optimizer.draw (a Generator): give what must go back in also=, as an "
        "object with state_dict() and load_state_dict()."
    ]


def test_groups_and_parameters_that_were_added_stay():
    torch.manual_seed(0)
    model, late = Net(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    guard = guard_of(model, optimizer, lambda m, b: step_of(m, b) + late.square().sum())
    for i in range(2):
        guard.step(batch_of(i))
    saved = copy.deepcopy((model.state_dict(), optimizer.state[model.a.weight]))
    optimizer.add_param_group({"params": [late], "lr": 0.5})
    guard.step(batch_of(2))
    before = late.detach().clone()
    spoil(model)
    assert guard.step(batch_of(3)).event.snapshot == 2
    assert_same((model.state_dict(), optimizer.state[model.a.weight]), saved)
    assert len(optimizer.param_groups) == 2
    assert optimizer.param_groups[1]["lr"] == 0.5
    assert torch.equal(late, before)
    assert guard.step(batch_of(4)).applied


def test_parameters_outside_of_the_model_are_restored():
    model, weight = Net(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([*model.parameters(), weight], lr=0.1)
    guard = guard_of(model, optimizer, lambda m, b: step_of(m, b) + weight.square().sum())
    for i in range(2):
        guard.step(batch_of(i))
    expected = weight.detach().clone()
    guard.step(batch_of(2))
    spoil(model)
    assert guard.step(batch_of(3)).event.snapshot == 2
    assert torch.equal(weight, expected)


def test_buffers_of_another_shape_come_back():
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 1)
            self.register_buffer("seen", torch.zeros(0))
            self.register_buffer("last", None)

        def forward(self, x):
            self.seen = torch.cat([self.seen, x.detach().mean().view(1)])
            self.last = x.detach().clone()
            return self.linear(x).squeeze(1)

    model = Growing()
    guard = guard_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = batch_of(0)
    assert not guard.step((x * NAN, y)).applied
    assert model.seen.shape == (0,)
    assert model.last is None
    guard.step(batch_of(1))
    expected = model.seen.clone()
    guard.step(batch_of(2))
    assert model.seen.shape == (2,)
    spoil(model)
    assert guard.step(batch_of(3)).event.snapshot == 2
    assert torch.equal(model.seen, expected)


def test_a_parameter_of_another_shape_is_refused_before_anything_is_written():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    guard = guard_of(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: m(b[0]).square().mean())
    for i in range(2):
        guard.step(batch_of(i))
    model[0], model[1] = nn.Linear(4, 6), nn.Linear(6, 1)
    spoil(model)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainingStopped, match=r"no snapshot can be restored.* 0\.weight is of shape \[6, 4\], and was"):
        guard.step(batch_of(2))
    assert_same(model.state_dict(), before)


# -- the learning rate


def test_an_error_in_the_step_leaves_the_learning_rate_of_the_program():
    model, fails = nn.Linear(4, 1), False
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = torchnan.StepGuard(
        model, optimizer, lambda m, b: m(b).mean(), snapshot_every=1, health=False, lr_factor=0.5, lr_ramp=3
    )

    def hook(*_):
        if fails:
            raise RuntimeError("boom")

    guard.step(torch.ones(2, 4))
    spoil(model)
    guard.step(torch.ones(2, 4))
    optimizer.register_step_pre_hook(hook)
    fails = True
    with pytest.raises(RuntimeError, match="boom"):
        guard.step(torch.ones(2, 4))
    assert optimizer.param_groups[0]["lr"] == 0.1
    with guard.watch(torch.ones(2, 4)):
        loss = model(torch.ones(2, 4)).mean()
        loss.backward()
    assert guard.ok_to_step(loss)
    with pytest.raises(RuntimeError, match="boom"):
        optimizer.step()
    fails = False
    with guard.watch(torch.ones(2, 4)):
        assert optimizer.param_groups[0]["lr"] == 0.1


# -- running statistics


def norm_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def test_statistics_that_become_infinite_make_a_bad_step():
    model = norm_net()
    guard = torchnan.StepGuard(
        model, torch.optim.SGD(model.parameters(), lr=0.01), lambda m, x: m(x).square().mean(), snapshot_every=1
    )
    guard.step(torch.randn(8, 4))
    before = copy.deepcopy(model.state_dict())
    result = guard.step(torch.randn(8, 4) * 1e22)
    assert not result.applied
    assert (result.event.what, result.event.cause, result.event.verdict) == ("buffer", "operation", "persistent")
    assert result.event.seen.startswith("1 of 2 buffers are not finite after the forward pass: 1.running_var (")
    assert_same(model.state_dict(), before)
    assert guard.step(torch.randn(8, 4)).applied


def test_a_mask_of_infinities_is_no_bad_statistic():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))

        def forward(self, x):
            return (self.linear(x) + self.mask[3]).square().mean()

    model = Masked()
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x), snapshot_every=1)
    assert guard.step(torch.randn(2, 4)).applied
    event = guard.step(torch.full((2, 4), NAN)).event
    assert event.cause == "data"
    assert guard._rollback.possible


def test_a_state_of_the_optimizer_that_is_not_finite_is_in_no_snapshot():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    guard = torchnan.StepGuard(
        model, optimizer, lambda m, x: (m(x) * 1e22).mean(), snapshot_every=1, health=False, norm_limit=None
    )
    guard.step(torch.ones(2, 4))
    assert not optimizer.state[model.weight]["exp_avg_sq"].isfinite().all()
    assert guard._rollback._steps == [0]


def test_statistics_of_networks_that_the_step_runs_through_come_back():
    torch.manual_seed(0)
    model, critic = nn.Linear(4, 4), norm_net()
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: -critic(m(x)).mean())
    assert not guard.step(torch.full((8, 4), NAN)).applied  # known before the first step
    assert critic[1].num_batches_tracked == 0
    guard.step(torch.randn(8, 4))
    before = copy.deepcopy(critic.state_dict())
    assert not guard.step(torch.full((8, 4), NAN)).applied
    assert_same(critic.state_dict(), before)


def test_buffers_that_get_their_shape_in_the_first_step():
    model = nn.Sequential(nn.Linear(4, 8), nn.LazyBatchNorm1d(affine=False), nn.Linear(8, 1))
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).square().mean())
    assert guard.step(torch.randn(8, 4)).applied
    before = copy.deepcopy(model.state_dict())
    assert not guard.step(torch.full((8, 4), NAN)).applied
    assert_same(model.state_dict(), before)


class Adversarial:
    """Finds its networks through itself."""

    def __init__(self):
        self.networks = {"generator": nn.Linear(4, 4), "critic": norm_net()}

    def loss(self, model, x):
        return -self.networks["critic"](model(x)).mean()


def test_networks_in_the_object_of_a_method_are_found():
    training = Adversarial()
    model = training.networks["generator"]
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), training.loss)
    assert not guard.step(torch.full((8, 4), NAN)).applied
    assert training.networks["critic"][1].running_mean.isfinite().all()
    assert training.networks["critic"][1].num_batches_tracked == 0


def test_in_a_loop_of_ones_own_further_networks_are_given():
    model, critic = nn.Linear(4, 4), norm_net()
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), also=[critic])
    x = torch.full((8, 4), NAN)
    with guard.watch(x):
        loss = critic(model(x)).mean()
        loss.backward()
    assert not guard.ok_to_step(loss)
    assert critic[1].num_batches_tracked == 0
