"""Detection does not change compiled code: every operator that PyTorch lists for the CPU, compiled, off and on.

The test compares everything that a program can notice about a call and its backward pass, and the compiler's counters:
graphs, breaks, recompilations, and whether Inductor finds under detection what it has cached without.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tests.support.call_comparison import Comparison, quick_and_loud
from tests.support.call_observation import Call
from tests.support.cpu_operators import OPS, dtypes, samples, varies

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler warns once in a process

NAMES = [name for name, op in OPS.items() if dtypes(op)]  # three are only for other devices
SOME = NAMES[::75]  # each takes seconds to compile: all are in `make soak`
COUNTED = ("stats", "frames", "graph_break", "recompiles", "unimplemented")


@pytest.fixture(autouse=True)
def calm():
    with quick_and_loud():
        yield
        torch._dynamo.reset()
    gc.collect()


def compiled_afresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is compiled for each run, and then called twice: the second call must not compile again."""

    def call(*args: Any, **options: Any) -> Any:
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(lambda *args, **options: function(*args, **options))
        compiled(*args, **options)
        return compiled(*args, **options)

    return call


def counted() -> dict[str, dict[str, int]]:
    """The compiler's counters since the beginning of the run."""
    return {name: dict(counters[name]) for name in COUNTED}


@pytest.mark.breadth(2)
@pytest.mark.guarantee(1)
@pytest.mark.parametrize(
    "name", [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_compiled_operator_is_the_same(name, figure):
    op = OPS[name]
    dtype = dtypes(op)[0]
    runs = finite = 0
    for sample in samples(op, dtype, 1):
        call = Call(compiled_afresh(op.op), (sample.input, *sample.args), sample.kwargs)
        compared = Comparison(call, twice=False, printed=counted, warned="ignore")
        missed = counters["inductor"]["fxgraph_cache_miss"]
        faults = compared.faults(lambda facet: varies(op, dtype, "plain", facet))
        assert not faults, f"{name}: {faults}"
        is_compiled = "error" not in compared.off.noticed  # a failed compilation is not cached
        assert missed == 0 or not is_compiled, f"{name}: compiled again under detection"
        runs += 1
        finite += compared.finite
    figure(
        "{operators:,} operators compiled, {runs:,} calls off and on: the same bits, graphs, breaks and "
        "recompilations; {finite:,} with finite values: 0 alarms",
        operators=1,
        runs=runs,
        finite=finite,
    )
