"""Gradients that are views of one buffer, as in FSDP2 and in flat parameters: scanned as often as separate ones, and
told apart."""

from __future__ import annotations

import torch

import torchnan

PARTS, SIZE = 16, 2048


def cost(machine, step, watch):
    """Returns the launches and the scanned bytes of the sixth step."""
    for _ in range(6):
        machine.count(lambda: None)
        before = watch.stats()["device_bytes"]
        step()
        machine.synchronize()
        launches = machine.scan_launches()
    return launches, watch.stats()["device_bytes"] - before


def costs(machine, make_step):
    """Returns the costs with separate gradients and with views."""
    found = []
    for is_view in (False, True):
        step = make_step(is_view)
        with torchnan.detect(action="log") as watch:
            found.append(cost(machine, step, watch))
        assert watch.findings == []
    return found


def parameters_on(device):
    torch.manual_seed(0)
    return [torch.rand(SIZE).to(device).requires_grad_() for _ in range(PARTS)]


def test_gradients_of_fsdp2_are_scanned_once(machine, device, two_ranks):
    def make_step(is_view):
        parameters = parameters_on(device)
        step_optimizer = torch.optim.SGD(parameters, 1e-3, momentum=0.9)
        given = torch.rand(2 * PARTS * SIZE).to(device)

        @torch.no_grad()
        def step():
            reduced = torch.empty(PARTS * SIZE, device=device)
            torch.distributed.reduce_scatter_tensor(reduced, given, async_op=True).wait()
            for index, parameter in enumerate(parameters):
                part = torch.as_strided(reduced, (SIZE,), (1,), index * SIZE)
                parameter.grad = part if is_view else part.clone()
            step_optimizer.step()

        return step

    (launches, scanned), (launches_of_views, scanned_of_views) = costs(machine, make_step)
    assert launches_of_views <= launches
    assert scanned_of_views <= scanned


def test_parts_of_a_flat_buffer_are_scanned_as_separate_tensors(machine, device):
    def make_step(is_view):
        torch.manual_seed(0)
        buffer = torch.zeros(PARTS * SIZE).to(device)
        separate = [torch.zeros(SIZE).to(device) for _ in range(PARTS)]
        gradients = list(buffer.split(SIZE)) if is_view else separate
        given, weights = ([torch.rand(SIZE).to(device) for _ in range(PARTS)] for _ in range(2))

        def step():
            for _ in range(2):
                for gradient, values in zip(gradients, given, strict=True):
                    gradient.add_(values)
            torch._foreach_mul_(gradients, 0.5)
            torch._foreach_add_(weights, gradients, alpha=-0.01)
            for gradient in gradients:
                gradient.zero_()

        return step

    (launches, scanned), (launches_of_views, scanned_of_views) = costs(machine, make_step)
    assert launches_of_views <= launches
    assert scanned_of_views <= scanned


def test_a_nan_in_a_part_is_named_with_what_wrote_the_buffer(machine, device, two_ranks):
    parameters = [torch.ones(8).to(device).requires_grad_() for _ in range(4)]
    optimizer = torch.optim.SGD(parameters, 1e-3)
    given = torch.ones(64).to(device)
    with torchnan.detect(action="log") as watch:
        reduced = torch.empty(32, device=device)
        torch.distributed.reduce_scatter_tensor(reduced, given)
        machine.put(reduced[16:], float("nan"))
        for index, parameter in enumerate(parameters):
            parameter.grad = reduced[8 * index : 8 * index + 8]
        optimizer.step()
    assert watch.first.collective == "c10d::_reduce_scatter_base_"
    assert (watch.first.origin, watch.first.harm.kind) == ("input", "gradient")


def test_a_nan_in_a_part_is_not_that_of_its_neighbour(machine, device):
    buffer = torch.ones(32).to(device)
    with torchnan.detect(action="log") as watch:
        buffer[:8].mul_(float("inf")).mul_(0)
        zeros = buffer[8:16].sub_(1)
        (zeros / zeros).sum().item()
    assert [finding.op for finding in watch.findings if finding.level == "error"] == ["aten::div"]


def test_what_others_may_have_written_is_scanned_though_another_part_is_known(machine, device):
    """Fails if a write to one part makes the rest known again."""
    buffer = torch.ones(32).to(device)
    with torchnan.detect(action="log") as watch:
        buffer.add_(1)
        machine.put(buffer[16:], float("nan"))  # takes the address
        buffer[:8].mul_(2)
        buffer.sum().item()
    assert [(finding.origin, finding.op) for finding in watch.findings] == [("input", "aten::sum")]
