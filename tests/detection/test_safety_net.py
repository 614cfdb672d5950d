"""A scan reveals a wrong bound rule, which is not used again."""

from __future__ import annotations

import linecache
import random
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional as F

import torchnan
from tests.support.testing_extension import _testing
from torchnan.detection.errors import DetectorWarning

EVERY = 5
ROWS = 5000


def threes(*shape: int) -> torch.Tensor:
    return torch.full(shape or (ROWS,), 3.0)


def one_hot(rows: int, columns: int) -> torch.Tensor:
    return torch.eye(columns)[torch.zeros(rows, dtype=torch.long)]


INDEX = torch.arange(ROWS)

# Calls with more than 4,096 results that come close to the bound of their rule.
CALLS: dict[str, Callable[[], object]] = {
    "add": lambda: threes() + threes(),
    "sub": lambda: threes() - -threes(),
    "rsub": lambda: torch.rsub(threes(), -threes()),
    "mul": lambda: threes() * threes(),
    "div": lambda: threes() / 2.0,
    "neg": lambda: -threes(),
    "abs": lambda: threes().abs(),
    "relu": lambda: threes().relu(),
    "clamp": lambda: threes().clamp(-3, 3),
    "clamp_min": lambda: torch.clamp_min(threes(), 3.0),
    "hardtanh": lambda: F.hardtanh(threes(), -3, 3),
    "threshold": lambda: F.threshold(threes(), 0.1, 3.0),
    "leaky_relu": lambda: F.leaky_relu(threes()),
    "gelu": lambda: F.gelu(threes()),
    "silu": lambda: F.silu(threes()),
    "mish": lambda: F.mish(threes()),
    "tanh": lambda: threes().tanh(),
    "sin": lambda: torch.full((ROWS,), 1.5).sin(),
    "cos": lambda: torch.zeros(ROWS).cos(),
    "erf": lambda: threes().erf(),
    "sigmoid": lambda: threes().sigmoid(),
    "hardsigmoid": lambda: F.hardsigmoid(threes()),
    "exp": lambda: threes().exp(),
    "sqrt": lambda: threes().abs().sqrt(),
    "pow": lambda: threes() ** 3,
    "maximum": lambda: torch.maximum(threes(), threes()),
    "minimum": lambda: torch.minimum(threes(), threes()),
    "where": lambda: torch.where(threes() > 0, threes(), threes()),
    "masked_fill": lambda: threes().masked_fill(INDEX > 10, 3.0),
    "lerp": lambda: threes().lerp(threes(), 0.5),
    "addcmul": lambda: torch.addcmul(threes(), threes(), threes()),
    "softplus": lambda: F.softplus(threes()),
    "elu": lambda: F.elu(threes()),
    "tanh_backward": lambda: torch.ops.aten.tanh_backward(threes(), torch.zeros(ROWS)),
    "clone": lambda: threes().clone(),
    "_to_copy": lambda: threes().double(),
    "index": lambda: threes()[INDEX],
    "index_select": lambda: threes().index_select(0, INDEX),
    "gather": lambda: threes().gather(0, INDEX),
    "take": lambda: threes().take(INDEX),
    "embedding": lambda: F.embedding(INDEX, threes(ROWS, 2)),
    "repeat": lambda: threes().repeat(2),
    "roll": lambda: threes().roll(1),
    "flip": lambda: threes().flip(0),
    "sort": lambda: threes().sort(),
    "cat": lambda: torch.cat([threes(), threes()]),
    "stack": lambda: torch.stack([threes(), threes()]),
    "constant_pad_nd": lambda: F.pad(threes(), (1, 1)),
    "index_copy": lambda: threes().index_copy(0, INDEX, threes()),
    "scatter": lambda: threes().scatter(0, INDEX, threes()),
    "tril": lambda: threes(100, 100).tril(),
    "ones": lambda: torch.ones(ROWS),
    "full_like": lambda: torch.full_like(threes(), 3.0),
    "copy": lambda: torch.empty(ROWS).copy_(threes()),
    "fill": lambda: threes().fill_(3.0),
    "sum": lambda: threes(ROWS, 4).sum(1),
    "mean": lambda: threes(ROWS, 4).mean(1),
    "cumsum": lambda: threes(4, ROWS).cumsum(0),
    "amax": lambda: threes(ROWS, 4).amax(1),
    "mm": lambda: threes(ROWS, 8) @ threes(8, 4),
    "bmm": lambda: threes(2, ROWS, 8) @ threes(2, 8, 4),
    "addmm": lambda: torch.addmm(threes(4), threes(ROWS, 8), threes(8, 4)),
    "baddbmm": lambda: torch.baddbmm(threes(2, ROWS, 4), threes(2, ROWS, 8), threes(2, 8, 4)),
    "mv": lambda: threes(ROWS, 8) @ threes(8),
    "convolution": lambda: F.conv1d(threes(2, 4, ROWS), threes(4, 4, 1)),
    "max_pool2d_with_indices": lambda: F.max_pool2d(threes(1, 2, 100, 100), 3, 1, return_indices=True),
    "avg_pool2d": lambda: F.avg_pool2d(threes(1, 2, 100, 100), 3, 1),
    "_softmax": lambda: torch.softmax(30 * one_hot(1000, 8), 1),
    "native_layer_norm": lambda: F.layer_norm(one_hot(100, 64), (64,)),
    "_foreach_add": lambda: torch._foreach_add([threes(), threes()], [threes(), threes()]),
    "_foreach_mul": lambda: torch._foreach_mul([threes(), threes()], 2.0),
}
assert len(CALLS) >= 50


@pytest.fixture
def falsify() -> Iterator[Callable[[str, float], None]]:
    changed = set()

    def change(op: str, factor: float) -> None:
        changed.add(op)
        _testing.falsify_rule(op, factor)

    yield change
    for op in changed:
        _testing.falsify_rule(op, 1.0)


def order(seed: int) -> list[str]:
    return random.Random(seed).sample(sorted(CALLS), len(CALLS))


@pytest.mark.breadth(10)
@pytest.mark.parametrize("name", order(seed=0))
def test_a_bound_cut_in_half_is_found_within_n_steps(name, falsify):
    """Slightly more than halves it: the bound of a convolution leaves a factor of two for fast algorithms."""
    op = f"aten::{name}"
    with torchnan.detect(action="log", rescan_every=EVERY) as watch:
        CALLS[name]()
        watch.mark_step(1)
        watch.mark_step(2)  # the first step, in which everything is scanned, is over
        falsify(op, 0.45)
        with pytest.warns(DetectorWarning, match=rf"the bound of {op}_? is wrong: result \d, Float|Double"):
            for step in range(2, 2 + EVERY):
                watch.mark_step(step)
                CALLS[name]()
        assert _testing.is_rule_withdrawn(op)
        known = watch.stats()["internal_errors"]
        CALLS[name]()
    assert watch.stats()["internal_errors"] == known == 1
    assert watch.findings == []


def test_all_of_the_first_step_is_read(falsify):
    falsify("aten::mul", 0.5)
    with torchnan.detect(action="log"), pytest.warns(DetectorWarning, match="the bound of aten::mul is wrong"):
        threes() * threes()


def test_the_message_has_facts_and_no_data(falsify):
    falsify("aten::mul", 0.5)
    with torchnan.detect(action="log"), pytest.warns(DetectorWarning) as warned:
        threes(100, 100) * threes(100, 100).t()
    assert str(warned[0].message) == (
        "torchnan: the bound of aten::mul is wrong: result 0, Float [100, 100] strides [100, 1], was proved to be "
        "within 4.5, and holds 9, self Float [100, 100] strides [100, 1] within 3, other Float [100, 100] strides "
        "[1, 100] within 3. From here on its results are scanned. Please report this line. Detection continues; later "
        "failures are only counted."
    )


def test_an_inf_that_a_wrong_bound_hides_is_reported_with_its_origin_within_n_steps(falsify):
    with torchnan.detect(action="log", rescan_every=EVERY) as watch:
        watch.mark_step(1)
        watch.mark_step(2)
        falsify("aten::exp", 1e-30)
        x = torch.full((ROWS,), 100.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DetectorWarning)
            for step in range(2, 2 + EVERY):
                watch.mark_step(step)
                y = x.exp()  # the origin
                (y * 2).sum().item()
    assert watch.first is not None
    assert watch.first.op == "aten::exp"
    assert watch.first.step < 2 + EVERY
    assert linecache.getline(watch.first.file, watch.first.line).strip() == "y = x.exp()  # the origin"


def test_conclusions_from_a_wrong_bound_are_discarded(falsify):
    with torchnan.detect(action="log"):
        x = threes()
        y = x + x
        assert _testing.known_bound(y) is not None
        falsify("aten::mul", 0.5)
        with pytest.warns(DetectorWarning):
            x * x
        assert _testing.known_bound(y) is None
        assert _testing.known_bound(x) is None


def test_memory_that_was_written_by_other_means_is_not_blamed_on_a_rule():
    with torchnan.detect(action="log") as watch, warnings.catch_warnings():
        warnings.simplefilter("error", DetectorWarning)
        x = threes() * 1
        ctypes_fill(x, 7e37)
        y = x * 3
        x.mul_(3)
        assert y.max() > 2e38
    assert watch.stats()["internal_errors"] == 0


def ctypes_fill(x: torch.Tensor, value: float) -> None:
    import ctypes

    pointer = ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))
    for i in range(x.numel()):
        pointer[i] = value


def steps_that_read(every: int, steps: int) -> list[int]:
    """Bytes that each step scans of proved results."""
    x = threes()
    read = []
    with torchnan.detect(action="log", rescan_every=every) as watch:
        for step in range(1, steps + 1):
            watch.mark_step(step)
            before = watch.stats()["bytes"]
            for _ in range(10):
                x + x
            read.append(watch.stats()["bytes"] - before)
    return read


def test_each_proved_result_is_read_once_in_n_steps_in_turn():
    size = 4 * ROWS
    first, *others = steps_that_read(every=10, steps=41)
    assert first >= 10 * size
    assert others == [size] * 40


def test_zero_reads_nothing_that_is_proved_and_one_reads_everything():
    assert set(steps_that_read(every=0, steps=5)[1:]) == {0}
    assert min(steps_that_read(every=1, steps=5)) >= 10 * 4 * ROWS


def test_a_program_that_counts_no_steps_has_another_result_read_each_time():
    x = threes()
    with torchnan.detect(action="log", rescan_every=50) as watch:
        watch.mark_step(1)
        watch.mark_step(2)
        read = set()
        for _ in range(60):
            for place in range(50):
                before = watch.stats()["bytes"]
                x + x
                if watch.stats()["bytes"] > before:
                    read.add(place)
    assert len(read) == 50


@pytest.mark.parametrize("form", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_a_wrong_proof_of_a_whole_step_is_found_within_n_steps(form):
    weights = [torch.full((ROWS,), 3.0).requires_grad_() for _ in range(3)]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, **form)
    try:
        with torchnan.detect(action="log", rescan_every=EVERY) as watch:
            for step in range(1, 3 + EVERY):
                watch.mark_step(step)
                _testing.falsify_proved_steps(1.0 if step <= 2 else 0.5)
                loss = sum((w * w).sum() for w in weights)
                loss.backward()
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("always")
                    optimizer.step()
                if warned:
                    break
        assert "the bounds of a step of Adam are wrong" in str(warned[0].message)
        assert watch.stats()["internal_errors"] == 1
    finally:
        _testing.falsify_proved_steps(1.0)
