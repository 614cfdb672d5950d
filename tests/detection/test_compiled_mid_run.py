"""Detection that begins and ends between calls of compiled code: nothing is compiled that the plain program would not
compile, and regions that were compiled before are followed all the same."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import torchnan
from torchnan.detection.compiled import torch_internals

VARIANTS = ["a" * i for i in range(1, 6)]  # five graphs, below the limit of eight


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.set_stance("default")
    torch._dynamo.reset()


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


class Calls:
    """A backend that runs graphs as they are, and records which of them runs."""

    def __init__(self):
        self.graphs, self.calls = 0, []

    def __call__(self, graph, inputs):
        number = self.graphs
        self.graphs += 1

        def run(*args):
            self.calls.append(number)
            return graph.forward(*args)

        return run


def scaled(x, name):
    return x * len(name)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_code_that_was_compiled_before_is_used(fullgraph):
    compiled = torch.compile(scaled, backend=Calls(), fullgraph=fullgraph)
    for name in VARIANTS:
        compiled(torch.ones(3), name)
    with torchnan.detect() as session:
        for name in VARIANTS:
            compiled(torch.ones(3), name)
    for name in VARIANTS:
        compiled(torch.ones(3), name)
    assert graphs() == len(VARIANTS)
    assert session.stats()["internal_errors"] == 0


@pytest.mark.parametrize("stance", ["fail_on_recompile", "eager_on_recompile"])
def test_a_stance_finds_code_that_was_compiled_before(stance):
    backend = Calls()
    compiled = torch.compile(scaled, backend=backend)
    compiled(torch.ones(3), "a")
    torch.compiler.set_stance(stance)
    with torchnan.detect():
        compiled(torch.ones(3), "a")
    assert backend.calls == [0, 0]


def refusal(watched, compiled):
    def call():
        with pytest.raises((RuntimeError, torch._dynamo.exc.RecompileError)) as raised:
            compiled(torch.ones(4), "b")
        return str(raised.value)

    if not watched:
        return call()
    with torchnan.detect():
        return call()


def test_a_recompilation_is_refused_in_the_same_words():
    compiled = torch.compile(scaled, backend=Calls(), dynamic=False)
    compiled(torch.ones(3), "a")
    torch.compiler.set_stance("fail_on_recompile")
    assert refusal(True, compiled) == refusal(False, compiled)
    torch.compiler.set_stance("default")
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert refusal(True, compiled) == refusal(False, compiled)


def test_code_that_was_compiled_under_detection_is_used_afterwards():
    compiled = torch.compile(scaled, backend=Calls())
    for _ in range(2):
        with torchnan.detect():
            for name in VARIANTS:
                compiled(torch.ones(3), name)
        for name in VARIANTS:
            compiled(torch.ones(3), name)
    assert graphs() == len(VARIANTS)


def calls_by_shape(detecting):
    torch._dynamo.reset()
    backend = Calls()
    compiled = torch.compile(scaled, backend=backend)
    for size in (3, 4):  # the second graph fits both sizes
        compiled(torch.ones(size), "a")
    with torchnan.detect() if detecting else contextlib.nullcontext():
        for size in (3, 5, 4, 3):
            compiled(torch.ones(size), "a")
        compiled(torch.ones(3, 2), "a")
        for size in (3, 4):
            compiled(torch.ones(size), "a")
    return backend.calls


def test_of_two_graphs_that_fit_the_newest_runs():
    assert calls_by_shape(True) == calls_by_shape(False)


def test_the_code_of_another_backend_is_not_used():
    first, second = Calls(), Calls()
    torch.compile(scaled, backend=first)(torch.ones(3), "a")
    with torchnan.detect():
        torch.compile(scaled, backend=second)(torch.ones(3), "a")
    assert (first.calls, second.calls) == ([0], [0])


def test_graph_breaks_are_resumed_in_code_that_was_compiled_before():
    @torch.compile(backend="aot_eager")
    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        z = torch.log(y)
        torch._dynamo.graph_break()
        return z.sum()

    broken(torch.ones(3))
    before = graphs()
    with torchnan.detect(action="log") as session:
        broken(torch.zeros(3)).item()
    assert graphs() == before == 3
    assert [finding.op for finding in session.findings] == ["aten::log"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return torch.log(self.linear(x) * 0)  # BUG


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x, second):
        return (self.second(x) if second else self.first(x)).sum()


def finding_of_blocks(compiled_before):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    compiled = torch.compile(Blocks())
    if compiled_before:
        compiled(torch.ones(2, 3), True)
    with torchnan.detect(action="log") as session:
        compiled(torch.ones(2, 3), True).backward()
    (finding,) = session.findings
    stack = [frame for frame in finding.stack if frame.file == __file__]
    return finding.op, finding.module, stack, finding.compiled, finding.inputs, finding.hint, graphs()


def test_a_region_that_was_compiled_before_is_reported_as_one_that_is_compiled_now():
    assert finding_of_blocks(True) == finding_of_blocks(False)


def test_a_backward_pass_that_was_compiled_before_is_followed():
    compiled = torch.compile(lambda x: torch.sqrt(x).sum())
    compiled(torch.ones(3, requires_grad=True)).backward()
    before = graphs()
    x = torch.zeros(3, requires_grad=True)
    with torchnan.detect(action="log") as session:
        compiled(x).backward()
        x.grad.sum().item()
    assert [(finding.phase, finding.op) for finding in session.findings] == [("backward", "aten::div")]
    assert graphs() == before


def test_a_compiled_optimizer_is_checked_in_the_middle_of_a_run():
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.1)
    step = torch.compile(optimizer.step)
    weight.grad = torch.ones(3)
    step()
    with torchnan.detect(action="log") as session:
        weight.grad = torch.full((3,), float("nan"))
        step()
    assert session.findings[0].harm.kind == "gradient"


def test_regions_are_as_before_when_detection_ends():
    compiled = torch.compile(lambda x: torch.log(x))
    compiled(torch.ones(3))
    (code,) = (code for code in torch_internals.compiled_functions() if torch_internals.cache_entries(code))
    (entry,) = torch_internals.cache_entries(code)
    ((scope, name),) = torch_internals.graph_functions(entry.code)
    function = scope[name]
    with torchnan.detect():
        compiled(torch.ones(3))
        assert scope[name] is not function
    assert scope[name] is function
    assert torch_internals.package_entries(code) == []


def test_detection_that_ends_while_another_thread_runs_begins_again():
    compiled = torch.compile(scaled, backend=Calls())
    compiled(torch.ones(3), "a")
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        for _ in range(2):
            with torchnan.detect():
                compiled(torch.ones(3), "a")
            compiled(torch.ones(3), "a")
    finally:
        go.set()
        thread.join()
    assert graphs() == 1


def test_code_that_was_discarded_is_not_used():
    backend = Calls()
    compiled = torch.compile(scaled, backend=backend)
    compiled(torch.ones(3), "a")
    with torchnan.detect():
        torch._dynamo.reset()
        compiled(torch.ones(3), "a")
        compiled(torch.ones(3), "a")
    assert backend.calls == [0, 1, 1]


def test_the_state_of_an_optimizer_that_was_compiled_before_is_freed():
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adagrad([weight])
    held = weakref.ref(optimizer.state[weight]["sum"])
    step = torch.compile(optimizer.step)
    weight.grad = torch.ones(3)
    step()
    with torchnan.detect():
        step()
        del step, optimizer, weight
        gc.collect()
        assert held() is None


def test_each_session_follows_code_that_was_compiled_before_the_first():
    model = torch.nn.Linear(4, 4)
    step = torch.compile(lambda x: torch.log(model(x * 0) * 0).sum())
    step(torch.ones(2, 4)).backward()
    for _ in range(3):
        with torchnan.detect(action="log") as session:
            step(torch.ones(2, 4)).backward()
        assert [finding.op for finding in session.findings] == ["aten::log"]
