"""Steps of Adam that are proved finite as a whole: which ones, and that no value is missed."""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torchnan
from tests.support.testing_extension import _testing
from torchnan.detection.pause import detection_paused

STEPS = 6
FORMS: list[dict[str, Any]] = [
    {"amsgrad": amsgrad, **form} for amsgrad in (False, True) for form in ({}, {"foreach": True}, {"fused": True})
]


def network(width: int = 8, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width, dtype=dtype) for _ in range(3)])


def backward(model: nn.Sequential) -> None:
    model.zero_grad()
    first = model[0].weight
    model(torch.randn(4, first.shape[1], dtype=first.dtype)).square().mean().backward()


def operations_of_step(optimizer: torch.optim.Optimizer, session: Any) -> int:
    before = session.stats()["ops"]
    optimizer.step()
    return session.stats()["ops"] - before


def is_proved(model: nn.Sequential, optimizer: torch.optim.Optimizer, **options: Any) -> bool:
    """Whether the last of some steps is proved: the first ones make the moments known."""
    with torchnan.detect(**{"rescan_every": 0, **options}) as session:
        for _ in range(STEPS):
            backward(model)
            operations = operations_of_step(optimizer, session)
    return operations == 0


@pytest.mark.parametrize("width", [8, 80])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("options", [{}, {"maximize": True}, {"weight_decay": 0.1}, {"lr": 1}], ids=str)
def test_ordinary_steps_are_proved(width, kind, dtype, form, options):
    model = network(width, dtype)
    assert is_proved(model, kind(model.parameters(), **form, **options))


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def resumed(width: int, form: dict[str, Any]) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A model that has been trained while detection was off."""
    model = network(width)
    optimizer = torch.optim.AdamW(model.parameters(), **form)
    for _ in range(3):
        backward(model)
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("width", [8, 80])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_of_a_run_that_is_resumed_the_first_step_is_proved(width, form):
    model, optimizer = resumed(width, form)
    with torchnan.detect(rescan_every=0) as session:
        backward(model)
        assert operations_of_step(optimizer, session) == 0


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_of_a_run_that_is_resumed_weights_are_read_once(form):
    model, optimizer = resumed(80, form)
    backward(model)  # outside: values written here are scanned at the first step
    with torchnan.detect(rescan_every=0) as session:
        first, second = (bytes_of_step(optimizer, session) for _ in range(2))
    weights = sum(parameter.nbytes for parameter in model.parameters() if parameter.numel() > 4096)
    assert first >= 3 * weights
    assert second < weights


def test_moments_of_which_only_the_last_step_was_seen_are_read_once():
    model, optimizer = resumed(80, {})
    backward(model)
    with torchnan.detect(rescan_every=0) as session:
        with Passing():
            assert operations_of_step(optimizer, session) > 0
        second, third = (bytes_of_step(optimizer, session) for _ in range(2))
    weights = sum(parameter.nbytes for parameter in model.parameters() if parameter.numel() > 4096)
    assert second >= 2 * weights
    assert third < weights


def bytes_of_step(optimizer: torch.optim.Optimizer, session: Any) -> int:
    before = session.stats()["bytes"]
    optimizer.step()
    return session.stats()["bytes"] - before


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("width", [8, 80])
def test_a_resumed_moment_that_is_bad_is_found(key, width):
    model, optimizer = resumed(width, {})
    optimizer.state[model[1].weight][key][0, 0] = torch.nan
    with torchnan.detect(action="log", rescan_every=0) as session:
        backward(model)
        assert operations_of_step(optimizer, session) > 0
    assert any(finding.origin == "input" for finding in session.findings)


def test_a_resumed_moment_in_shared_memory_proves_nothing():
    model, optimizer = resumed(80, {})
    optimizer.state[model[1].weight]["exp_avg"].share_memory_()
    with torchnan.detect(rescan_every=0) as session:
        backward(model)
        assert operations_of_step(optimizer, session) > 0


class Derived(torch.optim.AdamW):
    pass


def twice(model: nn.Sequential) -> torch.optim.Optimizer:
    shared = nn.Parameter(model[0].weight.detach().view(-1))
    model[0].weight.register_hook(lambda gradient: setattr(shared, "grad", gradient.reshape(-1).clone()))
    return torch.optim.AdamW([*model.parameters(), shared])


def hooked(model: nn.Sequential) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


OTHERS: dict[str, Callable[[nn.Sequential], torch.optim.Optimizer]] = {
    "a tensor as learning rate": lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3)),
    "no eps": lambda model: torch.optim.AdamW(model.parameters(), eps=0),
    "a derived class": lambda model: Derived(model.parameters()),
    "a hook": hooked,
    "two parameters in the same memory": twice,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_steps_are_intercepted(name):
    model = network()
    assert not is_proved(model, OTHERS[name](model))


@pytest.mark.parametrize("options", [{"rescan_every": 1}, {"headroom": True}, {"skip_ops": ("aten::mm",)}])
def test_options_that_ask_for_every_result_get_it(options):
    model = network()
    assert not is_proved(model, torch.optim.AdamW(model.parameters()), **options)


class PassingFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Passing, PassingFunctions])
def test_under_a_mode_each_operation_is_intercepted(mode):
    model = network()
    with mode():
        assert not is_proved(model, torch.optim.AdamW(model.parameters()))


def test_a_shared_hook_sees_a_step_whose_operations_are_intercepted():
    model = network()
    handle = register_optimizer_step_post_hook(lambda *_: None)
    try:
        assert not is_proved(model, torch.optim.AdamW(model.parameters()))
    finally:
        handle.remove()


@pytest.mark.parametrize("width", [8, 80])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_bits_are_the_same(width, form):
    def trained(mode: contextlib.AbstractContextManager[Any]) -> list[torch.Tensor]:
        model = network(width)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **form)
        with mode:
            for _ in range(20):
                backward(model)
                optimizer.step()
        state = [value for entry in optimizer.state.values() for value in entry.values()]
        return [p.detach() for p in model.parameters()] + state

    for on, off in zip(trained(torchnan.detect(rescan_every=0)), trained(contextlib.nullcontext()), strict=True):
        assert torch.equal(on, off)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (3, 0, 5, 1, 4, 2)])
def test_states_are_found_in_any_order(order):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    with torchnan.detect(rescan_every=0) as session:
        for _ in range(STEPS):
            backward(model)
            optimizer.step()
        of_parameters = list(optimizer.state.items())
        optimizer.state.clear()
        optimizer.state.update(of_parameters[i] for i in order)
        backward(model)
        assert operations_of_step(optimizer, session) == 0

        backward(model)
        model[1].bias.grad = None  # its state is skipped
        assert operations_of_step(optimizer, session) == 0

        backward(model)
        optimizer.state[model[2].bias]["exp_avg_sq"].fill_(-1)  # of this parameter alone

        def step() -> None:
            optimizer.step()
            model[2].bias.sum().item()

        assert finding_of(step).op == "aten::sqrt"


@pytest.fixture
def training() -> Iterator[tuple[nn.Sequential, torch.optim.Optimizer, Any]]:
    """A model whose steps are proved, right after a detection was opened."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    with torchnan.detect(rescan_every=0) as session:
        for _ in range(STEPS):
            backward(model)
            operations = operations_of_step(optimizer, session)
        assert operations == 0
        yield model, optimizer, session


def finding_of(run: Callable[[], Any]) -> torchnan.Finding:
    with pytest.raises(torchnan.NonFiniteError) as raised:
        run()
    return raised.value.finding


@pytest.mark.parametrize("width", [8, 80])
def test_a_gradient_with_a_bound_too_loose_to_be_squared_is_read(width):
    model = network(width)
    optimizer = torch.optim.AdamW(model.parameters())
    with torchnan.detect(rescan_every=0) as session:
        for _ in range(STEPS):
            backward(model)
            huge = torch.full_like(model[1].weight, 1e25)
            model[1].weight.grad = (huge + 1) - huge
            operations = operations_of_step(optimizer, session)
    assert operations == 0


def test_a_number_of_steps_that_parameters_share_proves_nothing():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    backward(model)
    optimizer.step()
    states = list(optimizer.state.values())
    for state in states:
        state["step"] = states[0]["step"]
    assert not is_proved(model, optimizer)


def test_a_step_that_raises_leaves_everything_else_checked(training, monkeypatch):
    model, optimizer, _ = training

    def stopped(*_: Any) -> float:
        raise KeyboardInterrupt

    backward(model)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(importlib.import_module("torch.optim.adam"), "_get_value", stopped)
        optimizer.step()
    assert finding_of(lambda: torch.log(torch.tensor(-1.0)).item()).op == "aten::log"


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("width", [8, 80])
def test_bounds_after_a_step_hold(form, width, monkeypatch):
    """The bounds that a step leaves are those of what it wrote, in each form."""
    model = network(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1, **form)
    with torchnan.detect(rescan_every=0) as session:
        for step in range(STEPS):
            backward(model)
            for parameter in model.parameters():
                parameter.grad.mul_(10.0 ** (3 * step))
            optimizer.step()
            state = [value for entry in optimizer.state.values() for value in entry.values()]
            for tensor in [*(p.detach() for p in model.parameters()), *state]:
                known = _testing.known_bound(tensor)
                assert known is None or tensor.abs().max() <= known
            operations = session.stats()["ops"]
            optimizer.step()
            assert session.stats()["ops"] == operations or step == 0, "this step was not proved"
    assert session.findings == []


def test_a_fused_step_that_a_scaler_may_skip_is_intercepted():
    """A skipped step leaves the moments as they were, which may exceed the values that it would have written."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with torchnan.detect(rescan_every=0) as session:
        for _ in range(STEPS):
            model.zero_grad()
            scaler.scale(model(torch.randn(4, 8)).square().mean()).backward()
            before = session.stats()["ops"]
            scaler.step(optimizer)
            operations = session.stats()["ops"] - before
            scaler.update()
    assert operations > 0


def test_a_gradient_too_large_for_the_second_moment_is_found_where_it_overflows(training):
    model, optimizer, _ = training
    backward(model)
    model[1].weight.grad.fill_(1e30)
    with pytest.raises(torchnan.NonFiniteError) as raised:
        optimizer.step()
        optimizer.state[model[1].weight]["exp_avg_sq"].sum().item()
    assert raised.value.finding.op == "aten::addcmul_"
    assert raised.value.finding.file == __file__


def test_a_negative_second_moment_is_found_at_its_root(training):
    model, optimizer, _ = training
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["exp_avg_sq"].fill_(-1)
    optimizer.load_state_dict(state)
    backward(model)

    def step() -> None:
        optimizer.step()
        model[0].weight.sum().item()

    assert finding_of(step).op == "aten::sqrt"


def test_writes_between_two_steps_are_found(training):
    model, optimizer, _ = training
    backward(model)
    optimizer.state[model[2].bias]["exp_avg"].fill_(float("nan"))

    def step() -> None:
        optimizer.step()
        backward(model)

    assert finding_of(step).op == "aten::fill_"


def test_a_bad_gradient_is_reported_before_the_step(training):
    model, optimizer, _ = training
    backward(model)
    model[0].bias.grad.div_(torch.zeros(8))
    finding = finding_of(optimizer.step)
    assert finding.harm.kind == "gradient"
    assert finding.op == "aten::div_"


def test_parameters_stay_known_for_later_calls(training):
    """No full scan of a parameter is needed after a proved step."""
    model, optimizer, session = training
    backward(model)
    optimizer.step()
    before = session.stats()
    model(torch.ones(4, 8))
    after = session.stats()
    assert after["bytes_scanned_unknown"] == before["bytes_scanned_unknown"]


def test_a_pause_lasts_through_a_step(training):
    model, optimizer, _ = training
    with detection_paused():
        backward(model)
        optimizer.step()
        assert not torch.log(torch.tensor(-1.0)).item() > 0
    assert finding_of(lambda: torch.log(torch.tensor(-1.0)).item()).op == "aten::log"
