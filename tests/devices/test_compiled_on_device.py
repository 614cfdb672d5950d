"""Compiled regions on a device: results are scanned at the border, without a wait. When the device reports, the call is
replayed. If its inputs are gone by then, the report names the region, and its next call is replayed."""

from __future__ import annotations

import gc
import inspect
import weakref

import pytest
import torch

import torchnan
from tests.devices.conftest import of_kernel
from tests.devices.lagging import SCANNER
from torchnan.detection.compiled import random_numbers, region

pytestmark = pytest.mark.usefixtures("compiler")

NEXT = "; its next call is replayed if it makes one too"
GONE = f"its inputs were gone when the device reported{NEXT}"
LARGE = (1 << 18) + 1  # so many float32 elements are not copied before a call that overwrites them
OVERWRITTEN = f"its inputs were overwritten before the device reported{NEXT}"
READ_BEFORE = "(read the loss before the optimizer steps, or use torchnan.StepGuard)"
UPDATED = "its weights were updated before the device reported " + (
    f"and max_preserved_bytes=0 leaves no room for copies of them {READ_BEFORE}{NEXT}"
    if SCANNER == "kernel"
    else f"{READ_BEFORE}{NEXT}"
)


class Model(torch.nn.Module):
    """Takes the logarithm of what may be zero, between two products that library kernels compute."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x, scale):
        x = torch.log(torch.tanh(self.first(x)).square() * scale + 1e-3 * scale)
        return self.last(x).square().mean()


def loss_of(device):
    """Returns a compiled model, and a function that computes its loss with a factor."""
    torch.manual_seed(0)
    model = Model().to(device)
    compiled = torch.compile(model)
    batch = torch.randn(16, 8).to(device)
    factors = {value: torch.tensor(value).to(device) for value in (0.0, 1.0)}
    return model, lambda factor: compiled(batch, factors[factor])


def training(device):
    """Returns a compiled model, and a function that trains it for a step with a factor."""
    model, loss = loss_of(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(factor=1.0):
        optimizer.zero_grad()
        loss(factor).backward()
        optimizer.step()

    return model, step


def line_of(function, code):
    lines, first = inspect.getsourcelines(function)
    return next(first + i for i, line in enumerate(lines) if code in line)


def errors(watch):
    return [finding for finding in watch.findings if finding.level == "error"]


def facts_of(finding):
    return finding.origin, finding.op, finding.phase, finding.compiled.region, finding.compiled.obstacle


def test_a_healthy_compiled_training_is_waited_for_as_often_as_without(machine, device):
    _, step = training(device)
    step()
    plain = machine.count(step)
    with torchnan.detect(action="log") as watch:
        step()
        step()
        before = watch.stats()
        watched = machine.count(step)
        after = watch.stats()
    assert watched == plain
    assert watch.findings == []
    assert after["internal_errors"] == 0
    scanned = after["bytes"] - before["bytes"]
    loss_and_gradients = 4 * (1 + (64 + 8) + (8 + 1))
    assert loss_and_gradients <= scanned < 3 * loss_and_gradients  # a step of the optimizer scans the parameters
    assert machine.stale_reads() == 0


@of_kernel
def test_the_operation_is_named_though_its_weights_have_changed_meanwhile(device):
    _, step = training(device)
    with torchnan.detect(action="log") as watch:
        step()
        step(factor=0.0)
    found = watch.first
    assert (found.op, found.kind, found.line) == ("aten::log", "inf", line_of(Model.forward, "torch.log"))
    assert (found.compiled.region, found.compiled.replay, found.compiled.obstacle) == ("forward", "traced", None)
    assert (found.harm.kind, found.step, found.device) == ("backward", 2, str(device))
    assert len(errors(watch)) == 1


@of_kernel
@pytest.mark.parametrize("foreach", [False, True])
def test_a_healthy_step_launches_one_copy_and_has_the_same_bits(machine, device, foreach):
    def trained(watch):
        model, loss = loss_of(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=foreach)

        def step():
            loss(1.0).backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(3):
            machine.count(step)
            assert machine.copy_launches() == watch
        return torch.cat([value.cpu().flatten() for value in model.parameters()])

    plain = trained(watch=0)
    with torchnan.detect(action="log") as watch:
        watched = trained(watch=1)
    assert watched.equal(plain)
    assert (watch.findings, watch.stats()["internal_errors"]) == ([], 0)


@of_kernel
def test_a_copy_is_made_again_if_another_region_has_run_since(device):
    torch.manual_seed(0)
    first, second = (torch.nn.Linear(8, 1).to(device) for _ in range(2))
    compiled = torch.compile(lambda layer, x: torch.log(layer(x).square()).mean())
    inputs = {value: torch.full((4, 8), value).to(device) for value in (0.0, 1.0)}
    with torch.no_grad():
        second.bias.zero_()

    def step(layer, value):
        loss = compiled(layer, inputs[value])
        loss.backward()
        with torch.no_grad():
            for weight in layer.parameters():
                weight.sub_(1e-3 * weight.grad)

    with torchnan.detect(action="log") as watch:
        kept = compiled(second, inputs[1.0])
        step(first, 1.0)  # copies the weights of the second, too
        step(second, 0.0)
        del kept
    assert (watch.first.op, watch.first.kind, watch.first.compiled.obstacle) == ("aten::log", "inf", None)


@of_kernel
def test_a_region_that_returns_a_view_of_its_weight_has_not_written_it(device):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(8, 8).to(device))
    batches = [torch.full((4, 8), value).to(device) for value in (0.0, 1.0)]

    @torch.compile
    def compiled(x):
        return torch.log((x @ weight).square()).mean(), weight.t()

    compiled(batches[1])
    with torchnan.detect(action="log") as watch:
        for x in batches:
            loss, view = compiled(x)
            loss.backward()
        del loss, view
        with torch.no_grad():
            weight.sub_(1e-3 * weight.grad)
    found = watch.first
    assert (found.op, found.kind, found.compiled.obstacle) == ("aten::log", "inf", None)


@of_kernel
def test_weights_that_a_compiled_optimizer_updates_are_copied(device):
    model, loss = loss_of(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    update = torch.compile(optimizer.step)

    def step(factor):
        loss(factor).backward()
        update()
        optimizer.zero_grad()

    with torchnan.detect(action="log") as watch:
        step(1.0)
        step(0.0)
    assert (watch.first.op, watch.first.line) == ("aten::log", line_of(Model.forward, "torch.log"))


def test_the_region_is_named_if_its_weights_have_changed_meanwhile_and_were_not_copied(device):
    _, step = training(device)
    with torchnan.detect(action="log", max_preserved_bytes=0) as watch:
        step()
        step(factor=0.0)
    found = watch.first
    assert facts_of(found) == ("compiled", "inductor::compiled_region", "forward", "forward", UPDATED)
    assert (found.compiled.file, found.compiled.line) == (__file__, Model.forward.__code__.co_firstlineno)
    assert (found.compiled.replay, found.compiled.kernel) == ("none", None)
    assert (found.harm.kind, found.step, found.device) == ("backward", 2, str(device))
    assert len(errors(watch)) == 1


def test_a_value_that_a_region_was_given_keeps_its_origin(device):
    compiled = torch.compile(lambda x, w: (x @ w).relu().sum())
    w = torch.randn(4, 4).to(device)
    zeros = torch.zeros(4, 4).to(device)
    with torchnan.detect(action="log") as watch:
        compiled(zeros / zeros, w).item()
    assert [(f.origin, f.op) for f in watch.findings] == [("op", "aten::div")]
    assert watch.first.lineage[0].op == "inductor::compiled_region"


def test_a_value_among_many_arguments_is_followed(device):
    compiled = torch.compile(lambda *tensors: [x + 1 for x in tensors])
    tensors = [torch.ones(4).to(device) for _ in range(30)]
    with torchnan.detect(action="log") as watch:
        tensors[20] = torch.log(tensors[20] * -1)
        results = compiled(*tensors)
        results[20].sum().item()
    assert [(f.origin, f.op) for f in watch.findings] == [("op", "aten::log")]


def test_a_bad_weight_is_named(device):
    model, step = training(device)
    with torchnan.detect(action="log") as watch:
        step()
        with torch.no_grad():
            model.last.weight.div_(0)
        step()
    assert watch.first.op == "aten::div_"
    assert {f.compiled for f in watch.findings} == {None}


@pytest.mark.parametrize("weights", [4, 12])  # an event holds eight inputs; others continue it
def test_a_bad_weight_that_is_first_read_inside_a_region_has_the_module_that_reads_it(device, weights):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(weights // 2)))
    with torch.no_grad():
        model[-1].bias[1] = float("nan")
    model.to(device).compile()
    x = torch.ones(2, 4).to(device)
    with torchnan.detect(action="log", model=model) as watch, torch.no_grad():
        model(x).sum().item()
    (found,) = watch.findings
    assert (found.origin, found.op, found.name) == ("parameter", "aten::addmm", f"{len(model) - 1}.bias")
    assert (found.module, found.module_type) == (f"{len(model) - 1}", "Linear")


@of_kernel
def test_unwritten_memory_that_is_first_read_inside_a_region_has_the_module_that_reads_it(machine, device):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)).to(device)
    compiled = torch.compile(lambda mask: model(torch.ones(2, 4, device=device) + mask))
    with torchnan.detect(action="log", model=model) as watch, torch.no_grad():
        mask = torch.empty(2, 4, device=device)  # ALLOCATED
        machine.put(mask, float("nan"))  # as memory that is used again may hold
        compiled(mask).sum().item()
        model[1].weight = torch.nn.Parameter(torch.empty(1, 4, device=device))
        machine.put(model[1].weight, float("nan"))
        compiled(torch.ones(2, 4, device=device)).sum().item()
    memory, weight = watch.findings
    test = test_unwritten_memory_that_is_first_read_inside_a_region_has_the_module_that_reads_it
    assert (memory.origin, memory.op, memory.line) == ("uninit", "aten::empty", line_of(test, "# ALLOCATED"))
    assert "add" in str(memory)
    assert (weight.origin, weight.name, weight.module) == ("parameter", "1.weight", "1")


@of_kernel
def test_memory_that_one_region_writes_in_part_has_the_module_that_reads_the_rest_in_another(machine, device):
    model = torch.nn.Sequential(torch.nn.Linear(4, 1)).to(device)
    compiled, filled = torch.compile(model), torch.compile(lambda bank: bank[1].fill_(1.0))
    with torchnan.detect(action="log", model=model) as watch, torch.no_grad():
        bank = torch.empty(2, 4, device=device)
        machine.put(bank, float("nan"))  # as memory that is used again may hold
        filled(bank)
        compiled(bank).sum().item()
    (found,) = watch.findings
    assert (found.origin, found.op, found.module) == ("uninit", "aten::empty", "0")


def test_a_weight_that_the_program_has_made_bad_is_named(device):
    model = torch.nn.Linear(4, 1).to(device)
    compiled = torch.compile(model)
    x = torch.ones(2, 4).to(device)
    with torchnan.detect(action="log") as watch:
        compiled(x).sum().item()
        with torch.no_grad():
            model.weight[0, 1] = float("nan")
        compiled(x).sum().item()
    found = watch.first
    assert (found.origin, found.name, found.op) == ("parameter", "weight", "aten::addmm")
    assert found.compiled.replay == "traced"


def test_a_gradient_is_named_in_its_pass(device):
    @torch.compile
    def root(x):
        return torch.sqrt(x).sum()

    x = torch.zeros(4).to(device).requires_grad_()
    with torchnan.detect(action="log") as watch:
        loss = root(x)
        (loss * 0).backward()
        x.grad.sum().item()
    found = watch.first
    assert facts_of(found) == ("op", "aten::div", "backward", "root", None)
    assert (found.node, found.line) == ("SqrtBackward0", line_of(test_a_gradient_is_named_in_its_pass, "torch.sqrt"))


@torch.compile
def overwrite(x, y):
    x.div_(y)
    return y + 1


@pytest.mark.parametrize(("size", "obstacle"), [(4, None), (LARGE, GONE)])
def test_an_argument_that_a_region_overwrites_is_checked(machine, device, size, obstacle):
    x, y = torch.ones(size).to(device), torch.zeros(size).to(device)
    with torchnan.detect(action="log") as watch:
        assert machine.count(lambda: overwrite(x, y)) == (0, 0)
        x.sum().item()
    found = ("compiled", "inductor::compiled_region") if obstacle else ("op", "aten::div_")
    assert facts_of(watch.first) == (*found, "forward", "overwrite", obstacle)


@pytest.mark.parametrize(("count", "obstacle"), [(16, None), (17, GONE)])
def test_no_more_arguments_are_copied_than_take_the_host_little_time(device, count, obstacle):
    @torch.compile
    def overwrite_all(values):
        for value in values:
            value.div_(value)

    zeros = [torch.zeros(4).to(device) for _ in range(count)]
    with torchnan.detect(action="log") as watch:
        overwrite_all(zeros)
        zeros[0].sum().item()
    assert watch.first.compiled.obstacle == obstacle


def test_a_mask_that_a_region_overwrites_is_not_the_cause(device):
    @torch.compile
    def overwrite_mask(mask, x):
        mask.add_(x)
        return torch.sqrt(x) + mask

    mask, x = torch.full((4,), float("-inf"), device=device), torch.full((4,), -1.0).to(device)
    with torchnan.detect(action="log") as watch:
        mask.fill_(float("-inf"))
        overwrite_mask(mask, x).sum().item()
    assert [(f.origin, f.op) for f in errors(watch)] == [("op", "aten::sqrt")]


def test_a_mask_that_only_regions_read_may_stay_alive(device):
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Buffer(torch.tril(torch.ones(4, 4, device=device)).log())

        def forward(self, x):
            return (x @ x.t() + self.bias).softmax(-1) @ x

    with torchnan.detect(action="log") as watch:
        module = Attention()
        module.compile()
        module(torch.randn(4, 3).to(device)).sum().item()
    assert watch.findings == []


def test_a_gradient_that_a_region_compares_may_stay_alive(device):
    @torch.compile
    def step(weight, gradient):
        return weight - torch.where(torch.isfinite(gradient), gradient, torch.zeros_like(gradient))

    weight = torch.zeros(4).to(device).requires_grad_()
    with torchnan.detect(action="log") as watch:
        weight.square().sum().sqrt().backward()
        with torch.no_grad():
            assert step(weight, weight.grad).isfinite().all()
    assert watch.findings == []


def test_constants_that_a_region_writes_are_no_origin(device):
    @torch.compile
    def reset(lowest, highest, last):
        lowest.fill_(float("inf"))
        highest.fill_(float("-inf"))
        last.fill_(float("nan"))

    state = [torch.zeros(()).to(device) for _ in range(3)]
    with torchnan.detect(action="log") as watch:
        reset(*state)
        for value in state:
            value.item()
    assert watch.findings == []


def test_a_compiled_step_of_an_optimizer_is_replayed(device):
    weight = torch.zeros(4).to(device).requires_grad_()
    optimizer = torch.optim.Adagrad([weight], eps=0.0, foreach=True)
    step = torch.compile(optimizer.step)
    with torchnan.detect(action="log") as watch:
        (weight * 0).sum().backward()
        step()
        weight.sum().item()
    assert (watch.first.op, watch.first.phase) == ("aten::_foreach_addcdiv_", "optimizer")
    assert watch.first.compiled.replay == "traced"


def test_a_compiled_optimizer_is_freed_with_its_state(device):
    weight = torch.zeros(4).to(device).requires_grad_()
    optimizer = torch.optim.Adagrad([weight])
    held = weakref.ref(optimizer.state[weight]["sum"])
    step = torch.compile(optimizer.step)
    with torchnan.detect(action="log"):
        (weight * 2).sum().backward()
        step()
        del step, optimizer, weight
        gc.collect()
        assert held() is None


def test_a_value_is_named_that_an_alarm_finds_while_the_region_returns(machine, device):
    w = torch.full((4,), 1e-20).to(device).requires_grad_()
    with torchnan.detect(action="log") as watch:
        total = torch.compile(lambda w: (w * 1e20).sum())(w)
        total.register_hook(lambda gradient: machine.synchronize())  # it exceeds what was assumed of it
        (total * 1e25).backward()
        w.grad.sum().item()
    assert (watch.first.op, watch.first.node, watch.first.compiled.replay) == ("aten::mul", "MulBackward0", "traced")


def test_an_error_is_raised_at_the_region_if_asked(device, machine):
    _, step = training(device)
    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect(when="origin"):
            step(factor=0.0)
    assert raised.value.finding.harm.kind == "origin"
    assert_names_the_logarithm(raised.value.finding)


def test_memory_that_a_region_returns_unwritten_is_named_where_it_was_allocated(machine, device):
    @torch.compile
    def cache_of(x):
        return torch.empty(4, 4, device=x.device), x + 1

    x = torch.ones(4, 4).to(device)
    with torchnan.detect(action="log") as watch:
        cache, moved = cache_of(x)
        machine.put(cache, float("nan"))  # as memory that is used again may hold
        (cache * moved).sum().item()
    found = watch.first
    assert (found.origin, found.op, found.line) == ("uninit", "aten::empty", line_of(cache_of, "torch.empty"))
    assert len(errors(watch)) == 1


def test_a_constant_explains_a_nan_of_the_optimizer(device):
    """The optimizer is compiled, and what it overwrites is bad already in the step after."""
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    step = torch.compile(optimizer.step)
    with torchnan.detect(action="log", model=model) as watch:
        for number in range(3):
            x = torch.ones(2, 4).to(device)
            if number == 1:
                x[0, 0] = float("nan")
            optimizer.zero_grad()
            model(x).sum().backward()
            step()
    assert [(found.origin, found.op, found.step) for found in errors(watch)] == [("input", "aten::scalar_tensor", 2)]


def test_a_replay_forgets_no_value_that_a_later_result_was_made_of(device):
    """It resolves its own operations, after the value has been overwritten."""
    compiled = torch.compile(lambda x: torch.log(x) - torch.log(x))
    x = torch.zeros(4).to(device)
    with torchnan.detect(action="log") as watch:
        zeros = torch.zeros(4).to(device)
        bad = zeros / zeros
        bad.sum().item()
        made = compiled(x)
        copied = bad * 1.0
        bad.zero_()
        made.sum().item()
        copied.sum().item()
    assert [found.op for found in errors(watch)] == ["aten::div", "aten::log"]


@pytest.mark.parametrize("when", ["before detection", "under detection"])
def test_an_input_is_attributed_to_the_operation_that_reads_it(device, when):
    compiled = torch.compile(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU()))
    x = torch.full((4, 1), float("nan"))
    x = x.to(device) if when == "before detection" else x
    with torchnan.detect(action="log") as watch:
        compiled(x.to(device)).sum().item()
    (found,) = watch.findings
    assert (found.origin, found.module) == ("input", "1")
    assert "first used by aten::relu   in 1 (ReLU)" in str(found)


# -- the replay of a call that has returned


def assert_names_the_logarithm(found):
    assert (found.origin, found.op, found.kind, found.module) == ("op", "aten::log", "inf", "")
    assert (found.file, found.line) == (__file__, line_of(Model.forward, "torch.log"))
    assert (found.compiled.region, found.compiled.replay, found.compiled.obstacle) == ("forward", "traced", None)


def test_a_value_is_named_when_it_is_read(machine, device):
    _, loss = loss_of(device)
    with torchnan.detect(action="log") as watch:
        loss(1.0).item()
        loss(0.0).item()
        assert watch.stats()["internal_errors"] == 0
        again = machine.count(lambda: loss(1.0))
    assert_names_the_logarithm(watch.first)
    assert len(errors(watch)) == 1
    assert again == (0, 0)  # a region whose call was replayed is not followed


def test_an_error_names_the_operation(device):
    _, loss = loss_of(device)
    with pytest.raises(torchnan.NonFiniteError) as raised, torchnan.detect():
        loss(0.0).item()
    assert_names_the_logarithm(raised.value.finding)


def test_a_value_has_the_step_of_its_call(machine, device):
    _, loss = loss_of(device)
    with torchnan.detect(action="log") as watch:
        losses = []
        for step, factor in ((1, 1.0), (2, 0.0), (3, 1.0)):
            watch.mark_step(step)
            losses.append(loss(factor))
        losses[1].item()
    assert_names_the_logarithm(watch.first)
    assert (watch.first.step, watch.first.harm.kind) == (2, "read")


def test_a_value_is_named_at_the_end_of_a_detection(device):
    _, loss = loss_of(device)
    with torchnan.detect(action="log") as watch:
        kept = loss(0.0)
    assert_names_the_logarithm(watch.first)
    assert watch.first.harm.kind == "alive"
    del kept


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient / gradient.norm()


def reversed_gradient(x):
    return Reverse.apply(x)


def test_a_replay_at_the_end_of_a_detection_sees_where_functions_were_applied(device):
    compiled = torch.compile(lambda x: reversed_gradient(x * 2) * 0)
    x = torch.ones(4).to(device).requires_grad_()
    with torchnan.detect(action="log") as watch:
        compiled(x).sum().backward()
    assert (watch.first.op, watch.first.node) == ("aten::div", "ReverseBackward")
    assert watch.first.line == line_of(reversed_gradient, "Reverse.apply")


def test_a_value_is_named_from_inside_a_backward_pass(machine, device):
    _, loss = loss_of(device)
    x = torch.ones(4).to(device).requires_grad_()

    def on_gradient(gradient):
        machine.synchronize()  # raises the alarm
        return gradient * 2

    with torchnan.detect(action="log") as watch:
        bad = loss(0.0)
        y = x * 3
        y.register_hook(on_gradient)
        y.sum().backward()
        bad.item()
    assert_names_the_logarithm(watch.first)


def test_a_step_guard_names_the_operation(device):
    torch.manual_seed(0)
    model = Model().to(device)
    compiled = torch.compile(model)
    batch = torch.randn(16, 8).to(device)
    guard = torchnan.StepGuard(
        model, torch.optim.AdamW(model.parameters()), lambda _, factor: compiled(batch, factor), try_remedies=False
    )
    with torchnan.detect(action="log") as watch:
        assert guard.step(torch.tensor(1.0).to(device)).applied
        assert not guard.step(torch.tensor(0.0).to(device)).applied
    assert_names_the_logarithm(watch.first)


def test_results_that_are_gone_are_named(device):
    compiled = torch.compile(lambda x: (torch.log(x), x + 1))
    with torchnan.detect(action="log") as watch:
        logs, _ = compiled(torch.zeros(4).to(device))
        total = logs.sum()
        del logs
        total.item()
    assert (watch.first.op, watch.first.compiled.replay) == ("aten::log", "traced")


def test_each_result_has_its_cause(device):
    compiled = torch.compile(lambda x, y: (torch.log(x), y + 1, torch.sqrt(y)))
    with torchnan.detect(action="log") as watch:
        logs, _, roots = compiled(torch.zeros(4).to(device), torch.full((4,), -1.0).to(device))
        roots.sum().item()
        logs.sum().item()
    assert [(f.op, f.kind) for f in errors(watch)] == [("aten::sqrt", "nan"), ("aten::log", "inf")]


def test_a_mask_among_the_arguments_does_not_hide_a_value(device):
    compiled = torch.compile(lambda scores, mask: torch.softmax(scores + mask, -1))
    mask = torch.full((4,), float("-inf")).to(device)
    with torchnan.detect(action="log") as watch:
        compiled(torch.zeros(4).to(device), mask).sum().item()
    assert (watch.first.op, watch.first.kind, watch.first.origin) == ("aten::_softmax", "nan", "op")


def test_a_region_that_returns_a_mask_that_it_was_given_is_not_replayed(machine, device):
    compiled = torch.compile(lambda scores, mask: (torch.softmax(scores + mask, -1), scores + mask))
    mask = torch.tensor([0.0, 0.0, float("-inf")]).to(device)

    def call():
        compiled(torch.zeros(3).to(device), mask)[0].sum().item()

    call()
    plain = machine.count(call)[0]
    with torchnan.detect(action="log") as watch:
        watched = machine.count(call)[0]
        assert watch.findings == []
    assert watched <= plain + 2  # the alarm


def test_a_region_without_arguments_is_replayed(device):
    compiled = torch.compile(lambda: torch.log(torch.zeros(4, device=device)))
    with torchnan.detect(action="log") as watch:
        compiled().sum().item()
    assert (watch.first.op, watch.first.compiled.replay) == ("aten::log", "traced")


class WithStatistics(Model):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Sequential(self.first, torch.nn.BatchNorm1d(8))


def test_a_call_that_only_updates_running_statistics_is_replayed(device):
    torch.manual_seed(0)
    model = WithStatistics().to(device)
    x, zero = torch.randn(16, 8).to(device), torch.tensor(0.0).to(device)
    with torchnan.detect(action="log") as watch:
        loss = torch.compile(model)(x, zero)
        loss.backward()
        loss.item()
    (finding,) = errors(watch)
    assert (finding.op, finding.line) == ("aten::log", line_of(Model.forward, "torch.log"))
    assert finding.compiled.replay == "traced"
    assert model.first[1].num_batches_tracked.item() == 1


def test_a_late_replay_draws_the_random_numbers_of_the_call(device):
    finding, total = finding_and_total(device, of_two_draws, calls=1)
    assert (finding.op, finding.line) == ("aten::log", line_of(logarithms, "torch.log"))
    assert finding.inputs[0].absmax == pytest.approx(total, rel=1e-5)


class Router(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scores, self.tau = torch.nn.Linear(3, 4), 1.0

    def forward(self, x):
        return torch.nn.functional.gumbel_softmax(self.scores(x), tau=self.tau)  # patterns of Inductor replace parts


def test_a_random_region_with_a_number_that_varies_is_replayed(device):
    """Dynamo passes the number as a tensor from the second call on."""
    torch._dynamo.reset()
    model = torch.nn.Sequential(Router()).to(device)
    compiled, x = torch.compile(model), torch.randn(2, 3).to(device)
    with torchnan.detect(action="log", model=model) as watch, torch.no_grad():
        for tau in (1.0, 0.5, 0.0):
            model[0].tau = tau
            compiled(x).sum().item()
    found = watch.first
    assert (found.op, found.kind, found.compiled.obstacle) == ("aten::div", "inf", None)
    assert (found.module, found.line) == ("0", line_of(Router.forward, "gumbel_softmax"))


@pytest.mark.parametrize("preserved", [pytest.param(1 << 20, marks=of_kernel), 0])
def test_an_input_that_was_overwritten_is_not_used(device, preserved):
    compiled = torch.compile(lambda x: torch.log(x))
    fill = {torch.no_grad: lambda x: x.fill_(-1), torch.inference_mode: lambda x: x.fill_(-1)}
    fill[torch.enable_grad] = lambda x: x.data.fill_(-1)  # another version counter
    for mode in fill:
        with mode(), torchnan.detect(action="log", max_preserved_bytes=preserved) as watch:
            x = torch.ones(4).to(device) - 1
            y = compiled(x)
            fill[mode](x)
            y.sum().item()
        if preserved:
            assert (watch.first.op, watch.first.kind, watch.first.inputs[0].max) == ("aten::log", "inf", 0)
        else:
            assert watch.first.compiled.obstacle == OVERWRITTEN


def test_large_inputs_are_replayed_if_the_program_keeps_them(device):
    compiled = torch.compile(lambda x: torch.log(x).sum())
    with torchnan.detect(action="log", max_copied_bytes=4095) as watch:
        x = torch.zeros(1024).to(device)
        compiled(x).item()
        compiled(torch.zeros(1024).to(device)).item()
    assert [f.compiled.obstacle for f in errors(watch)] == [None, GONE]


def test_a_call_beyond_the_limit_is_replayed_if_the_program_keeps_its_inputs(device):
    compiled = torch.compile(lambda x: torch.log(x).sum())
    inputs = [torch.full((1024,), float(i)).to(device) for i in range(3)]
    with torchnan.detect(action="log", max_copied_bytes=6000) as watch:
        results = [compiled(x) for x in inputs]
        results[0].item()
    assert watch.first.op == "aten::log"


def test_inputs_are_kept_up_to_a_limit_and_not_beyond_the_detection(machine, device):
    compiled = torch.compile(lambda x: (x + 1).sum())
    kept = []

    def alive():
        return [i for i, reference in enumerate(kept) if reference() is not None]

    with torchnan.detect(action="log", max_copied_bytes=3 * 4096):
        for _ in range(5):
            x = torch.zeros(1024).to(device)
            kept.append(weakref.ref(x.untyped_storage()))
            compiled(x)
            del x
        assert alive() == [2, 3, 4]
    assert alive() == []


def test_inputs_are_kept_for_two_steps(device):
    compiled = torch.compile(lambda x: (x + 1).sum())
    x = torch.zeros(4).to(device)
    kept = weakref.ref(x.untyped_storage())
    with torchnan.detect(action="log") as watch:
        compiled(x)
        del x
        for step in (2, 3):
            assert kept() is not None
            watch.mark_step(step)
            compiled(torch.zeros(4).to(device))
        assert kept() is None


def test_a_gradient_of_a_model_is_named_when_its_loss_is_eager(device):
    compiled = torch.compile(lambda x: torch.sqrt(x))
    x = torch.zeros(4).to(device).requires_grad_()
    with torchnan.detect(action="log") as watch:
        (compiled(x) * 0).square().mean().backward()
        x.grad.sum().item()
    assert facts_of(watch.first)[:3] == ("op", "aten::div", "backward")
    assert watch.first.node == "SqrtBackward0"


@pytest.mark.parametrize("size", [(), (4,)], ids=["scalar", "vector"])
def test_a_gradient_of_the_root_of_a_backward_pass_is_named(device, size):
    compiled = torch.compile(lambda x: torch.sqrt(x))
    x = torch.zeros(size).to(device).requires_grad_()
    with torchnan.detect(action="log") as watch:
        compiled(x).backward(torch.ones(size).to(device))
        x.grad.sum().item()
    assert (watch.first.op, watch.first.node, watch.first.kind) == ("aten::div", "SqrtBackward0", "inf")


def test_arguments_can_be_swapped_after_a_call(device):
    model = torch.nn.Linear(4, 4).to(device)
    with torchnan.detect(action="log"):
        torch.compile(model)(torch.ones(2, 4).to(device)).sum().item()
        torch.utils.swap_tensors(model.weight, torch.nn.Parameter(torch.zeros(4, 4).to(device)))


def test_the_graph_of_an_argument_is_not_kept(machine, device):
    compiled = torch.compile(lambda x: (x + 1).sum())
    with torchnan.detect(action="log"):
        factor = torch.randn(4, 4).to(device)
        x = factor * torch.randn(4, 4).to(device).requires_grad_()
        saved = weakref.ref(factor)
        compiled(x)
        del x, factor
        assert saved() is None


def test_steps_that_are_counted_anew_keep_no_more_inputs(device):
    compiled = torch.compile(lambda x: (x + 1).sum())
    kept = []
    with torchnan.detect(action="log") as watch:
        for step in (1, 2, 3, 1, 2, 3):
            watch.mark_step(step)
            x = torch.zeros(4).to(device)
            kept.append(weakref.ref(x.untyped_storage()))
            compiled(x)
            del x
        assert [i for i, reference in enumerate(kept) if reference() is not None] == [4, 5]


def test_a_session_inside_forgets_no_call_of_the_one_around(device):
    compiled = torch.compile(lambda x: torch.log(x))
    with torchnan.detect(action="log") as watch:
        bad = compiled(torch.zeros(4).to(device))
        with torchnan.detect(action="log") as inside:
            inside.mark_step(7)
            compiled(torch.ones(4).to(device))
        bad.sum().item()
    assert (watch.first.op, watch.first.step) == ("aten::log", 1)


def test_a_call_with_an_empty_argument_is_replayed(device):
    compiled = torch.compile(lambda x, y: torch.log(torch.cat([x, y])))
    with torchnan.detect(action="log") as watch:
        compiled(torch.zeros(4).to(device), torch.ones(0).to(device)).sum().item()
    assert watch.first.op == "aten::log"


def test_a_gradient_that_is_read_in_inference_mode_is_named(device):
    compiled = torch.compile(lambda x: torch.sqrt(x).sum())
    x = torch.zeros(4).to(device).requires_grad_()
    with torchnan.detect(action="log") as watch:
        compiled(x).backward()
        with torch.inference_mode():
            x.grad.sum().item()
    assert (watch.first.op, watch.first.node) == ("aten::div", "SqrtBackward0")


def test_code_that_is_discarded_is_not_replayed(device, monkeypatch):
    monkeypatch.setattr(region, "_weakly", lambda discarded, call: lambda *given: None)
    compiled = torch.compile(lambda x: torch.log(x).sum())
    with torchnan.detect(action="log") as watch:
        compiled(torch.zeros(4).to(device)).item()
        assert watch.stats()["internal_errors"] == 0
    assert watch.first.compiled.obstacle == f"its compiled code was discarded before the device reported{NEXT}"


def test_weights_are_not_kept_alive(device):
    model = torch.nn.Linear(4, 4).to(device)
    weight = weakref.ref(model.weight.untyped_storage())
    with torchnan.detect(action="log"):
        torch.compile(model)(torch.ones(2, 4).to(device))
        del model
        torch._dynamo.reset()
        gc.collect()
        assert weight() is None


# -- the call after a report


@torch.compile
def _overwriting(x):
    x.log_()
    return x.sum()


def logarithm(device):
    """Returns a compiled function that overwrites its argument, and calls of it with and without an infinite result."""
    zeros, ones = torch.zeros(LARGE).to(device), torch.ones(LARGE).to(device)
    return lambda: _overwriting(zeros.clone()), lambda: _overwriting(ones.clone())


def test_a_value_that_recurs_is_named_one_step_later(machine, device):
    model, step = training(device)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    with torchnan.detect(action="log", max_preserved_bytes=0) as watch:
        step(factor=0.0)
        machine.synchronize()
        model.load_state_dict(saved)
        step(factor=0.0)
        assert watch.stats()["internal_errors"] == 0
    first, second = errors(watch)[0], errors(watch)[-1]
    assert (first.origin, first.compiled.obstacle) == ("compiled", UPDATED)
    assert (second.origin, second.op, second.kind, second.step) == ("op", "aten::log", "inf", 2)
    assert (second.file, second.line) == (__file__, line_of(Model.forward, "torch.log"))
    assert (second.compiled.region, second.compiled.replay, second.compiled.obstacle) == ("forward", "traced", None)
    assert second.harm.kind == "backward"


class Normalized(torch.nn.Module):
    def forward(self, x):
        return x / x.sum()


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Normalized()

    def forward(self, x):
        return self.inner(x) + 1


def test_a_replay_names_the_module(device):
    compiled = torch.compile(Outer())
    x = torch.zeros(4).to(device)
    with torchnan.detect(action="log") as watch:
        for _ in range(2):
            compiled(x).sum().item()
    found = errors(watch)[-1]
    assert (found.op, found.module, found.line) == ("aten::div", "inner", line_of(Normalized.forward, "x.sum()"))
    assert (found.inputs[0].name, found.inputs[0].min, found.inputs[0].max) == ("other", 0, 0)
    assert (found.nan, found.first_index, found.hint) == (
        4,
        (0,),
        "other is 0; in 4 places the dividend is 0 too: 0/0 is NaN",
    )


def test_a_gradient_that_recurs_is_named_one_step_later(device):
    @torch.compile
    def root(x):
        return torch.sqrt(x)

    def run():
        x = torch.zeros(4).to(device).requires_grad_()
        ((root(x) + x) * 0).sum().backward()  # autograd might add to this gradient, so its memory is not kept
        x.grad.sum().item()

    with torchnan.detect(action="log") as watch:
        run()
        run()
        assert watch.stats()["internal_errors"] == 0
    first, second = errors(watch)
    assert (first.origin, first.phase) == ("compiled", "backward")
    assert (second.origin, second.op, second.phase, second.node) == ("op", "aten::div", "backward", "SqrtBackward0")
    assert second.line == line_of(test_a_gradient_that_recurs_is_named_one_step_later, "torch.sqrt")


def test_an_argument_that_is_overwritten_is_replayed_from_a_copy(device):
    with torchnan.detect(action="log") as watch:
        for _ in range(2):
            x, y = torch.ones(LARGE).to(device), torch.zeros(LARGE).to(device)
            overwrite(x, y)
            x.sum().item()
    found = [(f.origin, f.op) for f in errors(watch)]
    assert found == [("compiled", "inductor::compiled_region"), ("op", "aten::div_")]


def test_no_more_is_copied_than_may_be(machine, device):
    with torchnan.detect(action="log", max_copied_bytes=8) as watch:
        x, y = torch.ones(4).to(device), torch.zeros(4).to(device)
        overwrite(x, y)
        x.sum().item()
        assert machine.count(lambda: overwrite(x, y)) == (0, 0)
    refused = "it overwrites 16 bytes of arguments, and max_copied_bytes=8"
    assert facts_of(watch.first)[3:] == ("overwrite", refused)


def test_an_argument_of_a_replayed_call_keeps_its_origin(device):
    @torch.compile
    def root(x, y):
        y.mul_(2)
        return torch.sqrt(x).sum()

    y = torch.ones(LARGE).to(device)
    with torchnan.detect(action="log") as watch:
        root(torch.full((4,), -1.0).to(device), y).item()
        root(torch.zeros(4).to(device) / 0, y).item()
    found = [(f.origin, f.op) for f in errors(watch)]
    assert found == [("compiled", "inductor::compiled_region"), ("op", "aten::div")]


def test_only_the_call_after_a_report_waits(machine, device):
    bad, good = logarithm(device)
    good()
    with torchnan.detect(action="log"):
        good()
        waits = machine.count(bad)
        assert waits == (0, 0) or device.type == "cuda"  # which may raise the alarm meanwhile
        bad().item()
        assert machine.count(good)[0] > 0
        assert machine.count(good) == (0, 0)


def test_a_region_that_is_always_bad_is_waited_for_a_limited_number_of_times(machine, device):
    bad, _ = logarithm(device)
    with torchnan.detect(action="log"):
        bad().item()
        waits = [machine.count(bad)[0] for _ in range(34)]
    assert [count > 0 for count in waits] == [True] * 32 + [False] * 2


def test_a_report_concerns_its_session_alone(machine, device):
    bad, good = logarithm(device)
    with torchnan.detect(action="log") as before:
        bad().item()
    assert before.first.compiled.obstacle == GONE
    with torchnan.detect(action="log") as watch:
        assert machine.count(good) == (0, 0)
        bad().item()
    assert watch.first.compiled.obstacle == GONE


def test_a_replay_changes_neither_values_nor_random_numbers(device):
    @torch.compile
    def noisy(x, y):
        return torch.log(x) + torch.rand_like(y), x + 1

    @torch.compile
    def scaled(x, y):
        x.mul_(2)
        return torch.log(x - 2) * y

    def run():
        torch.manual_seed(0)
        y = torch.ones(8).to(device)
        made = []
        for _ in range(3):
            x = torch.tensor([0.0, 1.0] * 4).to(device)
            made += [*noisy(x, y), scaled(x, y), x, torch.rand(4).to(device)]
            made[-3].sum().item()
        return [value.cpu() for value in made], torch.get_rng_state()

    plain, state = run()
    with torchnan.detect(action="log") as watch:
        watched, state_then = run()
    for one, other in zip(plain, watched, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(state, state_then)
    assert {f.compiled.region: f.op for f in errors(watch)}["scaled"] == "aten::log"


def logarithms(x, total):
    """The logarithms of zero and of the total, which tells the random numbers that it is made of."""
    return torch.log(x * total), total


def finding_and_total(device, function, calls=2):
    """Returns the finding of the last call, which is replayed, and the total that it has returned."""
    compiled, x = torch.compile(function), (torch.arange(4096) > 0).float().to(device)
    with torchnan.detect(action="log") as watch:
        for _ in range(calls):
            torch.manual_seed(3)
            logs, total = compiled(x)
            logs.sum().item()
        assert watch.stats()["internal_errors"] == 0
    return errors(watch)[-1], total.item()


def of_two_draws(x):
    return logarithms(x, (torch.rand_like(x) * (torch.rand_like(x) > 0.5)).sum())


def of_dropped(x):
    dropped, _ = torch.native_dropout(x * torch.rand_like(x), 0.0, True)
    dropped = torch.nn.functional.dropout(dropped, 0.25)
    return logarithms(x, torch.nn.functional.dropout(dropped, 0.5).sum())


@pytest.mark.parametrize("function", [of_two_draws, of_dropped])
def test_a_replay_draws_the_random_numbers_of_the_call(device, function):
    finding, total = finding_and_total(device, function)
    assert (finding.op, finding.line) == ("aten::log", line_of(logarithms, "torch.log"))
    assert finding.compiled.replay == "traced"
    assert finding.inputs[0].absmax == pytest.approx(total, rel=1e-5)


def test_a_replay_that_would_draw_other_numbers_is_discarded(device, monkeypatch):
    monkeypatch.setattr(random_numbers, "seed_counts", lambda graph: {})
    finding, total = finding_and_total(device, of_two_draws)
    assert (finding.op, finding.compiled.replay) == ("aten::log", "lowered")
    assert finding.inputs[0].absmax == pytest.approx(total, rel=1e-5)


def test_a_value_on_the_host_that_a_region_on_a_device_has_written_is_named(device):
    """It is known when the call returns, so that the call is replayed then."""

    @torch.compile
    def update(x, total):
        total.add_(torch.log(total))
        return x * 2

    x, total = torch.ones(4).to(device), torch.zeros(4)
    with torchnan.detect(action="log") as watch:
        update(x, total)
        total.sum().item()
    (finding,) = errors(watch)
    assert (finding.op, finding.kind, finding.line) == ("aten::log", "inf", line_of(update, "torch.log"))
    assert watch.stats()["internal_errors"] == 0
