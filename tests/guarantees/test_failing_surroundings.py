"""Promise 10: failed warnings, failing hooks and optimizers, and other libraries that patch the same functions."""

from __future__ import annotations

import itertools
import threading
import warnings

import pytest
import torch

import torchnan
from tests.support.bad_training import FINDINGS, own_warnings, train
from tests.support.forked_python import run_forked
from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.guarantee(10)


# -- failed warnings

WARNING = """
import os, sys, warnings
sys.path[:0] = [sys.argv[1]]
import torch, torchnan
from tests.support.bad_training import FINDINGS, train
expected = train()
report = os.dup(1)

def refuse(*args, **kwargs):
    raise RuntimeError("nothing is shown here")

def interrupt(*args, **kwargs):
    raise KeyboardInterrupt

class Broken:
    def write(self, text):
        raise BrokenPipeError(32, "no reader")
    flush = write

way = sys.argv[2]
if way == "errors":
    warnings.simplefilter("error")
elif way == "closed":
    sys.stderr.close()
elif way == "none":
    sys.stderr = None
elif way == "no descriptor":
    os.close(2)
elif way == "broken":
    sys.stderr = Broken()
elif way == "full":
    sys.stderr = open("/dev/full", "w", buffering=1)
elif way == "hook":
    warnings.showwarning = refuse
    sys.unraisablehook = refuse
elif way == "linecache":
    import linecache
    getline = linecache.getline  # torch asks for lines by traceback, with the generator's seed
    by_traceback = lambda: sys._getframe(2).f_code.co_filename.endswith("traceback.py")
    linecache.getline = lambda *args: getline(*args) if by_traceback() else refuse()
elif way == "interrupt":
    warnings.showwarning = interrupt
elif way == "no warnings":
    warnings.warn = warnings.warn_explicit = refuse

watch = torchnan.detect(action="warn", log=sys.argv[3])
interrupted = False
try:
    with watch:
        results = train()
except KeyboardInterrupt:
    interrupted = True
assert interrupted == (way == "interrupt"), way
if not interrupted:
    assert results == expected
    assert len(watch.findings) == FINDINGS
    assert len(open(sys.argv[3]).readlines()) == FINDINGS
print(watch.stats()["internal_errors"])
"""

UNTOLD = {"errors", "hook", "no warnings"}  # the warning of each finding raises; if stderr fails, Python prints nothing
WAYS = ("errors", "closed", "full", "interrupt")
OTHER_WAYS = ("none", "no descriptor", "broken", "hook", "linecache", "no warnings")


@pytest.mark.breadth(1)
@pytest.mark.parametrize("way", [*WAYS, *(pytest.param(way, marks=pytest.mark.slow) for way in OTHER_WAYS)])
def test_a_warning_that_cannot_be_given(way, tmp_path):
    """``action="warn"`` where warnings are errors, or stderr is gone. Ctrl-C during a warning reaches the program.
    Fails when ``Messenger::warn`` is noexcept, and when ``say`` contains exceptions that are not errors."""
    ended = run_forked(WARNING, str(REPOSITORY), way, str(tmp_path / "log"))
    unflushed = 120  # Python's exit status for this
    assert ended.returncode == (unflushed if way in ("full", "broken") else 0), ended.stderr
    errors = int(ended.stdout)
    assert errors == FINDINGS if way in UNTOLD else errors == 0 or way == "closed"
    if way == "errors":
        assert ended.stderr.count("Exception ignored in: 'torchnan'") == FINDINGS


def test_a_program_wide_detection_ends_without_a_stderr(tmp_path):
    code = "import sys; sys.stderr = None\nimport torch; held = torch.log(torch.tensor(-1.0))"
    ended = run_forked(code, TORCHNAN="log", TORCHNAN_LOG=str(tmp_path / "log"))
    assert (ended.returncode, ended.stdout) == (0, "")
    assert len((tmp_path / "log").read_text().splitlines()) == 1


# -- optimizers and their hooks


class KeepsOtherThings(torch.optim.SGD):
    """Like optimizers of other packages: extra state beside the parameters, which is not a dict."""

    def step(self, closure=None):
        super().step(closure)
        self.state["count"] = self.state.get("count", 0) + 1
        self.state["history"] = [torch.tensor(float("nan"))]


class NoGroups(torch.optim.SGD):
    armed = False

    def __getattribute__(self, name):
        if name == "param_groups" and object.__getattribute__(self, "armed"):
            raise RuntimeError("no groups")
        return super().__getattribute__(name)


def test_an_optimizer_with_another_kind_of_state():
    """Fails when ``_check_state`` assumes that every state is a dict."""
    weight = torch.ones(3, requires_grad=True)
    with torchnan.detect(action="log") as watch:
        bad = torch.log(torch.tensor(-1.0))
        optimizer = KeepsOtherThings([weight], lr=0.5)
        weight.sum().backward()
        optimizer.step()
    assert weight.eq(0.5).all()
    assert watch.stats()["internal_errors"] == 0
    assert bad.isnan()


@pytest.mark.parametrize("with_closure", [False, True])
def test_an_optimizer_that_cannot_be_asked(with_closure):
    """The program's own error arrives, and torchnan's is counted. Fails when ``_before_step`` does not contain its
    errors."""
    weight = torch.ones(3, requires_grad=True)
    optimizer = NoGroups([weight], lr=0.5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torchnan.detect(action="log") as watch:
            bad = torch.log(torch.tensor(-1.0))
            weight.sum().backward()
            optimizer.armed = True
            with pytest.raises(RuntimeError, match="no groups") as raised:
                optimizer.step(*[lambda: weight.sum()] if with_closure else [])
    assert raised.value.__context__ is None
    assert len(own_warnings(caught)) == 1
    assert watch.stats()["internal_errors"] == 1
    assert bad.isnan()


@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_hook_of_the_program_that_raises(when):
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    error = ValueError("the program's own")

    def hook(*_):
        raise error

    getattr(optimizer, f"register_step_{when}_hook")(hook)
    with torchnan.detect(action="log") as watch:
        weight.sum().backward()
        with pytest.raises(ValueError, match="the program's own") as raised:
            optimizer.step()
    assert raised.value is error
    assert watch.stats()["internal_errors"] == 0


def test_a_loss_scaler_that_fails():
    class Scaler(torch.amp.GradScaler):
        def _maybe_opt_step(self, *args, **kwargs):
            raise OSError("the program's own")

    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = Scaler("cpu", init_scale=2.0)
    with torchnan.detect(action="log") as watch:
        scaler.scale(weight.sum()).backward()
        with pytest.raises(OSError, match="the program's own"):
            scaler.step(optimizer)
        torch.log(torch.tensor(-1.0)).item()
    assert len(watch.findings) == 1
    assert watch.stats()["internal_errors"] == 0


# -- other libraries that patch the same functions


PATCHED = [
    (torch.Tensor, "tolist"),
    (torch.Tensor, "numpy"),
    (torch.Tensor, "data_ptr"),
    (torch.autograd, "_engine_run_backward"),
    (torch.autograd.Function, "apply"),
    (threading.Thread, "_bootstrap_inner"),
]


class Other:
    """Another library: it wraps a function, and restores the one that it found."""

    def __init__(self, holder, name):
        self.holder, self.name = holder, name
        self.calls = 0

    def install(self):
        self.own = self.name in vars(self.holder)
        self.found = found = vars(self.holder).get(self.name, getattr(self.holder, self.name))

        def wrapper(*args, **kwargs):
            self.calls += 1
            function = found.__func__ if isinstance(found, classmethod) else found
            return function(*args, **kwargs)

        self.wrapper = classmethod(wrapper) if isinstance(found, classmethod) else wrapper
        setattr(self.holder, self.name, self.wrapper)

    def uninstall(self):
        if self.own:
            setattr(self.holder, self.name, self.found)
        else:
            delattr(self.holder, self.name)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def use():
    """Everything that is patched, once each."""
    x = torch.ones(3, requires_grad=True)
    Double.apply(x).sum().backward()
    thread = threading.Thread(target=lambda: torch.ones(1).tolist())
    thread.start()
    thread.join()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    assert x.detach().numpy().tolist() == [1.0, 1.0, 1.0]
    assert x.data_ptr() != 0


ORDERS = [
    order
    for order in itertools.permutations(("we come", "we go", "they come", "they go"))
    if order.index("we come") < order.index("we go") and order.index("they come") < order.index("they go")
]


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_patches_come_and_go_in_any_order(order, figure):
    """Their wrapper works as long as it exists, so does detection, and in the end everything is restored, even after
    many rounds. Fails when ``replace`` restores its original without checking the current value."""
    before = [vars(holder).get(name) for holder, name in PATCHED]
    others = [Other(holder, name) for holder, name in PATCHED]
    watch = None
    for _ in range(50):
        for what in order:
            if what == "they come":
                for other in others:
                    other.install()
            elif what == "they go":
                for other in others:
                    other.uninstall()
            elif what == "we come":
                watch = torchnan.set_detect(True, action="log")
            else:
                torchnan.set_detect(False)
            calls = [other.calls for other in others]
            use()
            there = order.index("they come") <= order.index(what) < order.index("they go")
            assert [other.calls > n for other, n in zip(others, calls, strict=True)] == [there] * len(others), what
            if order.index("we come") <= order.index(what) < order.index("we go"):
                count = watch.stats()["ops"]
                use()
                assert watch.stats()["ops"] > count
                assert watch.stats()["internal_errors"] == 0
    depth = max(_depth(vars(holder).get(name)) for holder, name in PATCHED)
    assert depth <= 3, "wrappers pile up"  # two wrappers of torchnan
    torchnan.set_detect(True)  # removes the leftover wrapper below
    torchnan.set_detect(False)
    assert [vars(holder).get(name) for holder, name in PATCHED] == before
    figure(f"another library's patches and ours, {' - '.join(order)}, 50 times: both work, nothing is left")


def _depth(function):
    depth = 0
    while function is not None:
        depth += 1
        function = getattr(function, "__wrapped__", None)
    return depth


def test_hooks_that_do_not_fit_are_done_without(monkeypatch):
    """A library has replaced an attribute that torchnan hooks. Fails when ``install`` does not contain its errors."""
    original = torch._C._increment_version
    monkeypatch.setattr(torch._C, "_increment_version", lambda tensors: original(tensors))
    theirs = torch._C._increment_version
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torchnan.detect(action="log") as watch:
            torch.log(torch.tensor(-1.0)).item()
    assert torch._C._increment_version is theirs
    assert len(watch.findings) == 1
    assert watch.stats()["internal_errors"] == 1
    assert "the hook on <lambda> failed: TypeError" in own_warnings(caught)[0]


def test_wrapped_functions_fail_as_they_would_without():
    """Misuse is left for PyTorch to reject, with its own message."""
    misuses = [
        lambda: torch.Tensor.data_ptr(5),
        lambda: torch.Tensor.tolist(5),
        lambda: torch.Tensor.numpy("x"),
        lambda: torch._C._increment_version(5),
        lambda: torch._C._increment_version([5]),
        lambda: torch._C._increment_version(torch.tensor(1.0)),
        lambda: Double.apply(),
    ]
    said = [_error_of(misuse) for misuse in misuses]
    with torchnan.detect(action="log") as watch:
        bad = torch.log(torch.tensor(-1.0))
        assert [_error_of(misuse) for misuse in misuses] == said
    assert watch.stats()["internal_errors"] == 0
    assert bad.isnan()


def _error_of(misuse):
    try:
        misuse()
    except Exception as error:  # noqa: BLE001 - of any kind
        return type(error), str(error)
    return None


def test_training_is_the_same_again():
    """After all of the above."""
    expected = train()
    with torchnan.detect(action="log"):
        assert train() == expected
