"""Optimizers: a bad step is reported before it is applied, and their own arithmetic is checked."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import torchnan


def linear() -> nn.Linear:
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.bias.zero_()
    return model


def bad_gradient(model: nn.Linear) -> None:
    output = model(torch.zeros(2, 3))
    output.abs().sqrt().sum().backward()  # slope of sqrt at 0, sign of 0: 0 * inf


@pytest.mark.parametrize("kind", ["for-loop", "foreach", "fused"])
def test_a_bad_gradient_stops_the_step_before_it_is_taken(kind):
    model = linear()
    before = [p.detach().clone() for p in model.parameters()]
    flags = {"foreach": kind == "foreach", "fused": kind == "fused"}
    optimizer = torch.optim.AdamW(model.parameters(), **flags)
    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect():
            bad_gradient(model)
            optimizer.step()
    finding = raised.value.finding
    assert finding.harm.kind == "gradient"
    assert finding.harm.name in ("weight", "bias")
    assert "the step was not applied" in str(finding)
    for now, then in zip(model.parameters(), before, strict=True):
        assert torch.equal(now, then)
    assert not optimizer.state


def test_a_class_made_of_pytorchs_own_is_as_good_before_that_has_been_used():
    """Fails when the class that has ``step`` is checked: PyTorch writes it into the first one that is used."""

    class Adadelta(torch.optim.Adadelta):
        pass

    model = linear()
    first_of_its_kind = Adadelta(model.parameters())
    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect():
            bad_gradient(model)
            first_of_its_kind.step()
    assert raised.value.finding.harm.kind == "gradient"


@pytest.mark.breadth(2)
@pytest.mark.parametrize(
    ("optimizer", "op"),
    [
        (lambda p: torch.optim.AdamW(p, eps=0.0, foreach=False), "aten::addcdiv_"),
        (lambda p: torch.optim.AdamW(p, eps=0.0, foreach=True), "aten::_foreach_addcdiv_"),
        (lambda p: torch.optim.AdamW(p, eps=0.0, fused=True), "aten::_fused_adamw_"),
        (lambda p: torch.optim.RMSprop(p, eps=0.0, foreach=False), "aten::addcdiv_"),
    ],
)
def test_the_optimizers_own_arithmetic_is_an_origin(optimizer, op):
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.zeros(3)
    made = optimizer([weight])
    with torchnan.detect(action="log") as watch:
        made.step()
    finding = watch.first
    assert (finding.op, finding.phase, finding.origin, finding.output) == (op, "optimizer", "op", 0)
    assert finding.harm.kind == "parameter"
    assert finding.line == made_step_line()
    assert finding.stack[0].file == __file__


def made_step_line() -> int:
    import inspect

    function = test_the_optimizers_own_arithmetic_is_an_origin
    source, first = inspect.getsourcelines(function)
    return first + next(i for i, text in enumerate(source) if "made.step()" in text)


FORMS = {
    "SGD": lambda p, rate: torch.optim.SGD(p, lr=rate, foreach=False),
    "SGD, decaying": lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.9, weight_decay=0.1),
    "SGD, foreach": lambda p, rate: torch.optim.SGD(p, lr=rate, foreach=True),
    "SGD, fused": lambda p, rate: torch.optim.SGD(p, lr=rate, fused=True),
    "AdamW": lambda p, rate: torch.optim.AdamW(p, lr=rate, foreach=False),
    "AdamW, foreach": lambda p, rate: torch.optim.AdamW(p, lr=rate, foreach=True),
    "AdamW, fused": lambda p, rate: torch.optim.AdamW(p, lr=rate, fused=True),
}


@pytest.mark.parametrize("rate", [float("inf"), float("nan")])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_learning_rate_that_is_not_finite_is_one_cause(form, rate):
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3)))
    optimizer = form(model.parameters(), 0.1)
    optimizer.param_groups[0]["lr"] = rate
    with warnings.catch_warnings(record=True) as told, torchnan.detect(action="warn") as watch:
        warnings.simplefilter("always")
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
    assert [(f.phase, f.harm.kind, f.harm.name, f.step) for f in watch.findings] == [
        ("optimizer", "parameter", "0.weight", 1)
    ]
    assert len(told) == 1


def test_two_optimizers_with_bad_rates_are_two_causes():
    a, b = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    first, second = (torch.optim.SGD(one.parameters(), lr=float("inf")) for one in (a, b))
    with torchnan.detect(action="log") as watch:
        (a(torch.ones(1, 2)) + b(torch.ones(1, 2))).sum().backward()
        first.step()
        second.step()
    assert len(watch.findings) == 2


def test_an_optimizer_written_by_hand_is_one_too():
    weight = nn.Parameter(torch.ones(2))

    class Mine(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad / p.grad.abs().sum())

    weight.grad = torch.zeros(2)
    with torchnan.detect(action="log") as watch:
        Mine([weight]).step()
    assert (watch.first.op, watch.first.phase) == ("aten::div", "optimizer")
    assert watch.first.harm.kind == "parameter"


def test_a_step_written_by_hand_without_an_optimizer():
    weight = nn.Parameter(torch.zeros(2))
    with torchnan.detect(action="log") as watch:
        weight.sqrt().sum().backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
    assert (watch.first.node, watch.first.harm.kind) == ("SqrtBackward0", "parameter")


def test_a_closure_runs_forward_and_backward_inside_the_step():
    model = linear()
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = (model(torch.zeros(2, 3)) * 0).log().sum()  # in the forward pass, though a step is on the stack
        return loss

    with torchnan.detect(action="log") as watch:
        optimizer.step(lambda: closure() * 1)
    assert (watch.first.op, watch.first.phase) == ("aten::log", "forward")


def test_a_bad_gradient_from_a_closure_stops_the_update():
    model = linear()
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        bad_gradient(model)
        return torch.zeros(())

    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect():
            optimizer.step(closure)
    assert raised.value.finding.harm.kind == "gradient"
    assert torch.equal(model.weight, before)


def test_a_loss_scalers_search_is_silent():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    skipped = 0
    with torchnan.detect() as watch:
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3) * 3).sum()
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped += scaler.get_scale() < scale
    assert watch.findings == []
    assert skipped > 0, "the test has not tested anything"
    assert model.weight.isfinite().all()


def test_a_step_that_the_program_skips_is_silent():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchnan.detect() as watch:
        bad_gradient(model)
        if all(p.grad.isfinite().all() for p in model.parameters()):
            optimizer.step()
        optimizer.zero_grad()
    assert watch.findings == []


def test_clip_grad_norm_spreads_it_and_the_origin_is_still_reported():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchnan.detect(action="log") as watch:
        bad_gradient(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert watch.first.node in ("SqrtBackward0", "AbsBackward0")
    assert len([finding for finding in watch.findings if finding.level == "error"]) == 1


def test_lists_are_gone_through_together():
    """A value in one element of a list is not attributed to another."""
    values = [torch.full((3,), -1.0) for _ in range(20)]
    with torchnan.detect(action="log") as watch:
        values[3], values[13] = values[3].log(), values[13].sqrt()
        torch._foreach_mul_(values, 2.0)
        torch._foreach_div_(values, [torch.full((3,), float(i != 15)) for i in range(20)])
        values[15].sum().item()
        values[13].sum().item()
        values[3].sum().item()
    assert [finding.op for finding in watch.findings] == ["aten::_foreach_div_", "aten::sqrt", "aten::log"]
