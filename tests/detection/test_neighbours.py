"""Coexistence with the rest of PyTorch: each of its features runs under detect() without a false alarm, and a NaN
planted in it is found. Tensors that cannot be checked are counted, with the reason."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, Shard
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import torchnan
from tests.support.simulated_ranks import simulated_ranks


def square(x):
    return (x * x).sum()


def root(x):
    return x.sqrt().sum()  # finite everywhere from 0 on; its slope at 0 is not


def logarithm(x):
    return x.log().sum()


class Subject:
    """One feature, run on correct data and on data with a fault."""

    def __init__(self, run, op, healthy=None, sick=None):
        self.run, self.op = run, op
        self.healthy = torch.ones(3) if healthy is None else healthy
        self.sick = -torch.ones(3) if sick is None else sick


def graph(x):
    x = x.clone().requires_grad_()
    logarithm(x).backward()
    return x.grad


def threads(x):
    results = []

    def work():
        with torchnan.detect(action="log") as watch:
            results.append(logarithm(x).item())
        return watch

    pool = [threading.Thread(target=work) for _ in range(4)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return logarithm(x)


def in_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ torch.eye(3)).log()


def in_inference_mode(x):
    with torch.inference_mode():
        return logarithm(x)


def flexed(x):
    q = x.expand(1, 1, 16, 3).clone()
    return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score / x.sum())


def sharded(x):
    with simulated_ranks() as mesh:
        return (DTensor.from_local(x, mesh, [Shard(0)], run_check=False).log() * 2).to_local()


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        inner = [a.inner if isinstance(a, cls) else a for a in args]
        return cls(func(*inner, **(kwargs or {})))


SUBJECTS = {
    "vmap": Subject(lambda x: torch.vmap(lambda row: row.log())(x.expand(2, 3)), "aten::log"),
    "grad": Subject(lambda x: torch.func.grad(root)(x), "aten::div", sick=torch.zeros(3)),
    "vmap of grad": Subject(
        lambda x: torch.vmap(torch.func.grad(root))(x.expand(2, 3)), "aten::div", sick=torch.zeros(3)
    ),
    "jvp": Subject(lambda x: torch.func.jvp(logarithm, (x,), (x,)), "aten::log"),
    "jacrev": Subject(lambda x: torch.func.jacrev(torch.sqrt)(x), "aten::div", sick=torch.zeros(3)),
    "functionalize": Subject(lambda x: torch.func.functionalize(torch.log)(x), "aten::log"),
    "checkpoint": Subject(lambda x: checkpoint(logarithm, x, use_reentrant=False), "aten::log"),
    "reentrant checkpoint": Subject(
        lambda x: checkpoint(logarithm, x.clone().requires_grad_(), use_reentrant=True).detach(), "aten::log"
    ),
    "cond": Subject(lambda x: torch.cond(torch.tensor(True), torch.log, torch.exp, (x,)), "aten::log"),
    "flex_attention": Subject(flexed, "aten::div", sick=torch.zeros(3)),
    "autocast": Subject(in_autocast, "aten::log"),
    "inference_mode": Subject(in_inference_mode, "aten::log"),
    "backward": Subject(graph, "aten::log"),
    "threads": Subject(threads, "aten::log"),
    "jit.script": Subject(lambda x: torch.jit.script(logarithm)(x), "aten::log"),
    "jit.trace": Subject(lambda x: torch.jit.trace(logarithm, torch.ones(3))(x), "aten::log"),
    "jit.fork": Subject(lambda x: torch.jit.wait(torch.jit.fork(torch.log, x)), "aten::log"),
    "sparse": Subject(lambda x: torch.sparse.mm(torch.eye(3).to_sparse(), x[:, None]).log(), "aten::log"),
    "sparse CSR": Subject(lambda x: torch.diag(x).to_sparse_csr().sqrt(), "aten::sqrt"),
    "sparse BSR": Subject(lambda x: torch.diag(x).to_sparse_bsr((1, 1)).sqrt(), "aten::sqrt"),
    "DTensor": Subject(sharded, "aten::log"),
    "wrapper subclass": Subject(lambda x: torch.log(Wrapper(x)), "aten::log"),
    "compile": Subject(lambda x: torch.compile(torch.log, backend="aot_eager")(x), "aten::log"),
    "nested": Subject(lambda x: torch.nested.nested_tensor([x, x[:2]]).sqrt(), "aten::sqrt"),
    "jagged": Subject(lambda x: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged).log(), "aten::log"),
    "complex": Subject(lambda x: torch.complex(x, x).conj() / x.sqrt(), "aten::sqrt"),
    "batch norm": Subject(lambda x: nn.functional.batch_norm(x.expand(2, 3), x, x), "aten::native_batch_norm"),
    "lstm": Subject(lambda x: nn.LSTM(3, 2)(x.log()[None, None])[0], "aten::log"),
    "fft": Subject(lambda x: torch.fft.fft(x.log()), "aten::log"),
    "out=": Subject(lambda x: torch.log(x, out=torch.empty(3)), "aten::log"),
    "foreach": Subject(lambda x: torch._foreach_log([x, x + 1]), "aten::_foreach_log"),
    "deterministic": Subject(lambda x: x.log(), "aten::log"),
}


@pytest.mark.guarantee(6)
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_healthy_run_is_checked_and_silent(name, figure):
    subject = SUBJECTS[name]
    with torchnan.detect() as watch:
        held = subject.run(subject.healthy)
    del held
    assert watch.findings == []
    assert watch.stats()["internal_errors"] == 0
    assert watch.stats()["checked"] > 0
    figure("{machines} machines of PyTorch: checked and silent", machines=1)


@pytest.mark.breadth(8)
@pytest.mark.guarantee(6)
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_planted_value_is_found(name, figure):
    subject = SUBJECTS[name]
    with torchnan.detect(action="log") as watch:
        held = subject.run(subject.sick)
    del held
    assert watch.first is not None, watch.stats()
    assert watch.first.op == subject.op
    assert watch.first.origin == "op"
    figure("{machines} machines of PyTorch: what is planted is found", machines=1)


def start_a_collective():
    with simulated_ranks():
        dist.all_reduce(torch.ones(3), async_op=True)


# By the counted reason.
PASSED_BY = {
    "not floating point": lambda: torch.arange(3) + 1,
    "empty": lambda: torch.ones(0).log(),
    "meta": lambda: torch.ones(2, device="meta").log(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "opaque": lambda: torch.ones(1, 3).to_mkldnn().relu(),
    "in a collective": start_a_collective,
}


@pytest.mark.guarantee(6)
@pytest.mark.parametrize("reason", PASSED_BY)
def test_unchecked_tensors_are_counted(reason, figure):
    with torchnan.detect() as watch:
        PASSED_BY[reason]()
    assert watch.stats()["skipped"][reason] > 0
    assert watch.findings == []
    assert watch.stats()["internal_errors"] == 0
    figure("{reasons} reasons not to look, each counted", reasons=1)


@pytest.mark.guarantee(6)
def test_fake_tensors_are_passed_by():
    """Tensors that PyTorch handles without a call are not even counted."""
    with torchnan.detect() as watch:
        with FakeTensorMode():
            held = torch.empty(3).log() + torch.ones(3)
    del held
    assert watch.findings == []
    assert watch.stats()["checked"] == 0


def test_memory_filled_with_nan_on_purpose_raises_no_alarm():
    torch.use_deterministic_algorithms(True)
    try:
        with torchnan.detect() as watch:
            held = torch.empty(4)  # deterministic mode fills it with NaN
            held.fill_(1.0)
            torch.zeros(4).sum().item()
    finally:
        torch.use_deterministic_algorithms(False)
    assert held.sum() == 4.0
    assert watch.findings == []


def test_data_parallel_replicas_and_shared_memory():
    tensor = torch.ones(3).share_memory_()
    with torchnan.detect() as watch:
        tensor.mul_(2)
        tensor.log().sum().item()
    assert watch.findings == []


def test_deep_copies_pickles_and_state_dicts_pass():
    import copy
    import io

    model = nn.Linear(3, 3)
    with torchnan.detect() as watch:
        twin = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(twin.state_dict(), file)
        file.seek(0)
        model.load_state_dict(torch.load(file))
    assert watch.findings == []


def test_the_profiler_can_start_inside_and_end_outside():
    watch = torchnan.detect()
    with watch:
        profiler = torch.profiler.profile()
        profiler.__enter__()
        torch.ones(3).log().sum().item()
    profiler.__exit__(None, None, None)
    assert any(event.key == "aten::log" for event in profiler.key_averages())
