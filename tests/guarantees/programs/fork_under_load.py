"""A process under load that forks again and again: watched threads make findings while the main thread forks.

Arguments: folder of the logs, seed, number of forks. Prints what it did. Run by test_fork.py.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import sys
import threading
import traceback
from pathlib import Path

import torch

import torchnan

THREADS = 4
OPERATIONS = 100  # of a child
folder, seed, forks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
log = folder / "parent.jsonl"
done = threading.Event()
numbers = itertools.count(1)  # for the findings made here; each has its own step


class Finder(torch.nn.Module):
    """Every instance makes new stacks, because a module is part of a stack."""

    def forward(self, number: int, depth: int) -> None:
        if depth > 0:
            return self.forward(number, depth - 1)
        x = torch.zeros(4, requires_grad=True)
        (x.exp() * x).sum().backward()
        torchnan.guard(x.detach().log(), f"finding {number}")
        return None


def make_findings(seed: int) -> None:
    rng = random.Random(seed)
    with torchnan.detect(action="log", log=log, max_findings=10**6) as own:
        while not done.is_set():
            own.mark_step(number := next(numbers))
            Finder()(number, rng.randrange(8))


def come_and_go(shared: torchnan.detect) -> None:
    while not done.is_set():
        with shared:
            torch.ones(3).exp().sum().item()
        with torchnan.detect(action="log"):
            torch.ones(2).numpy()
        shared.report()


def live_as_child(number: int, shared: torchnan.detect, starts_a_thread: bool) -> None:
    shared.mark_step(-number)
    total = torch.zeros(8)
    for _ in range(OPERATIONS - 1):
        total = total + torch.ones(8)
    total.neg().sqrt().sum().item()  # the finding of the child
    assert total.sum().item() == 8 * (OPERATIONS - 1)
    with torchnan.detect(action="log") as own:
        own.mark_step(-number)
        torch.ones(2, requires_grad=True).exp().sum().backward()
        torch.zeros(1).log().item()
    assert [finding.op for finding in own.findings] == ["aten::log"], own.report()
    assert own.stats()["internal_errors"] == shared.stats()["internal_errors"] == 0
    lines = [json.loads(line) for line in Path(f"{log}.{os.getpid()}").read_text().splitlines()]
    assert [(line["op"], line["step"]) for line in lines] == [(op, -number) for op in ("aten::sqrt", "aten::log")], (
        lines
    )
    if starts_a_thread:
        thread = threading.Thread(target=work_once)
        thread.start()
        thread.join()


def work_once() -> None:
    with torchnan.detect(action="log"):
        torch.ones(3).log().sum().item()


def fork(number: int, shared: torchnan.detect, rng: random.Random) -> None:
    for _ in range(rng.randrange(8)):  # fork at a random moment of the other threads' work
        torch.ones(2) + 1
    starts_a_thread = rng.random() < 0.1
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            live_as_child(number, shared, starts_a_thread)
            code = 0
        finally:
            if code != 0:
                traceback.print_exc()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"seed {seed}, fork {number}: child ended with status {status}"
    os.unlink(f"{log}.{pid}")  # another child may get the same number


def main() -> None:
    sys.setswitchinterval(1e-4)
    gc.freeze()  # keeps PyTorch's own objects out of the search at the end of a detection
    torch.set_num_threads(1)  # GNU OpenMP does not survive a fork, with or without torchnan
    rng = random.Random(seed)
    failed: list[object] = []
    tell = threading.excepthook
    threading.excepthook = lambda error: (tell(error), failed.append(error.exc_value))
    with torchnan.detect(action="log", log=log) as shared:
        threads = [threading.Thread(target=make_findings, args=(seed + i,)) for i in range(1, THREADS)]
        threads.append(threading.Thread(target=come_and_go, args=(shared,)))
        for thread in threads:
            thread.start()
        try:
            for number in range(1, forks + 1):
                fork(number, shared, rng)
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert failed == []
    assert shared.stats()["internal_errors"] == 0
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    made = next(numbers) - 1
    assert sorted(steps) == list(range(1, made + 1)), "each of the parent's findings once, and none of the children's"
    print(json.dumps({"forks": forks, "findings": made}))


main()
