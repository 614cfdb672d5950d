"""Processes that end in one way or another, with torchnan at work and without.

Arguments: a folder, how often, the ways. Each end happens in a separate process, forked from this one, which has
imported only torch. Prints [exit status, stderr] of each, by way, with torchnan and without. Run by test_exit.py.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch

folder, times, ways = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
is_on = False  # whether this process uses torchnan


def watching(**options: Any) -> contextlib.AbstractContextManager[Any]:
    if not is_on:
        return contextlib.nullcontext()
    import torchnan

    return torchnan.detect(**{"action": "log", **options})


def find() -> None:
    torch.zeros(2).log().sum().item()


def train_for_ever(begun: threading.Event) -> None:
    weight = torch.ones(8, 8, requires_grad=True)
    with watching():
        while True:
            (weight @ weight).tanh().sum().backward()
            find()
            begun.set()


def normal() -> None:
    with watching(log=folder / f"log.{os.getpid()}"):
        find()


def an_exception() -> None:
    with watching():
        find()
        raise ValueError("mine")


def os_exit() -> None:
    with watching():
        find()
        os._exit(3)


def sys_exit_in_a_scope() -> None:
    with watching():
        find()
        sys.exit(4)


def sys_exit_in_a_thread() -> None:
    def run() -> None:
        with watching():
            find()
            sys.exit(5)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def still_on() -> None:
    if is_on:
        import torchnan

        torchnan.set_detect(True, action="log")
    find()


def kept_in_a_global() -> None:
    global kept
    kept = watching()
    kept.__enter__()
    find()


def kept_in_a_cycle() -> None:
    class Cycle:
        pass

    cycle = Cycle()
    cycle.itself, cycle.scope = cycle, watching()
    with cycle.scope:
        find()


def with_a_callback_of_its_own() -> None:
    class Callback:
        def __call__(self, finding: Any) -> None:
            self.scope = kept

    global kept
    kept = watching(action=Callback())
    with kept:
        find()


def daemon_threads() -> None:
    for _ in range(3):
        begun = threading.Event()
        threading.Thread(target=train_for_ever, args=(begun,), daemon=True).start()
        begun.wait()


def imported_at_exit() -> None:
    def late() -> None:
        with watching():
            find()

    find()
    atexit.register(late)


def many_findings() -> None:
    log = folder / f"log.{os.getpid()}"
    with watching(log=log, max_findings=10_000) as watch:
        if is_on:
            import torchnan

            bad = torch.full((1,), -1.0)
            for i in range(10_000):
                torchnan.guard(bad.log(), str(i))
    if is_on:
        assert len(log.read_text().splitlines()) == len(watch.findings) == 10_000


def a_stuck_callback() -> None:
    """In a daemon thread: the program does not wait for it, even if it waits for something."""
    begun = threading.Event()

    def stuck(finding: Any) -> None:
        begun.set()
        threading.Event().wait()

    def run() -> None:
        with watching(action=stuck):
            find()
            begun.set()
            threading.Event().wait()

    threading.Thread(target=run, daemon=True).start()
    begun.wait()


def live_to_the_end(way: str, switch: bool, stderr: int) -> None:
    global is_on
    is_on = switch
    os.dup2(stderr, 2)
    globals()[way]()


def main() -> None:
    gc.freeze()  # keeps PyTorch's own objects out of each final collection
    ended: dict[str, dict[bool, list[list[Any]]]] = {way: {True: [], False: []} for way in ways}
    for way, switch in itertools.product(ways, [True] * times + [False]):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            live_to_the_end(way, switch, write)
            return  # and then the interpreter ends as usual
        os.close(write)
        with open(read) as errors:
            text = errors.read()
        ended[way][switch].append([os.waitpid(pid, 0)[1], text])
    print(json.dumps(ended))


main()
