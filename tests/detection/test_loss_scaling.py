"""Loss scalers: their findings are silent while they skip the step, and harm if an optimizer uses the gradients
anyway."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchnan

TOO_LARGE = 2.0**127
TOO_SMALL = 1e-40  # its inverse is infinite

OPTIMIZERS = {
    "for-loop": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
}


def linear(value: float = 1.0) -> nn.Linear:
    model = nn.Linear(3, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def scaler_of(scale: float = TOO_LARGE) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def harms(watch: torchnan.detect) -> list[str]:
    return [finding.harm.kind for finding in watch.findings]


def overflow(scaler: torch.amp.GradScaler, *models: nn.Module) -> None:
    scaler.scale(sum((model(torch.ones(2, 3)) * 9).sum() for model in models)).backward()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_step_that_the_scaler_takes_is_stopped(make):
    """0 * inf: the scaler looks at the gradient before it multiplies by the inverse of the loss scale."""
    model = linear()
    optimizer, scaler = make(model.parameters()), scaler_of(TOO_SMALL)
    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect():
            scaler.scale(model(torch.ones(2, 3)).sum()).backward()
            scaler.step(optimizer)
    finding = raised.value.finding
    assert (finding.harm.kind, finding.harm.applied, finding.step) == ("gradient", False, 1)
    assert "the step was not applied" in str(finding)
    assert all(torch.equal(p, torch.ones_like(p)) for p in model.parameters())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_step_that_the_scaler_takes_is_one_finding_of_a_log(make):
    model = linear()
    optimizer, scaler = make(model.parameters()), scaler_of(TOO_SMALL)
    with torchnan.detect(action="log") as watch:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        loss.item()
    assert harms(watch) == ["gradient"]
    assert not model.weight.isfinite().any()


def test_of_two_optimizers_each_follows_its_own_verdict():
    bad, good = linear(), linear()
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (bad, good))
    scaler = scaler_of()
    with torchnan.detect(action="log") as watch:
        overflow(scaler, bad)
        scaler.scale((good(torch.ones(2, 3)) * 1e-3).sum()).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()
    assert watch.findings == []
    assert torch.equal(bad.weight, torch.ones(1, 3))
    assert not torch.equal(good.weight, torch.ones(1, 3))


@pytest.mark.parametrize("is_applied", [False, True])
def test_other_gradients_of_a_skipped_step_are_silent_until_they_are_applied(is_applied):
    generator, discriminator = linear(), linear()
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, discriminator))
    scaler = scaler_of()
    with torchnan.detect(action="log") as watch:
        overflow(scaler, generator, discriminator)
        scaler.step(first)
        scaler.update()
        if is_applied:
            second.step()
    assert harms(watch) == ["gradient"] * is_applied


def test_unused_gradients_of_a_skipped_step_are_silent():
    """The gradients of a parameter without optimizer: no operation reads them."""
    model, other = linear(), linear()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), scaler_of()
    with torchnan.detect() as watch:
        overflow(scaler, model, other)
        scaler.step(optimizer)
        other.zero_grad()
    assert watch.findings == []


def test_gradients_that_are_accumulated_and_clipped():
    model = linear()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), scaler_of()
    with torchnan.detect() as watch:
        overflow(scaler, model)
        scaler.scale(model(torch.ones(2, 3)).sum() * 1e-30).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        scaler.step(optimizer)
        scaler.update()
    assert watch.findings == []


def test_unscaled_and_applied_without_the_scaler():
    model = linear()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), scaler_of()
    with torchnan.detect(action="log") as watch:
        overflow(scaler, model)
        scaler.unscale_(optimizer)
        optimizer.step()
    assert harms(watch) == ["gradient"]


def test_a_fused_optimizer_uses_found_inf_of_the_scaler():
    model = linear()
    optimizer, scaler = torch.optim.Adam(model.parameters(), fused=True), scaler_of()
    with torchnan.detect(action="log") as watch:
        overflow(scaler, model)
        scaler.step(optimizer)
        scaler.update()
        assert watch.findings == []
        optimizer.step()
    assert [(finding.harm.kind, finding.step) for finding in watch.findings] == [("gradient", 1)]


def test_a_scale_by_hand():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = TOO_LARGE
    with torchnan.detect() as watch:
        for _ in range(8):
            optimizer.zero_grad()
            (model(torch.ones(2, 3)) * 9).sum().backward(torch.tensor(scale))
            gradients = [p.grad for p in model.parameters()]
            are_finite = [gradient.isfinite().all() for gradient in gradients]
            if all(are_finite):
                for gradient in gradients:
                    gradient.div_(scale)
                optimizer.step()
            else:
                scale /= 2
    assert watch.findings == []
    assert scale < TOO_LARGE


def test_gradients_that_a_closure_leaves_are_checked():
    model = linear()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-6), scaler_of(1024.0)
    stale = torch.full((1, 3), float("inf"))

    def closure(factor):
        optimizer.zero_grad()
        loss = (model(torch.ones(2, 3)) * factor).sum()
        scaler.scale(loss).backward()
        return loss

    with torchnan.detect(action="log") as watch:
        model.weight.grad = stale * 1
        optimizer.step(lambda: closure(1.0))
        assert watch.findings == []
        scaler.scale(model(torch.ones(2, 3)).sum()).backward()
        scaler.step(optimizer, lambda: closure(1e37))
    assert harms(watch) == ["gradient"]


class Scaler(torch.amp.GradScaler):
    """Multiplies itself, like the scaler of FSDP."""

    def scale(self, outputs):
        if self._scale is None:
            self._lazy_init_scale_growth_tracker(outputs.device)

        def apply(one):
            return one * self._scale

        return apply(outputs)


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, Scaler])
def test_a_scaled_loss_that_overflows(kind):
    model = linear()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), kind("cpu", init_scale=TOO_LARGE)
    with torchnan.detect() as watch:
        scaler.scale((model(torch.ones(2, 3)) * 1e5).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert watch.findings == []


def test_steps_that_a_scaler_skips_are_counted():
    model = linear()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), scaler_of()
    skipped = 0
    with torchnan.detect(action="log") as watch:
        for i in range(1, 9):
            optimizer.zero_grad()
            loss = (model(torch.ones(2, 3)) * 9).sum()
            if i == 8:
                loss = loss - loss.detach() + (loss.detach() * 0).log() * 0
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped += scaler.get_scale() < scale
    assert skipped > 1
    assert [(finding.step, finding.harm.kind) for finding in watch.findings] == [(8, "backward")]


def test_marked_steps_stay_as_they_are():
    model = linear()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), scaler_of()
    with torchnan.detect(action="log") as watch:
        watch.mark_step(40)
        overflow(scaler, model)
        scaler.step(optimizer)
        torch.zeros(1).log().item()
    assert [finding.step for finding in watch.findings] == [40]
