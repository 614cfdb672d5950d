"""Many threads that train, find, raise, come and go, in a common detection and in separate ones.

Arguments: threads, operations of each, repetitions; each repetition is a separate process. Prints what it did. Run by
test_threads.py.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

import torchnan
from torchnan._load import _C

THREADS, OPERATIONS, REPETITIONS = map(int, sys.argv[1:])
OPERATIONS_OF_A_STEP = 25  # forward, backward and the comparison
STEPS = max(4, OPERATIONS // OPERATIONS_OF_A_STEP)


def step(weight: torch.Tensor, i: int) -> torch.Tensor:
    """The result of a training step; a pure function of its arguments, bit for bit."""
    x = torch.linspace(0, i % 7, 32).reshape(4, 8)
    loss = ((x @ weight).tanh() * 2 - 1).square().mean() + weight.exp().sum().sqrt()
    (gradient,) = torch.autograd.grad(loss, weight)
    return torch.cat([(weight - 0.1 * gradient).detach().flatten(), loss.detach().reshape(1)])


def plant(x: torch.Tensor) -> None:
    (x - 1).log().sum().item()


def planted_at(line: int) -> Callable[[torch.Tensor], None]:
    """plant(), on its own line."""
    return type(plant)(plant.__code__.replace(co_firstlineno=line - 1), globals())


class Thread(threading.Thread):
    """Compares every step with its result without detection, and finds each planted value once, on its line."""

    def __init__(self, number: int, shared: torchnan.detect, begin: threading.Barrier) -> None:
        super().__init__(name=f"thread {number}")
        self.number, self.shared, self.begin = number, shared, begin
        self.line = 10_000 + number
        self.plant = planted_at(self.line)
        self.weight = torch.linspace(-1, 1, 64).reshape(8, 8).requires_grad_()
        self.expected = step(self.weight, number)

    def run(self) -> None:
        self.begin.wait()
        (self.under_shared, self.under_own, self.under_both, self.raising)[self.number % 4]()

    def train(self, plants: bool = True) -> None:
        for i in range(STEPS):
            assert torch.equal(step(self.weight, self.number), self.expected)
            if plants and i == STEPS // 2:
                self.plant(torch.zeros(self.number + 1))

    def under_shared(self) -> None:
        with self.shared:
            self.train()

    def under_own(self) -> None:
        with torchnan.detect(action="log") as own:
            self.train()
        self.check(own)

    def under_both(self) -> None:
        with self.shared, torchnan.detect(action="log") as own:
            self.train()
        self.check(own)

    def raising(self) -> None:
        with torchnan.detect() as own:
            assert self.line_raised() == self.line
            self.train(plants=False)
        self.check(own)

    def line_raised(self) -> int | None:
        try:
            self.train()
        except torchnan.NonFiniteError as error:
            return error.finding.line
        return None

    def check(self, own: torchnan.detect) -> None:
        assert [(f.op, f.line, f.nan) for f in own.findings] == [("aten::log", self.line, self.number + 1)], (
            own.report()
        )
        assert own.stats()["internal_errors"] == 0


def come_and_go(shared: torchnan.detect, done: threading.Event) -> None:
    while not done.is_set():
        with torchnan.detect(action="log"):
            torch.ones(4).exp_()
        with shared:
            torch.ones(4).numpy()


def switch_program(done: threading.Event) -> None:
    while not done.is_set():
        torchnan.set_detect(True, action="log")
        thread = threading.Thread(target=torch.ones, args=(3,))
        thread.start()
        thread.join()
        torchnan.set_detect(False)


def read(shared: torchnan.detect, done: threading.Event) -> None:
    while not done.is_set():
        shared.findings, shared.first, shared.report(), shared.stats(), shared.mark_step(7)


def hold_the_gil(done: threading.Event) -> None:
    while not done.is_set():
        sum(range(100_000))


def live(folder: Path) -> dict[str, int]:
    torch.set_num_threads(1)
    failed: list[object] = []
    tell = threading.excepthook
    threading.excepthook = lambda error: (tell(error), failed.append(error.exc_value))
    log, done = folder / "log", threading.Event()
    shared = torchnan.detect(action="log", log=log, max_findings=10 * THREADS)
    begin = threading.Barrier(THREADS)
    threads = [Thread(number, shared, begin) for number in range(THREADS)]
    others = [
        threading.Thread(target=come_and_go, args=(shared, done)),
        threading.Thread(target=switch_program, args=(done,)),
        threading.Thread(target=switch_program, args=(done,)),
        threading.Thread(target=read, args=(shared, done)),
        threading.Thread(target=hold_the_gil, args=(done,)),
    ]
    for thread in (*threads, *others):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    for thread in others:
        thread.join()
    assert failed == []
    lines = Counter(finding.line for finding in shared.findings)
    assert lines == {thread.line: 1 for thread in threads if thread.number % 2 == 0}, shared.report()
    assert Counter(json.loads(line)["stack"][0]["line"] for line in log.read_text().splitlines()) == lines
    assert _C.open_scopes() == 0
    stats = shared.stats()
    assert stats["internal_errors"] == 0
    return {"findings": len(lines), "operations": stats["ops"]}


def main() -> None:
    gc.freeze()  # keeps PyTorch's own objects out of the search at the end of a detection
    for repetition in range(REPETITIONS):
        pid = os.fork()  # before any operation, so that each begins like a new process
        if pid == 0:
            code = 1
            try:
                with tempfile.TemporaryDirectory() as folder:
                    print(json.dumps(live(Path(folder))), flush=True)
                code = 0
            finally:
                if code != 0:
                    traceback.print_exc()
                    sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"repetition {repetition} of {REPETITIONS}: status {status}"


main()
