"""The decorator on generators, coroutines and asynchronous generators: their bodies are checked, and nothing else."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest
import torch

import torchnan
from torchnan._load import _C


def bad() -> float:
    return (torch.zeros(1) / torch.zeros(1)).sum().item()


def bad_later() -> torch.Tensor:
    return torch.zeros(1) / torch.zeros(1)


@torchnan.detect()
def generator(before, after):
    before()
    yield 1
    after()


@torchnan.detect()
async def coroutine(before, after):
    before()
    await asyncio.sleep(0)
    after()
    return 1


@torchnan.detect()
async def asynchronous(before, after):
    before()
    yield 1
    await asyncio.sleep(0)
    after()


async def listed(values):
    return [value async for value in values]


RUNS = {
    "generator": lambda *steps: list(generator(*steps)),
    "coroutine": lambda *steps: [asyncio.run(coroutine(*steps))],
    "asynchronous generator": lambda *steps: asyncio.run(listed(asynchronous(*steps))),
}


@pytest.mark.parametrize("kind", RUNS)
def test_the_body_is_checked_before_and_after_it_was_suspended(kind):
    def good():
        return torch.ones(1).sum().item()

    for steps in ((bad, good), (good, bad)):
        with pytest.raises(torchnan.NonFiniteError) as raised:
            RUNS[kind](*steps)
        assert raised.value.finding.op == "aten::div"
        assert [frame.function for frame in raised.value.finding.stack][:2] == ["bad", kind.split()[0]]
    assert RUNS[kind](good, good) == [1]
    assert _C.current_session() is None


def test_the_functions_stay_of_their_kind():
    assert inspect.isgeneratorfunction(generator)
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isasyncgenfunction(asynchronous)
    assert (generator.__name__, inspect.signature(coroutine).parameters.keys()) == ("generator", {"before", "after"})


def test_what_the_program_does_meanwhile_is_not_checked():
    body = generator(lambda: None, lambda: None)
    assert next(body) == 1
    assert _C.current_session() is None
    bad()
    assert list(body) == []


def test_a_value_that_is_repaired_after_the_suspension_is_not_reported():
    @torchnan.detect()
    def body():
        value = bad_later()
        yield
        torch.nan_to_num_(value)
        yield value.item()

    assert list(body()) == [None, 0.0]


def test_a_value_that_outlives_the_body_is_reported_when_it_ends():
    kept = []

    @torchnan.detect()
    def body():
        kept.append(bad_later())
        yield

    steps = body()
    next(steps)
    with pytest.raises(torchnan.NonFiniteError, match="still referenced when detection ended"):
        next(steps)


def test_values_and_errors_are_passed_on_both_ways():
    @torchnan.detect()
    def echo():
        received = yield "ready"
        try:
            yield received
        except KeyError as error:
            yield error.args[0]
        return "end"

    body = echo()
    assert (next(body), body.send("sent"), body.throw(KeyError("thrown"))) == ("ready", "sent", "thrown")
    with pytest.raises(StopIteration) as ended:
        next(body)
    assert ended.value.value == "end"


def test_a_body_that_is_closed_or_fails_leaves_no_session_behind():
    closed = []

    @torchnan.detect()
    def body():
        try:
            yield 1
        finally:
            closed.append(torch.ones(1).item())

    steps = body()
    next(steps)
    steps.close()
    assert closed == [1.0]
    steps = body()
    next(steps)
    with pytest.raises(ZeroDivisionError):
        steps.throw(ZeroDivisionError())
    assert (closed, _C.current_session()) == ([1.0, 1.0], None)


def test_values_and_errors_are_passed_on_to_an_asynchronous_generator():
    @torchnan.detect()
    async def echo():
        received = yield "ready"
        try:
            yield received
        except KeyError as error:
            yield error.args[0]

    async def main():
        body = echo()
        passed = [await body.asend(None), await body.asend("sent"), await body.athrow(KeyError("thrown"))]
        await body.aclose()
        return passed

    assert asyncio.run(main()) == ["ready", "sent", "thrown"]


def test_a_step_on_another_thread_is_checked_too():
    body = generator(lambda: None, bad)
    next(body)
    reported = []

    def resume():
        try:
            next(body)
        except torchnan.NonFiniteError as error:
            reported.append(error.finding.op)

    thread = threading.Thread(target=resume)
    thread.start()
    thread.join()
    assert reported == ["aten::div"]


def test_tasks_that_interleave_are_told_apart():
    @torchnan.detect(action="log")
    async def checked():
        for _ in range(3):
            await asyncio.sleep(0)
            assert _C.current_session() is not None

    async def unchecked():
        for _ in range(5):
            await asyncio.sleep(0)
            assert _C.current_session() is None
            bad()

    async def main():
        await asyncio.gather(checked(), unchecked(), checked(), unchecked())

    asyncio.run(main())
