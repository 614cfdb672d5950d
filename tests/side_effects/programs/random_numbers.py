"""Random numbers: generators, dropout, and threads that draw while a region runs."""

from __future__ import annotations

import random
import threading

import numpy
import torch
from torch import nn

from tests.side_effects.program import program


def scale(bad):
    return 0.0 if bad else 1.0


@program()
def a_thread_that_draws(record, bad):
    """All numbers are distinct, whatever another thread computes."""

    @torch.compile
    def f(x, k):
        return ((x - x * k) / (x - x * k)).sum()

    stop, ready, drawn = threading.Event(), threading.Event(), []

    def draw():
        while not stop.is_set():
            drawn.append(int(torch.randint(0, 2**62, ()).item()))
            ready.set()

    x, k = torch.ones(3), torch.tensor(float(bad))
    f(x, k)
    thread = threading.Thread(target=draw)
    thread.start()
    ready.wait()
    for _ in range(100):
        f(x, k).item()
    stop.set()
    thread.join()
    record.value("all distinct", len(set(drawn)) == len(drawn))
    torch.manual_seed(0)  # how many were drawn depends on time


@program(on_device=True)
def dropout_in_a_region(record, bad):
    model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to(record.device))
    x = torch.randn(4, 8).to(record.device).requires_grad_()
    for step in range(3):
        loss = model(x).square().mul(scale(bad)).add(1 - bad).log().sum() if step == 1 else model(x).sum()
        loss.backward()
        record.value(f"loss {step}", loss)
        record.value(f"gradient {step}", x.grad)
        record.value(f"drawn after {step}", torch.rand(2))


@program(on_device=True)
def numbers_drawn_in_a_bad_region(record, bad):
    @torch.compile
    def f(x, k):
        noise = torch.rand_like(x) + torch.randn_like(x) + torch.randint_like(x, 5)
        return torch.log(torch.bernoulli(torch.full_like(x, 0.5)) * 0 + k) + noise

    x = torch.ones(4).to(record.device)
    for k in (1.0, scale(bad), scale(bad), 1.0):
        record.value("result", f(x, torch.tensor(k).to(record.device)))
        record.value("drawn", torch.rand(2))


@program()
def a_generator_of_the_program(record, bad):
    generator = torch.Generator().manual_seed(5)

    @torch.compile
    def f(x, noise, k):
        return torch.log(x * k) + noise

    for _ in range(3):
        noise = torch.randn(4, generator=generator)
        record.value("result", f(torch.ones(4), noise, torch.tensor(scale(bad))))
        record.value("state", generator.get_state()[:16])


@program()
def a_generator_in_a_region(record, bad):
    generator = torch.Generator().manual_seed(5)

    @torch.compile
    def f(x, k):
        return torch.log(x * k) + torch.randn(4, generator=generator)

    for _ in range(3):
        with record.catching("call"):
            record.value("result", f(torch.ones(4), torch.tensor(scale(bad))))
        record.value("state", torch.randn(2, generator=generator))


@program()
def a_custom_operator_that_draws(record, bad):
    @torch.library.custom_op("harness::noise", mutates_args=())
    def noise(x: torch.Tensor) -> torch.Tensor:
        record.call("noise", random.random(), numpy.random.rand(), torch.rand(1))
        return x + torch.rand(x.shape) + random.random() + numpy.random.rand()

    @noise.register_fake
    def _(x):
        return torch.empty_like(x)

    @torch.compile
    def f(x, k):
        return torch.log(noise(x) * k)

    for _ in range(3):
        record.value("result", f(torch.ones(4), torch.tensor(scale(bad))))


@program()
def forked_random_numbers(record, bad):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    loss = torch.compile(lambda x: torch.log(model(x).square() * scale(bad) + (1 - bad)).sum())
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(7)
            record.value("loss", loss(torch.ones(2, 4)))
        record.value("drawn", torch.rand(2))


@program(reports=False)
def a_thread_with_its_own_model(record, bad):
    """Two threads call regions, each with a generator. Detection does not cover threads of the program."""
    results = {}

    def work(name, k):
        generator = torch.Generator().manual_seed(3)

        @torch.compile(backend="aot_eager")
        def f(x, k):
            return torch.log(x * k)

        results[name] = [f(torch.rand(4, generator=generator), torch.tensor(k)) for _ in range(5)]

    for name, k in (("first", scale(bad)), ("second", 1.0)):
        thread = threading.Thread(target=work, args=(name, k))
        thread.start()
        thread.join()
    record.value("results", results)
