"""Detection changes nothing: every operator that PyTorch lists for the CPU, in every way to call it, off and on.

The short form takes float32 and one more dtype and the first sample; the long form all of them. Fails when a call under
detection differs in any facet: for each of them the last tests have an operator that does.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys

import pytest
import torch
from torch.testing._internal.common_optimizers import _get_optim_inputs_including_global_cliquey_kwargs, optim_db

from tests.support.call_comparison import Comparison, modes, nobody, quick_and_loud, recorder
from tests.support.call_observation import Call
from tests.support.cpu_operators import OPS, dtypes, samples, two_dtypes, variants, varies
from tests.support.detection_sensitive_operators import SPIES
from tests.support.processes import REPOSITORY, run

DIGESTS = [sys.executable, "-m", "tests.guarantees.programs.digests"]

IN_FULL = 4  # samples of every dtype that are run in every variant; of float32 all are

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of operators are compared, not shown

each_operator = pytest.mark.parametrize("name", OPS)


@pytest.fixture(autouse=True, scope="module")
def calm():
    with quick_and_loud():
        yield


@pytest.fixture(autouse=True)
def tidy():
    yield
    gc.collect(0)


def cases(op, *, soak):
    """(dtype, number of the sample, variant, call, whether to check it closely)"""
    for dtype in dtypes(op) if soak else two_dtypes(op):
        for number, sample in enumerate(samples(op, dtype, None if soak else 1)):
            closely = number < IN_FULL or dtype == torch.float32
            for variant, call in itertools.islice(variants(op, sample), None if closely else 1):
                yield dtype, number, variant, call, closely


def assert_the_same(op, dtype, variant, compared, which):
    faults = compared.faults(lambda facet: varies(op, dtype, variant, facet))
    assert not faults, f"{op.full_name}, {dtype}, {variant}, {which}: {faults}"


@pytest.mark.breadth(60)
@pytest.mark.guarantee(1)
@each_operator
def test_an_operator_is_the_same(name, soak, figure, capfd):
    runs = finite = 0
    for dtype, number, variant, call, closely in cases(OPS[name], soak=soak):
        compared = Comparison(call, twice=closely, printed=capfd.readouterr)
        assert_the_same(OPS[name], dtype, variant, compared, f"sample {number}")
        runs += 1
        finite += compared.finite
    figure(
        "{operators:,} operators, {runs:,} calls off and on: 0 differences; {finite:,} with finite values: 0 alarms",
        operators=1,
        runs=runs,
        finite=finite,
    )


@pytest.mark.breadth(60)
@pytest.mark.guarantee(6)
@each_operator
def test_a_check_dispatches_nothing(name, soak, figure):
    op, runs = OPS[name], 0
    for dtype in dtypes(op) if soak else dtypes(op)[:1]:
        for sample in samples(op, dtype, 1):
            for (variant, call), observer in itertools.product(variants(op, sample), (modes, recorder)):
                if soak or variant in ("plain", "in place", "out="):
                    compared = Comparison(call, observer=observer)
                    assert_the_same(op, dtype, variant, compared, observer.__name__)
                    runs += 1
    figure("{runs:,} calls of {operators:,} operators, 0 operations more", operators=1, runs=runs)


# -- optimizers


def steps(optimizer, options, scale, *parameters):
    """Three steps; the resulting parameters and state."""
    made = optimizer(parameters, **options)
    sparse = optimizer is torch.optim.SparseAdam

    def closure():
        made.zero_grad()
        rows = [
            torch.nn.functional.embedding(torch.tensor([0, 2]), p, sparse=True) if sparse else p for p in parameters
        ]
        loss = sum(row.square().sum() for row in rows) * scale
        loss.backward()
        return loss

    losses = [made.step(closure) for _ in range(3)]
    state = [made.state[p][key] for p in parameters if p in made.state for key in sorted(made.state[p])]
    return losses, list(parameters), state


def optimizer_calls(info):
    for described in _get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float32, info):
        for scale in (1.0, float("nan")):
            parameters = [torch.linspace(-1, 1, 3 * n).reshape(3, n).requires_grad_() for n in (1, 4)]
            yield described.desc, Call(steps, (info.optim_cls, described.kwargs, scale, *parameters), {})


@pytest.mark.breadth(5)
@pytest.mark.guarantee(1)
@pytest.mark.parametrize("info", optim_db, ids=[info.optim_cls.__name__ for info in optim_db])
def test_an_optimizer_is_the_same(info, soak, figure, capfd):
    runs = 0
    for described, call in optimizer_calls(info):
        for observer in (nobody, modes, recorder) if soak else (nobody, recorder):
            faults = Comparison(call, observer=observer, twice=False, printed=capfd.readouterr).faults()
            assert not faults, f"{described}, {observer.__name__}: {faults}"
            runs += 1
    figure("{optimizers} optimizers, {runs} times three steps off and on, 0 differences", optimizers=1, runs=runs)


# -- loaded but off


@pytest.mark.breadth(0)
@pytest.mark.guarantee(1)
def test_loaded_but_off_is_not_loaded(soak, figure, tmp_path):
    """The same digests in a process that never imports torchnan, in one that has, and in one that has used it."""
    told = {}
    for how in ("never", "imported", "used"):
        ended = run([*DIGESTS, how, *["thorough"] * soak], cwd=REPOSITORY, PYTHONHASHSEED="0")
        assert ended.returncode == 0, ended.stderr[-3000:]
        told[how] = json.loads(ended.stdout)
    for how in ("imported", "used"):
        assert told[how]["state"] == told["never"]["state"]
        differing = [op for op, digests in told["never"]["digests"].items() if told[how]["digests"][op] != digests]
        assert not differing, how
    calls = sum(map(len, told["never"]["digests"].values()))
    figure(f"{calls:,} calls in a process without torchnan, with it loaded, and after its use: the same digests")


# -- the comparison itself


@pytest.mark.parametrize("facet", SPIES)
def test_the_comparison_notices_a_difference(facet, capfd):
    x = torch.ones(2, 3, 2)[..., 1].detach().requires_grad_()
    faults = []
    for observer in (modes, recorder):
        faults += Comparison(Call(SPIES[facet], (x,), {}), observer=observer, printed=capfd.readouterr).faults()
    assert any(fault.startswith(facet.split(":")[0]) for fault in faults), faults


def test_an_operator_that_does_not_spy_is_the_same(capfd):
    x = torch.ones(2, 3, 2)[..., 1].detach().requires_grad_()
    for observer in (modes, recorder):
        assert not Comparison(Call(torch.sin, (x,), {}), observer=observer, printed=capfd.readouterr).faults()
