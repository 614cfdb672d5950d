"""What the optimizer steps is what has been checked."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import torchnan
from tests.support.guarded_steps import NAN
from torchnan.config.options import OptionError


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


class Spoiling:
    """A step whose gradient of one parameter can be made NaN, with a finite loss."""

    def __init__(self):
        self.spoiled = None

    def __call__(self, model, x):
        loss = model(x).square().mean()
        return loss if self.spoiled is None else loss + torch.sqrt((self.spoiled * 0).sum())


def exchange(model, optimizer):
    optimizer.param_groups.clear()
    optimizer.add_param_group({"params": list(model[0].parameters())})
    return model[0].weight


def add_group(model, optimizer):
    optimizer.add_param_group({"params": list(model[0].parameters())})
    return model[0].weight


def append(model, optimizer):
    optimizer.param_groups[0]["params"].append(model[0].weight)
    return model[0].weight


def replace(model, optimizer):
    model[1].weight = nn.Parameter(torch.ones(1, 4))
    optimizer.param_groups[0]["params"][0] = model[1].weight
    return model[1].weight


def swap_order(model, optimizer):
    optimizer.param_groups[0]["params"].reverse()
    return model[1].weight


def freeze(model, optimizer):
    """Its last gradient stays, and the optimizer steps it."""
    return model[1].bias


@pytest.mark.parametrize("change", [exchange, add_group, append, replace, swap_order, freeze])
def test_parameters_are_those_of_the_optimizer_now(change):
    model, step = two_layers(), Spoiling()
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    guard = torchnan.StepGuard(model, optimizer, step)
    assert guard.step(torch.randn(4, 4)).applied
    step.spoiled = change(model, optimizer)
    result = guard.step(torch.randn(4, 4))
    assert not result.applied
    assert math.isnan(result.norm)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    step.spoiled = None
    assert guard.step(torch.randn(4, 4)).applied


def stepping_hooks(model):
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def hook(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)


class Releasing:
    def __init__(self, model):
        self.optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.release)

    def release(self, parameter):
        self.optimizers[parameter].step()
        parameter.grad = None


@pytest.mark.parametrize("release", [stepping_hooks, Releasing])
def test_an_optimizer_in_the_backward_pass_is_refused_at_the_start(release):
    model = two_layers()
    release(model)
    with pytest.raises(OptionError, match=r"a hook of 0\.weight steps a SGD in the backward pass, before"):
        torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), Spoiling())


@pytest.mark.parametrize("is_manual", [False, True])
def test_an_optimizer_in_the_backward_pass_is_refused_before_it_steps(is_manual):
    """If its hooks came after the guard."""
    model = two_layers()
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), Spoiling())
    stepping_hooks(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    x = torch.randn(4, 4)
    with pytest.raises(RuntimeError, match=r"a SGD is about to step 1\.\w+ before the step guard has checked its grad"):
        if is_manual:
            with guard.watch(x):
                model(x).mean().backward()
        else:
            guard.step(x)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_hooks_and_optimizers_that_concern_other_parameters_are_left_alone():
    model, critic = two_layers(), two_layers()
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
    norms = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: norms.append((p.grad.norm(), optimizer.param_groups)))

    def step(model, x):
        critic(x).mean().backward()
        of_critic.step()
        return model(x).square().mean()

    assert torchnan.StepGuard(model, optimizer, step).step(torch.randn(4, 4)).applied
    assert len(norms) == 4


class SAM(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def first_step(self): ...

    def second_step(self): ...

    def step(self, closure=None):
        assert closure is not None


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (torch.optim.LBFGS, "the optimizer is a LBFGS, whose step.. computes losses and gradients itself"),
        (SAM, "the optimizer is a SAM, which takes two steps with two losses"),
    ],
)
def test_optimizers_that_compute_losses_are_refused(optimizer, said):
    model = two_layers()
    with pytest.raises(OptionError, match=f"{said}.*NaNDetector"):
        torchnan.StepGuard(model, optimizer(model.parameters()), Spoiling())


def test_scheduled_optimizers_are_not():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    assert torchnan.StepGuard(model, optimizer, Spoiling(), scheduler=scheduler).step(torch.randn(4, 4)).applied


# -- scalers


def test_two_optimizers_share_a_scaler_in_a_loop_of_ones_own():
    models = [two_layers() for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    guards = [
        torchnan.StepGuard(model, optimizer, scaler=scaler) for model, optimizer in zip(models, optimizers, strict=True)
    ]
    norms = []
    for i in range(4):
        for number, (model, optimizer, guard) in enumerate(zip(models, optimizers, guards, strict=True)):
            x = torch.ones(4, 4) * (NAN if (i, number) == (1, 1) else 1)
            with guard.watch(x):
                loss = model(x).square().mean()
                scaler.scale(loss).backward()
            is_good = guard.ok_to_step(loss)
            assert is_good is ((i, number) != (1, 1))
            if is_good:
                norms.append(model[1].bias.grad.abs().item())
                scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()  # once for both
    assert max(norms) < 100  # unscaled each time
    assert scaler.get_scale() == 512.0


def test_an_update_that_is_left_out_leaves_the_next_step_unscaled():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    guard = torchnan.StepGuard(model, optimizer, scaler=scaler)
    norms = []
    for i in range(3):
        x = torch.ones(4, 4) * (NAN if i == 1 else 1)
        with guard.watch(x):
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
        if guard.ok_to_step(loss):
            norms.append(model[1].bias.grad.item())
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    assert norms[0] == norms[1]
