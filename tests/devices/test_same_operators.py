"""A training step calls the same operators with and without detection, on the host and on a device: in a plain loop,
under a step guard, and with the gradients or the weights shared among ranks.

Autograd copies a gradient to which something else refers, and adds to one in place only if nothing else holds its
storage: a detector that keeps tensors or storages changes what it does. On the host, each operator also allocates the
same.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torchnan
from benchmarks.gpu import models
from tests.devices.conftest import of_kernel
from tests.devices.simulated_ranks import simulated_ranks

WARM_UP = 3
pytestmark = of_kernel

Loss = Callable[[nn.Module], torch.Tensor]


def gpt2(device: torch.device) -> tuple[nn.Module, Loss]:
    model = models.GPT2(layers=3, width=64, heads=4, words=512, tokens=32).to(device)
    ids = torch.randint(0, 512, (2, 32)).to(device)

    def loss(model: nn.Module) -> torch.Tensor:
        return functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    return model, loss


def resnet50(device: torch.device) -> tuple[nn.Module, Loss]:
    pixels, labels = torch.randn(2, 3, 64, 64).to(device), torch.randint(0, 1000, (2,)).to(device)
    return models.resnet50_model().to(device), lambda model: functional.cross_entropy(model(pixels).float(), labels)


def llama(device: torch.device) -> tuple[nn.Module, Loss]:
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=128)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2)).to(device)
    ids = torch.randint(0, 128, (2, 16)).to(device)
    return model, lambda model: model(input_ids=ids, labels=ids).loss


def in_a_loop(model: nn.Module, loss: Loss) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def under_a_guard(model: nn.Module, loss: Loss, **options: int) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    guard = torchnan.StepGuard(model, optimizer, lambda model, batch: loss(model), **options)

    def step() -> None:
        assert guard.step(None).applied

    return step


def under_a_guard_that_waits(model: nn.Module, loss: Loss) -> Callable[[], None]:
    return under_a_guard(model, loss, max_undo_bytes=0)


def with_shared_gradients(model: nn.Module, loss: Loss) -> Callable[[], None]:
    def reduced(state, bucket):
        reduction = torch.futures.Future()
        reduction.set_result(bucket.buffer())
        return reduction

    shared = DistributedDataParallel(model)
    shared.register_comm_hook(None, reduced)
    return in_a_loop(shared, loss)


def with_shared_weights(model: nn.Module, loss: Loss) -> Callable[[], None]:
    device = next(model.parameters()).device
    return in_a_loop(fully_shard(model, mesh=init_device_mesh(device.type, (1,))), loss)


def operators_of(step: Callable[[], None]) -> list[tuple[str, int]]:
    """Returns the operators of a step, and the bytes of the host's memory that each allocates, less those it frees."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        step()  # so that the profiler knows the memory that the next one frees
        with torch.autograd.profiler.record_function("counted"):
            step()
    operators = [event for event in profile.function_events if not is_of_driver(event)]
    events = sorted(operators, key=lambda event: (event.time_range.start, -event.time_range.end))
    counted = next(i for i, event in enumerate(events) if event.name == "counted")
    events = [event for event in events[counted:] if event.name != "[memory]"]
    inner = [False, *(is_inside_same(one, other) for one, other in itertools.pairwise(events))]
    return [(one.name, one.cpu_memory_usage) for one, is_inner in zip(events, inner, strict=True) if not is_inner]


def is_inside_same(outer, event) -> bool:
    """Whether an operator calls itself, as that of a number does with a tensor of one.

    The profiler leaves out the inner event if nothing else is inside: a launch of a scan beside it would show.
    """
    return event.name == outer.name and event.time_range.end <= outer.time_range.end


def is_of_driver(event) -> bool:
    """Whether an event is a call of CUDA or a kernel: detection may make such calls."""
    return event.device_type != torch.autograd.DeviceType.CPU or event.name.startswith(("cu", "Mem", "INVALID"))


def difference(plain: list[tuple[str, int]], watched: list[tuple[str, int]]) -> str:
    """Returns the first operators that differ, with those before them."""
    texts = [str(operator) for operator in plain], [str(operator) for operator in watched]
    lines = difflib.unified_diff(*texts, "plain", "watched", n=6, lineterm="")
    return "\n".join(itertools.islice(lines, 40))


@pytest.mark.breadth(6)
@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize(
    "train", [in_a_loop, under_a_guard, under_a_guard_that_waits, with_shared_gradients, with_shared_weights]
)
@pytest.mark.parametrize("make", [gpt2, pytest.param(resnet50, marks=pytest.mark.breadth(0)), llama])
def test_a_step_calls_the_same_operators_with_and_without_detection(machine, device, make, train, where):
    place = torch.device("cpu") if where == "host" else device

    def training() -> list[tuple[str, int]]:
        torch.manual_seed(0)
        step = train(*make(place))
        for _ in range(WARM_UP):
            step()
        machine.synchronize()
        called = operators_of(step)
        machine.synchronize()
        return called

    with simulated_ranks(place, 1):
        training()  # what is done once in a process
        plain = training()
        with torchnan.detect(action="log") as watch:
            watched = training()
            stats = watch.stats()
    assert watch.findings == []
    assert stats["checked"] > 100
    if train is under_a_guard:  # it waits earlier under detection, and the simulated device works where the host waits
        plain, watched = sorted(plain), sorted(watched)
    differing = difference(plain, watched)
    assert not differing, differing
    assert where == "device" or sum(size > 0 for _, size in plain) > 100


def _is_region(name: str) -> bool:
    return name == "" or name.startswith("Torch-Compiled Region")


def residual(region):
    return lambda x: x + region(x)


def added(region):
    return lambda x: region(x) + region(x * 2) * 3


@pytest.mark.parametrize("around", [residual, added])
@pytest.mark.parametrize("body", [torch.tanh, lambda x: x + 1], ids=["tanh", "identity"])
def test_gradients_of_compiled_regions_are_added_in_place_as_without(machine, device, compiler, around, body):
    function = around(torch.compile(lambda x: body(x)))
    x = torch.randn(4, 4).to(device).requires_grad_()

    def step() -> None:
        x.grad = None
        y = function(x * 2)
        (y * y + y).sum().backward()

    def called() -> list[tuple[str, int]]:
        step()
        machine.synchronize()
        # PyTorch names the event of a compiled region after its graph, and gives it no name under detection.
        events = operators_of(step)
        return [("region" if _is_region(name) else name, bytes_) for name, bytes_ in events]

    plain = called()
    with torchnan.detect(action="log"):
        watched = called()
    assert plain == watched, difference(plain, watched)
