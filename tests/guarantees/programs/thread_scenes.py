"""The ways in which PyTorch programs get threads, each under detection. Run by test_threads.py."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable

import torch
from torch import nn

import torchnan
from torchnan._load import _C

THREADS = 8


def in_threads(work: Callable[[int], None]) -> None:
    """Runs work(0), work(1) ... at once, and raises the first error."""
    errors: list[BaseException] = []
    begin = threading.Barrier(THREADS)

    def run(i: int) -> None:
        begin.wait()
        try:
            work(i)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def replicas_of_a_module() -> None:
    """Like DataParallel: one replica per thread, all under the detection of the thread that started them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    x = torch.randn(THREADS, 5, 16)
    expected = model(x)
    outputs: dict[int, torch.Tensor] = {}
    with torchnan.detect() as watch:

        def forward(i: int) -> None:
            with watch:
                outputs[i] = copy.deepcopy(model)(x[i])

        in_threads(forward)
        torch.stack([outputs[i] for i in range(THREADS)]).sum().backward()
    torch.testing.assert_close(torch.stack([outputs[i] for i in range(THREADS)]), expected)
    assert watch.findings == []
    assert watch.stats()["internal_errors"] == 0


def a_replica_that_is_ill() -> None:
    """One of them makes a NaN: one finding, in its module, in whichever thread it occurs."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torchnan.detect(action="log", model=model) as watch:

        def forward(i: int) -> None:
            with watch:
                y = model(torch.ones(4))
                if i == 3:
                    (y.detach() * 0).log().sum().item()
                y.sum().backward()

        in_threads(forward)
    assert [finding.op for finding in watch.findings] == ["aten::log"], watch.report()


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    futures = [torch.jit.fork(torch.log, x * i) for i in range(8)]
    return torch.stack([torch.jit.wait(future) for future in futures])


def inter_op_threads() -> None:
    """torch.jit.fork: the dispatch key propagates with the task to threads that have entered no session."""
    x = torch.ones(4)
    expected = scripted(x)
    for _ in range(20):
        with torchnan.detect(action="log") as watch:
            result = scripted(x)
            assert torch.equal(result, expected)
            result.sum().item()
        assert {finding.op for finding in watch.findings} == {"aten::log"}, watch.report()
        assert watch.stats()["internal_errors"] == 0


def callbacks_that_inter_op_threads_let_go_of() -> None:
    """The last thread of a detection destroys its callback; an inter-op thread does not hold the GIL.

    Fails when convert.cpp holds the callback by itself: Fatal Python error, without the GIL."""

    class Callback:
        def __call__(self, finding: torchnan.Finding) -> None:
            pass

    callbacks = []
    for _ in range(100):
        callback = Callback()
        callbacks.append(weakref.ref(callback))
        with torchnan.detect(action=callback):
            scripted(torch.ones(4)).sum().item()
        del callback
    assert sum(callback() is not None for callback in callbacks) < 20  # those whose session a thread still holds


def one_graph_many_backward_passes() -> None:
    weight = torch.linspace(-1, 1, 256).reshape(16, 16).requires_grad_()
    loss = (weight @ weight).tanh().square().mean()
    (expected,) = torch.autograd.grad(loss, weight, retain_graph=True)
    with torchnan.detect() as watch:
        loss = (weight @ weight).tanh().square().mean()

        def backward(i: int) -> None:
            for _ in range(10):
                with watch:
                    (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
                    assert torch.equal(gradient, expected)
                    loss.backward(retain_graph=True)  # into one weight.grad

        in_threads(backward)
    torch.testing.assert_close(weight.grad, expected * 10 * THREADS)
    assert watch.stats()["internal_errors"] == 0


def hogwild() -> None:
    """Updates shared weights in place without a lock: the results are undefined, but finite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x = torch.randn(32, 64)
    with torchnan.detect() as watch:

        def train(i: int) -> None:
            mine = copy.deepcopy(model)
            for parameter, shared in zip(mine.parameters(), model.parameters(), strict=True):
                parameter.data = shared.data
            optimizer = torch.optim.SGD(mine.parameters(), lr=0.05, momentum=0.9)
            with watch:
                for _ in range(30):
                    optimizer.zero_grad()
                    mine(x).square().mean().backward()
                    optimizer.step()

        in_threads(train)
    assert watch.findings == []
    assert watch.stats()["internal_errors"] == 0


def on_in_one_thread_off_in_another() -> None:
    """Fails when end_watch() closes no scope of other threads: theirs stay open forever, and the key with them."""
    key = torch._C._parse_dispatch_key(_C.interceptor_key_name())
    for _ in range(3):
        torchnan.set_detect(True, action="log")
        thread = threading.Thread(target=torchnan.set_detect, args=(False,))
        thread.start()
        thread.join()
        assert _C.open_scopes() == 0
    with torchnan.detect(action="log") as watch:
        torch.zeros(1).log().item()
    assert len(watch.findings) == 1
    assert not torch._C._dispatch_tls_local_include_set().has(key)


def a_callback_that_computes() -> None:
    """action=callable: called with the GIL, from any thread, and free to use anything."""
    seen: list[str] = []

    def note(finding: torchnan.Finding) -> None:
        with torchnan.detect(action="log"):
            torch.ones(3).exp().sum().item()
        seen.append(finding.op)

    def work(i: int) -> None:
        for _ in range(5):
            with torchnan.detect(action=note):
                torch.full((i + 1,), -1.0).sqrt().sum().item()

    in_threads(work)
    assert seen == ["aten::sqrt"] * (5 * THREADS)


SCENES = (
    replicas_of_a_module,
    a_replica_that_is_ill,
    inter_op_threads,
    callbacks_that_inter_op_threads_let_go_of,
    one_graph_many_backward_passes,
    hogwild,
    on_in_one_thread_off_in_another,
    a_callback_that_computes,
)

if __name__ == "__main__":
    for scene in SCENES:
        print(scene.__name__, flush=True)
        scene()
