"""The random states that a step guard saves before a step are those that NumPy, Python and PyTorch have."""

from __future__ import annotations

import random

import numpy
import numpy.testing
import pytest
import torch

from torchnan.training.guard.step.random_state import RandomState, RandomStateReader

DRAWS = {
    "nothing": lambda: None,
    "uniform": numpy.random.rand,
    "one normal number": numpy.random.randn,
    "three normal numbers": lambda: numpy.random.randn(3),
    "an integer": lambda: numpy.random.randint(5),
    "a permutation": lambda: numpy.random.permutation(7),
    "a number of Python's": random.random,
    "a normal number of Python's": lambda: random.gauss(0, 1),
    "a seed of Python's": lambda: random.seed(numpy.random.randint(3)),
    "a seed": lambda: numpy.random.seed(random.randrange(3)),
    "a number of PyTorch's": lambda: torch.rand(()),
    "a normal number of PyTorch's": lambda: torch.randn(()),
    "a wide normal number of PyTorch's": lambda: torch.randn((), dtype=torch.float64),
    "a permutation of PyTorch's": lambda: torch.randperm(7),
    "a seed of PyTorch's": lambda: torch.manual_seed(random.randrange(3)),
    "an earlier state of PyTorch's": lambda: torch.set_rng_state(STATE_OF_TORCH),
    "an earlier state": lambda: numpy.random.set_state(STATE),
}
STATE = numpy.random.RandomState(1).get_state()
STATE_OF_TORCH = torch.Generator().manual_seed(1).get_state()


@pytest.fixture(autouse=True)
def _restored():
    before = RandomState.now()
    yield
    before.restore()


def assert_is_now(state: RandomState) -> None:
    numpy.testing.assert_equal(state.numpy, numpy.random.get_state())
    assert state.python == random.getstate()
    assert torch.equal(state.cpu, torch.get_rng_state())


@pytest.mark.parametrize("seed", range(20))
def test_the_state_is_exact_after_any_draws(seed):
    """The second of two normal numbers is drawn without a change of the generator's words."""
    choice = random.Random(seed)
    reader = RandomStateReader()
    for name in choice.choices(list(DRAWS), k=50):
        DRAWS[name]()
        assert_is_now(reader.now())


def test_a_state_that_holds_is_not_read_again():
    numpy.random.seed(0)
    random.seed(0)
    reader = RandomStateReader()
    first = reader.now()
    assert reader.now() is first
    torch.rand(1)
    second = reader.now()
    assert second.cpu is not first.cpu
    assert second.numpy is first.numpy
    assert second.python is first.python


def test_another_generator():
    """A program may replace the generator; then it has no words that we know."""
    usual = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(numpy.random.MT19937(5))
        numpy.random.rand()
        assert_is_now(RandomState.now())
    finally:
        numpy.random.set_bit_generator(usual)
    assert_is_now(RandomState.now())


def test_the_numbers_come_again():
    def numbers() -> tuple[float, float, float, float]:
        return numpy.random.randn(), numpy.random.rand(), random.random(), torch.rand(()).item()

    for _ in range(4):
        state = RandomState.now()
        first = numbers()
        state.restore()
        assert numbers() == first
