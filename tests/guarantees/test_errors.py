"""Errors are the same under detection: PyTorch's own error inputs, and programs that fail beside a NaN."""

from __future__ import annotations

import contextlib
import sys
import warnings

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db

import torchnan
from tests.support.call_comparison import Comparison, quick_and_loud
from tests.support.call_observation import Call
from tests.support.cpu_operators import LAYOUTS, OPS
from torchnan.detection.errors import DetectorWarning

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of operators are compared, not shown

# How many of those that PyTorch lists raise nothing: some only raise on other devices, some optimizers only with
# parameters from their own tests.
NO_ERROR = {"operator": 5, "module": 0, "optimizer": 17}


@pytest.fixture(autouse=True, scope="module")
def calm():
    with quick_and_loud():
        yield


OPERATORS = {name: op for name, op in OPS.items() if op.error_inputs_func or op.error_inputs_sparse_func}
MODULES = {info.name: info for info in module_db if info.module_error_inputs_func}
OPTIMIZERS = {info.optim_cls.__name__: info for info in optim_db}


def varies(name, facet):
    """cat() lets out= grow before it rejects its device: the new memory is uninitialized."""
    return name == "cat" and (facet.endswith(".bits") or facet.startswith("memory"))


def operator_calls(op):
    inputs = list(op.error_inputs("cpu")) if op.error_inputs_func else []
    for layout in LAYOUTS if op.error_inputs_sparse_func else ():
        with contextlib.suppress(NotImplementedError):  # there are none for this layout
            inputs += op.error_inputs_sparse("cpu", layout)
    for error in inputs:
        sample = error.sample_input
        yield Call(op.op, (sample.input, *sample.args), sample.kwargs)


def module_calls(info):
    def make_and_call(construction, arguments):
        args, kwargs = construction
        made = info.module_cls(*args, **kwargs)
        args, kwargs = arguments
        return made(*args, **kwargs)

    for training in (True, False):
        errors = info.module_error_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )
        for error in errors:
            given = error.module_error_input
            both = [(x.args, x.kwargs) if x else ((), {}) for x in (given.constructor_input, given.forward_input)]
            yield Call(make_and_call, tuple(both), {})


def optimizer_calls(info):
    def make_and_step(parameters, options):
        parameters = [torch.ones(2, requires_grad=True)] if parameters is None else parameters
        return info.optim_cls(parameters, **options).step(lambda: parameters[0].sum())

    for error in info.optim_error_inputs_func("cpu", torch.float32):
        given = error.optimizer_error_input
        yield Call(make_and_step, (given.params, given.kwargs), {})


def while_something_is_nan(call):
    def function(*args, **kwargs):
        held = torch.zeros(1).log().sub_(torch.zeros(1).log())
        return call.function(*args, **kwargs), held.numel()

    return call._replace(function=function)


WAYS = {
    "as it is": lambda call, printed: Comparison(call, twice=False, printed=printed),
    "python -W error": lambda call, printed: Comparison(call, twice=False, printed=printed, warned="error"),
    "a NaN about": lambda call, printed: Comparison(while_something_is_nan(call), twice=False, printed=printed),
}


@pytest.mark.guarantee(2)
@pytest.mark.breadth(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("calls_of", "infos"),
    [
        pytest.param(operator_calls, OPERATORS, id="operators", marks=pytest.mark.breadth(0)),  # takes most of a minute
        pytest.param(module_calls, MODULES, id="modules"),
        pytest.param(optimizer_calls, OPTIMIZERS, id="optimizers"),
    ],
)
def test_errors_are_the_same(calls_of, infos, way, figure, capfd):
    kind, runs, quiet = calls_of.__name__.partition("_")[0], 0, 0
    for name, info in infos.items():
        for number, call in enumerate(calls_of(info)):
            compared = WAYS[way](call, capfd.readouterr)
            faults = compared.faults(lambda facet, name=name: varies(name, facet))
            assert not faults, f"{name}, error input {number}, {way}: {faults}"
            runs += 1
            quiet += "error" not in compared.on.noticed
    assert way != "as it is" or quiet == NO_ERROR[kind]
    figure("{runs:,} calls that fail, of operators, modules and optimizers: the same errors off and on", runs=runs)


# -- the program's own exception, if warnings are errors


@pytest.fixture
def unraisable(monkeypatch):
    """Errors that reach only sys.unraisablehook."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: told.append(event.exc_value))
    return told


def fail(finding=None):
    raise KeyError("mine")


def in_the_open(harm):
    harm()
    fail()


def in_a_hook(harm):
    harm()
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(fail)
    y.sum().backward()


def in_a_backward(harm):
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            harm()
            fail()

    Failing.apply(torch.zeros(2, requires_grad=True)).sum().backward()


def in_a_finally(harm):
    try:
        fail()
    finally:
        harm()


@pytest.mark.guarantee(2)
@pytest.mark.parametrize("program", [in_the_open, in_a_hook, in_a_backward, in_a_finally])
@pytest.mark.parametrize("action", ["raise", "warn", "log", fail])
def test_the_programs_own_exception_arrives(program, action, unraisable):
    """Under python -W error, with a finding made on the way, or with one pending at the end of the detection. Fails
    when a detection that ends with an exception checks referenced values, and when a finding is warned about as a
    DetectorWarning."""

    def harm():
        held.append(torch.zeros(2).log())
        if action != "raise":  # it would be the first to raise
            held[-1].tolist()

    held = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError) as raised:
            with torchnan.detect(action=action) as watch:
                program(harm)
        held.clear()
    assert raised.value.args == ("mine",)
    assert raised.value.__context__ is None
    assert [type(error) for error in unraisable] == {"warn": [torchnan.NonFiniteWarning], fail: [DetectorWarning]}.get(
        action, []
    )
    assert len(watch.findings) == (action != "raise")


@pytest.mark.guarantee(2)
def test_a_warning_that_is_an_error_ends_no_program(unraisable):
    """action="warn" never raises: the finding goes to sys.unraisablehook."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torchnan.detect(action="warn") as watch:
            values = torch.zeros(2).log().tolist()
    assert values == [-float("inf")] * 2
    assert [str(error) for error in unraisable] == [str(watch.first)]
