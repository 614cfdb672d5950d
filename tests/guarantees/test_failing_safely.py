"""Promise 10: if anything fails inside torchnan, the program continues; each cause is warned about once, and
counted."""

from __future__ import annotations

import json
import sys
import types
import warnings

import pytest
import torch

import torchnan
from tests.support.bad_training import FINDINGS, Branch, Net, own_warnings, train
from tests.support.hostile_models import MODELS, HalfMade, Stranger

pytestmark = pytest.mark.guarantee(10)


@pytest.fixture(scope="module")
def expected():
    return train()


def watched(action="log", make_model=Net, **options):
    """A training under detection; the warnings about failures inside torchnan; the result."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torchnan.detect(action=action, **options) as watch:
            results = train(make_model)
    return watch, own_warnings(caught), results


# -- actions of the program


class Failing:
    """Raises the nth time it is called, or from then on."""

    def __init__(self, error, nth, for_ever):
        self.error, self.nth, self.for_ever = error, nth, for_ever
        self.calls = self.failures = 0

    def __call__(self, *_):
        self.calls += 1
        if self.calls == self.nth or (self.for_ever and self.calls > self.nth):
            self.failures += 1
            raise self.error


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("it cannot even be told")


ERRORS = (ValueError("mine"), MemoryError(), Unspeakable(), StopIteration(), AssertionError("\x1b[31m\n"))


@pytest.mark.breadth(1)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_action_that_raises(error, expected, figure):
    """Once and forever, at each finding in turn. Fails when ``act`` does not contain the action."""
    runs = 0
    for for_ever in (False, True):
        for nth in range(1, FINDINGS + 1):
            action = Failing(error, nth, for_ever)
            watch, said, results = watched(action)
            assert results == expected
            assert action.failures == (FINDINGS - nth + 1 if for_ever else 1)
            assert watch.stats()["internal_errors"] == action.failures
            assert len(said) == 1
            assert said[0].startswith("torchnan: the action of a finding failed: ")
            assert said[0].isprintable()
            runs += 1
    figure(f"{runs} trainings whose action raises {type(error).__name__}: the same bits, one warning each")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("place", ["forward", "backward", "optimizer", "end"])
def test_exceptions_that_are_not_errors_reach_the_program(error, place):
    """Ctrl-C and sys.exit() in an action. Fails when ``throw_from_python`` turns every exception into an error."""
    action = Failing(error("stop"), 1, False)
    weight = torch.zeros(3, requires_grad=True)
    held = None
    with pytest.raises(error, match="stop"):
        with torchnan.detect(action=action) as watch:
            if place == "forward":
                torch.log(torch.tensor(-1.0)).item()
            elif place == "backward":
                (weight * float("nan")).sum().backward()
            elif place == "optimizer":
                weight.sqrt().sum().backward()
                torch.optim.SGD([weight], lr=0.1).step()
            else:
                held = torch.log(torch.tensor(-1.0))
    assert watch.stats()["internal_errors"] == 0
    assert action.calls == 1
    assert held is None or held.isnan()


# -- questions about the program


@pytest.mark.breadth(6)
@pytest.mark.parametrize("is_given", [False, True], ids=["found", "given"])
@pytest.mark.parametrize("make_model", MODELS, ids=lambda model: model.__name__)
def test_a_model_that_cannot_be_asked(make_model, is_given, tmp_path):
    """Findings are made inside it, and it may be asked for names. Fails when ``_module_path`` does not contain its
    calls: then the source lines are lost with the names."""
    expected = train(make_model)
    made = []

    def make_and_keep():
        model = make_model()
        watch.model = model if is_given else None  # like detect(model=...)
        made.append(model)
        return model

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torchnan.detect(action="log", log=tmp_path / "log") as watch:
            results = train(make_and_keep)
    assert results == expected
    said = own_warnings(caught)
    assert len(said) == (1 if watch.stats()["internal_errors"] else 0), said
    assert len(watch.findings) == FINDINGS
    assert sum(finding.file == Branch.forward.__code__.co_filename for finding in watch.findings) == FINDINGS
    assert len((tmp_path / "log").read_text().splitlines()) == FINDINGS


def test_objects_that_cannot_be_asked(expected):
    """They exist somewhere in the process, and torchnan searches all objects. Fails when one of them ends the
    search."""
    stranger = torch.zeros(3).as_subclass(Stranger)
    half_made = HalfMade()
    held = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(torchnan.NonFiniteError, match="still referenced"):
            with torchnan.detect() as watch:
                held.append(torch.log(torch.tensor([-1.0])))
    assert [finding.harm.kind for finding in watch.findings] == ["alive"]
    assert len(own_warnings(caught)) <= 1
    assert isinstance(half_made, HalfMade)
    assert type(stranger) is Stranger


def make(x):
    return x.log().sum().item()


def with_code(**changes):
    """The same function, from another module."""
    return types.FunctionType(make.__code__.replace(**changes), globals())


@pytest.mark.parametrize("name", ["", "\udcff.py", "<string>", "a\nb\x1b[31m", "x" * 100_000, "no/such/file.py"])
def test_code_with_a_strange_file_name(name, tmp_path):
    check_place(with_code(co_filename=name), tmp_path)


def test_code_without_lines(tmp_path):
    check_place(with_code(co_linetable=b"", co_firstlineno=0), tmp_path)


def check_place(function, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torchnan.detect(action="warn", log=tmp_path / "log") as watch:
            function(torch.full((2,), -1.0))
    assert [finding.op for finding in watch.findings] == ["aten::log"]
    assert len(own_warnings(caught)) == (1 if watch.stats()["internal_errors"] else 0)
    assert json.loads((tmp_path / "log").read_text())["op"] == "aten::log"
    assert watch.report()


# -- rules of the program


class Reckless:
    def __float__(self):
        raise RuntimeError("no number")


def recursive(x):
    torch.ops.torchnan_failing.scale(torch.ones(5000))
    return 3 * x.most


ANSWERS = {
    "text": lambda x: "large",
    "negative": lambda x: -5.0,
    "nan": lambda x: float("nan"),
    "complex": lambda x: 1j,
    "reckless": lambda x: Reckless(),
    "tensor": lambda x: torch.tensor(3 * x.most),
    "bad tensor": lambda x: torch.log(torch.full((5000,), -1.0)),
    "too many": lambda x: [3 * x.most] * 10_000,
    "endless": lambda x: iter(int, 1),
    "recursive": recursive,
    "raises": lambda x: 1 / 0,
    "unspeakable": lambda x: (_ for _ in ()).throw(Unspeakable()),
    "no memory": lambda x: (_ for _ in ()).throw(MemoryError()),
}
answer = ANSWERS["raises"]


@pytest.fixture(scope="session")  # a rule is registered once in a process
def scale():
    library = torch.library.Library("torchnan_failing", "DEF")
    library.define("scale(Tensor x) -> Tensor")
    library.impl("scale", lambda x: x * 3, "CPU")
    torchnan.register_bound("torchnan_failing::scale", lambda x: answer(x))
    yield torch.ops.torchnan_failing.scale
    library._destroy()


@pytest.mark.breadth(4)
@pytest.mark.parametrize("kind", ANSWERS)
def test_a_bound_rule_that_raises_or_returns_nonsense(kind, scale, monkeypatch):
    """The result is scanned, and a NaN in it is found. Fails when ``bound_from`` accepts any number."""
    monkeypatch.setattr(sys.modules[__name__], "answer", ANSWERS[kind])
    x = torch.full((5000,), 2.0)
    x[7] = float("nan")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torchnan.detect(action="log") as watch:
            good = scale(torch.full((5000,), 2.0))
            bad = scale(x)
            bad.sum().item()
    assert good.eq(6).all()
    assert bad.isnan().sum() == 1
    assert watch.first.op == "torchnan_failing::scale"
    assert len(own_warnings(caught)) == (1 if watch.stats()["internal_errors"] else 0)


def test_a_bound_rule_that_is_interrupted(scale, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "answer", Failing(KeyboardInterrupt(), 1, False))
    with torchnan.detect(action="log") as watch, pytest.raises(KeyboardInterrupt):
        scale(torch.full((5000,), 2.0))
    assert watch.stats()["internal_errors"] == 0


# -- with action="raise"


@pytest.mark.parametrize("make_model", MODELS, ids=lambda model: model.__name__)
def test_nothing_but_the_alarm_is_raised_and_it_is_in_the_log(make_model, tmp_path):
    """Fails when ``act`` goes before ``keep``."""
    log = tmp_path / "log"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(torchnan.NonFiniteError) as raised, torchnan.detect(log=log):
            train(make_model)
    assert len(own_warnings(caught)) <= 1
    assert [json.loads(line)["op"] for line in log.read_text().splitlines()] == [raised.value.finding.op]


def test_an_alarm_goes_before_a_log_that_fails():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(torchnan.NonFiniteError), torchnan.detect(log="/dev/full") as watch:
            train()
    assert len(own_warnings(caught)) == 1
    assert (watch.stats()["log_failures"], watch.stats()["internal_errors"]) == (1, 1)


# -- the program's own errors


def test_the_programs_own_errors_arrive_as_they_are():
    """With various failures inside torchnan at the same time."""
    error = ZeroDivisionError("the program's own")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ZeroDivisionError) as raised, torchnan.detect(action=Failing(ValueError(), 1, True)):
            held = torch.log(torch.tensor(-1.0))
            held.item()
            raise error
        assert raised.value is error
        assert raised.value.__context__ is None
        bad = torch.full((2, 3), float("nan"))
        with torchnan.detect(action=Failing(ValueError(), 1, True)):
            with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
                bad @ bad
            with pytest.raises(RuntimeError, match="does not require grad"):
                bad.sum().backward()
