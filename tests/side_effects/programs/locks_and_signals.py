"""Locks that a caller holds, and handlers of signals, while torchnan explains a value."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time

import torch

from tests.side_effects.program import program


@program()
def a_lock_that_the_caller_holds(record, bad):
    """A re-entrant lock, taken by a custom operator in a region too."""
    lock = threading.RLock()

    @torch.library.custom_op("harness::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x * 2

    @scaled.register_fake
    def _(x):
        return torch.empty_like(x)

    @torch.compile
    def f(x):
        return torch.log(scaled(x)).sum()

    for sign in (1, -1 if bad else 1):
        with lock:
            record.value("result", f(torch.ones(3) * sign))


@program()
def a_lock_in_the_backward_pass(record, bad):
    lock = threading.RLock()

    class Guarded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            with lock:
                record.call("backward")
                return gradient

    @torch.compile
    def f(x):
        return torch.sqrt(x).sum()

    x = torch.full((3,), 0.0 if bad else 1.0, requires_grad=True)
    for _ in range(2):
        with lock:
            f(Guarded.apply(x)).backward()
            record.value("gradient", x.grad)


def outside_of_guards(handler, skipped):
    """Returns a handler that only counts, in `skipped`, while a guard of Dynamo runs: PyTorch drops what is raised
    there (LAMBDA_GUARD in torch/csrc/dynamo/guards.cpp)."""

    @functools.wraps(handler)
    def handle(number, frame):
        outer = frame
        while outer is not None:
            if outer.f_code.co_filename.endswith("torch/_dynamo/guards.py"):
                return skipped.append(number)
            outer = outer.f_back
        return handler(number, frame)

    return handle


class TimeLimit(Exception):
    """What a program raises in a handler."""


@program(reports=False)
def a_time_limit(record, bad):
    """Whatever the call does, the limit is raised to the program, and no number is drawn twice afterwards."""

    def handler(number, frame):
        fired.append(number)
        raise TimeLimit("too late")

    @torch.compile
    def f(x, k):
        y = x
        for _ in range(6):
            y = y @ x
        return torch.rand(()) + ((y - y * k) / (y - y * k)).sum()

    skipped = []
    signal.signal(signal.SIGALRM, outside_of_guards(handler, skipped))
    x, k = torch.ones(300, 300) * 1e-3, torch.tensor(float(bad))
    f(x, torch.tensor(0.0))
    lost = twice = 0
    for number in range(12):
        fired, got = [], False
        skipped.clear()
        torch.manual_seed(number)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002 * (1 + number))
            try:
                while not fired and not skipped:
                    f(x, k)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except TimeLimit:
            got = True
        lost += bool(fired) and not got
        drawn = [torch.randint(0, 2**62, ()).item() for _ in range(10)]
        twice += len(drawn) - len(set(drawn))
    record.value("limits lost", lost)
    record.value("numbers drawn twice", twice)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    torch.manual_seed(0)  # how many were drawn depends on time


@program(reports=False)
def ctrl_c(record, bad):
    """A KeyboardInterrupt at any point reaches the program."""
    skipped = []

    @torch.compile
    def f(x, k):
        y = x
        for _ in range(6):
            y = y @ x
        return ((y - y * k) / (y - y * k)).sum()

    signal.signal(signal.SIGINT, outside_of_guards(signal.default_int_handler, skipped))
    x, k = torch.ones(300, 300) * 1e-3, torch.tensor(float(bad))
    f(x, torch.tensor(0.0))
    lost = 0
    for number in range(10):
        skipped.clear()
        timer = threading.Timer(0.002 * (1 + number), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            while timer.is_alive():
                f(x, k)
            time.sleep(0)
            lost += not skipped
        except KeyboardInterrupt:
            pass
        timer.join()
    record.value("interrupts lost", lost)


@program()
def a_handler_that_counts(record, bad):
    """A handler runs once for each signal, and what it draws is drawn once."""
    drawn = []
    signal.signal(signal.SIGUSR1, lambda *_: drawn.append(torch.rand(())))

    @torch.compile
    def f(x):
        return torch.log(x).sum()

    for _ in range(3):
        signal.raise_signal(signal.SIGUSR1)
        record.value("result", f(torch.full((3,), 0.0 if bad else 1.0)))
        signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    record.value("drawn", drawn)
