"""Steps of Adam on a device: what is proved, and that no value is missed."""

from __future__ import annotations

import contextlib
import importlib

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchnan
from benchmarks.gpu.models import GPT2

WIDTH = 80  # enough for bounds to be worth it


def network(device):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)]).to(device)


def backward(model):
    model.zero_grad()
    model(torch.ones(4, WIDTH).to(model[0].weight.device)).square().mean().backward()


@pytest.fixture(params=[{}, {"foreach": True}], ids=["single", "foreach"])
def training(request, device):
    """A model and its optimizer after two steps, and the session that has seen these."""
    model = network(device)
    optimizer = torch.optim.AdamW(model.parameters(), **request.param)
    with torchnan.detect(action="log") as watch:
        for _ in range(2):
            backward(model)
            optimizer.step()
        yield model, optimizer, watch


def operations_of_step(optimizer, watch):
    before = watch.stats()["ops"]
    optimizer.step()
    return watch.stats()["ops"] - before


@contextlib.contextmanager
def during_the_step(monkeypatch, act):
    """Inside the block, a step of Adam calls `act` whenever it reads how many steps there were."""
    adam = importlib.import_module("torch.optim.adam")
    get_value = adam._get_value

    def act_and_get_value(x):
        act()
        return get_value(x)

    with monkeypatch.context() as patched:
        patched.setattr(adam, "_get_value", act_and_get_value)
        yield


def test_ordinary_steps_are_proved(machine, training):
    """Fails if the histories of moments are not followed on devices: the parameters are scanned then."""
    model, optimizer, watch = training
    backward(model)
    before = watch.stats()
    assert operations_of_step(optimizer, watch) == 0
    after = watch.stats()
    assert after["device_bytes"] - before["device_bytes"] == sum(layer.bias.nbytes for layer in model)
    assert watch.findings == []


@pytest.mark.parametrize("options", [{"amsgrad": True}, {"capturable": True}, {"rescan_every": 1}], ids=str)
def test_other_steps_are_intercepted(options, device):
    model = network(device)
    exact = options == {"rescan_every": 1}
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, **({} if exact else options))
    with torchnan.detect(action="log", rescan_every=1 if exact else 1000) as watch:
        for _ in range(3):
            backward(model)
            operations = operations_of_step(optimizer, watch)
    assert operations > 0


def test_the_bits_are_the_same(device):
    def weights():
        model = network(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(4):
            backward(model)
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    plain = weights()
    with torchnan.detect(action="log"):
        watched = weights()
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))


def test_a_bad_gradient_is_reported_with_its_origin(machine, training):
    model, optimizer, watch = training
    backward(model)
    model[0].weight.grad.div_(0)
    optimizer.step()
    model(torch.ones(4, WIDTH).to(model[0].weight.device)).sum().item()
    assert [(finding.op, finding.harm.kind) for finding in watch.findings] == [("aten::div_", "gradient")]


def assert_second_moment_is_named(optimizer, model, watch):
    optimizer.state[model[1].weight]["exp_avg_sq"].sum().item()
    assert [(finding.op, finding.kind) for finding in watch.findings] == [("aten::_foreach_addcmul_", "inf")]


# The square of 2e33 overflows. i0() has no rule, so its result is assumed to be smaller. The next three tests run in
# one form only, and each calls it at a line of its own: after an alarm, nothing is assumed at a call site any more.
@pytest.mark.parametrize("training", [{"foreach": True}], ids=["foreach"], indirect=True)
def test_a_gradient_larger_than_assumed_voids_the_proof_of_the_step(training):
    """The second moment is Inf, although the step was proved. Fails if the step's proofs stay."""
    model, optimizer, watch = training
    backward(model)
    model[1].weight.grad = torch.special.i0(torch.full_like(model[1].weight, 80.0))
    assert operations_of_step(optimizer, watch) == 0
    assert_second_moment_is_named(optimizer, model, watch)


@pytest.mark.parametrize("training", [{"foreach": True}], ids=["foreach"], indirect=True)
def test_an_alarm_during_the_step_voids_its_proof(machine, training, monkeypatch):
    """Fails if the alarm is heeded before all of the step is recorded."""
    model, optimizer, watch = training
    backward(model)
    model[1].weight.grad = torch.special.i0(torch.full_like(model[1].weight, 80.0))
    with during_the_step(monkeypatch, machine.synchronize):
        assert operations_of_step(optimizer, watch) == 0
    assert_second_moment_is_named(optimizer, model, watch)


@pytest.mark.parametrize("training", [{"foreach": True}], ids=["foreach"], indirect=True)
def test_an_alarm_that_is_heeded_during_the_step_voids_its_proof(machine, training, monkeypatch):
    """Fails if the step is recorded as it was proved: later proofs would build on its bounds."""
    model, optimizer, watch = training
    backward(model)
    model[1].weight.grad = torch.special.i0(torch.full_like(model[1].weight, 80.0))

    def heed_the_alarm():
        machine.synchronize()
        assert torchnan.origin_of(model[0].weight.grad) is None

    with during_the_step(monkeypatch, heed_the_alarm):
        before = watch.stats()
        assert operations_of_step(optimizer, watch) == 0
    scanned = watch.stats()["device_bytes"] - before["device_bytes"]
    assert scanned >= 3 * sum(parameter.nbytes for parameter in model.parameters())
    assert_second_moment_is_named(optimizer, model, watch)


def test_of_a_step_that_raises_nothing_is_believed(machine, training, monkeypatch):
    """Fails if the old bounds of the moments are kept: the first ones have been written by then."""
    model, optimizer, watch = training

    def stop():
        raise KeyboardInterrupt

    backward(model)
    with during_the_step(monkeypatch, stop), pytest.raises(KeyboardInterrupt):
        optimizer.step()
    before = watch.stats()["device_bytes"]
    model(torch.ones(4, WIDTH).to(model[0].weight.device))
    assert watch.stats()["device_bytes"] - before >= sum(parameter.nbytes for parameter in model.parameters())


def test_small_results_of_a_backward_pass_are_not_scanned_one_by_one(machine, training):
    """Fails if small results on a device are scanned although a bound proves them: each would be a launch."""
    model, optimizer, _ = training
    backward(model)
    optimizer.step()
    assert machine.trace(lambda: backward(model)).scans <= 2


def test_every_step_of_a_long_training_is_proved(device):
    """Fails if the journal forgets tensors that are in use: then the operations of a step are checked one by one."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torchnan.detect(action="log", rescan_every=0) as watch:
        backward(model)
        optimizer.step()
        for step in range(1, 300):
            backward(model)
            assert operations_of_step(optimizer, watch) == 0, step


def test_a_square_root_shows_that_nothing_was_negative(machine, device):
    """Fails if only the host learns from it: then all later roots of such sums are scanned."""
    values = torch.rand(100, 100).to(device)
    with torchnan.detect(action="log", rescan_every=0) as watch:
        values.sqrt()
        before = watch.stats()["device_bytes"]
        values.mul_(0.5).sqrt()
        assert watch.stats()["device_bytes"] == before
        values.sub_(1)
        values.sqrt().sum().item()
        again = values * 1
        before = watch.stats()["device_bytes"]
        again.abs().mul_(values).sqrt()
        assert watch.stats()["device_bytes"] > before
    assert [finding.op for finding in watch.findings][:1] == ["aten::sqrt"]


def test_at_most_a_tenth_of_the_bytes_that_a_small_gpt2_writes_is_read(machine, device):
    torch.manual_seed(0)
    model = GPT2(layers=2, width=128, heads=4, words=2048, tokens=128).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 2048, (2, 128)).to(device)
    shares = []
    with torchnan.detect(action="log") as watch:
        for _ in range(3):
            before = watch.stats()
            optimizer.zero_grad()
            functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()
            machine.synchronize()
            after = watch.stats()
            read, proved = (after[what] - before[what] for what in ("device_bytes", "bytes_proved"))
            shares.append(read / (read + proved))
    assert watch.findings == []
    assert max(shares[1:]) <= 0.1
