"""A replay runs apart from the program: on its thread and with its locks, with nothing else that it has set there.

A step, which is functions of the program, keeps the modes in which it computes.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchnan
from torchnan._load import _C
from torchnan.detection import signal_handlers
from torchnan.detection.apart import step_apart
from torchnan.detection.compiled.replay import apart
from torchnan.detection.containment import contained


@torch.library.custom_op("torchnan_tests::draws_inside", mutates_args=())
def draws_inside(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(x.shape)


DRAWS = {
    "rand": lambda generator: torch.rand(3),
    "randn": lambda generator: torch.randn(3),
    "randint": lambda generator: torch.randint(0, 1000, (3,)),
    "randperm": lambda generator: torch.randperm(9),
    "rand_like": lambda generator: torch.rand_like(torch.ones(3)),
    "randn_like": lambda generator: torch.randn_like(torch.ones(3)),
    "uniform_": lambda generator: torch.empty(3).uniform_(),
    "normal_": lambda generator: torch.empty(3).normal_(),
    "bernoulli_": lambda generator: torch.empty(9).bernoulli_(0.5),
    "bernoulli": lambda generator: torch.bernoulli(torch.full((9,), 0.5)),
    "exponential_": lambda generator: torch.empty(3).exponential_(),
    "multinomial": lambda generator: torch.multinomial(torch.ones(9), 3),
    "poisson": lambda generator: torch.poisson(torch.full((9,), 5.0)),
    "dropout": lambda generator: nn.functional.dropout(torch.ones(9)),
    "native_dropout": lambda generator: torch.native_dropout(torch.ones(9), 0.5, True)[0],
    "rrelu": lambda generator: nn.functional.rrelu(-torch.ones(9), training=True),
    "attention": lambda generator: nn.functional.scaled_dot_product_attention(
        *torch.ones(3, 1, 4, 4).unbind(), dropout_p=0.5
    ),
    "a custom operator": lambda generator: draws_inside(torch.ones(3)),
    "a generator of the program": lambda generator: torch.rand(3, generator=generator),
}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_come_from_copies_of_the_generators(name):
    torch.manual_seed(3)
    of_program = torch.Generator().manual_seed(5)
    states = torch.get_rng_state(), of_program.get_state()
    with torchnan.detect(action="log") as session:
        drawn = apart(lambda: (DRAWS[name](of_program), DRAWS[name](of_program)))
        assert torch.equal(torch.get_rng_state(), states[0])
        assert torch.equal(of_program.get_state(), states[1])
        expected = DRAWS[name](of_program), DRAWS[name](of_program)
    assert all(map(torch.equal, drawn, expected))
    assert session.stats()["internal_errors"] == 0


def test_the_copies_can_be_rewound():
    torch.manual_seed(3)

    def draw_twice():
        state = _C.private_random_state("cpu")
        first = torch.rand(3)
        _C.set_private_random_state("cpu", state)
        return first, torch.rand(3)

    with torchnan.detect():
        first, second = apart(draw_twice)
    assert torch.equal(first, second)


def test_nothing_that_the_program_has_set_on_the_thread_is_seen():
    packed, functions, dispatched, profiled = [], [], [], []

    class Functions(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            functions.append(function)
            return function(*args, **kwargs or {})

    class Dispatched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            dispatched.append(function)
            return function(*args, **kwargs or {})

    def pack(value):
        packed.append(value)
        return value

    def work():
        x = torch.ones(3, requires_grad=True)
        y = (x @ x).exp()
        (gradient,) = torch.autograd.grad(y, x)
        return y.dtype, torch.is_inference_mode_enabled(), gradient

    with torchnan.detect(), torch.autocast("cpu", torch.bfloat16), Functions(), Dispatched():
        with torch.autograd.graph.saved_tensors_hooks(pack, pack):
            sys.setprofile(lambda *event: profiled.append(event))
            try:
                seen = apart(work)
                events = [frame.f_code.co_name for frame, _, _ in profiled]
            finally:
                sys.setprofile(None)
            assert torch.is_autocast_enabled("cpu")
    assert seen[:2] == (torch.float32, False)
    assert (packed, functions, dispatched) == ([], [], [])
    assert "work" not in events


def test_a_backward_node_that_runs_is_not_the_node_of_what_runs_apart():
    sites = []

    class Inside(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            def work():
                with torch.enable_grad():
                    x = torch.zeros(1, requires_grad=True)
                    return torch.autograd.grad(x.sqrt().sum(), x)[0]

            sites.append(apart(work))
            return gradient

    with torchnan.detect(action="log") as session:
        Inside.apply(torch.ones(1, requires_grad=True)).sum().backward()
    assert sites[0].isinf().all()
    assert session.findings == []


def test_a_replay_inside_of_a_node_leaves_nothing_of_it():
    @torch.compile
    def rescale(module, grad_in, grad_out):
        return (grad_in[0] / grad_in[0].abs().max(),)  # 0 / 0

    layer = torch.nn.Linear(2, 2)
    torch.nn.init.zeros_(layer.weight)
    layer.register_full_backward_hook(rescale)
    with torchnan.detect(action="log") as session:
        layer(torch.ones(1, 2, requires_grad=True)).sum().backward()
        torch.log(torch.zeros(2) - 1)
    in_hook, later = session.findings
    assert (in_hook.op, in_hook.phase) == ("aten::div", "backward")
    assert (later.op, later.phase, later.node) == ("aten::log", "forward", None)


def test_a_thread_works_for_its_sessions_again_afterwards():
    with torchnan.detect(action="log") as session:
        apart(lambda: torch.log(-torch.ones(1)).item())
        assert session.findings == []
        torch.log(-torch.ones(1)).item()
    assert [finding.op for finding in session.findings] == ["aten::log"]


# -- steps


def _drawn_after(set_state):
    set_state()
    return torch.rand(3)


SETS = {
    "manual_seed": lambda state: torch.manual_seed(7),
    "the generator's own": lambda state: torch.default_generator.manual_seed(7),
    "set_rng_state": torch.set_rng_state,
    "seed": lambda state: torch.manual_seed(torch.seed() * 0 + 7),
}


@pytest.mark.parametrize("name", SETS)
def test_functions_for_random_states_act_on_the_copies(name):
    state = torch.Generator().manual_seed(7).get_state()
    torch.manual_seed(3)
    before, of_torch = torch.get_rng_state(), torch.default_generator
    apart_drawn, apart_state = step_apart(lambda: (_drawn_after(lambda: SETS[name](state)), torch.get_rng_state()))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.default_generator is torch.random.default_generator is of_torch
    expected = _drawn_after(lambda: torch.set_rng_state(state))
    assert torch.equal(apart_drawn, expected)
    assert torch.equal(apart_state, torch.get_rng_state())


def test_other_threads_set_and_draw_from_the_generators_of_the_program():
    torch.manual_seed(3)
    expected = torch.rand(2), torch.Generator().manual_seed(4).get_state()
    torch.manual_seed(3)
    seen = []

    def of_program():
        seen.append(torch.rand(2, generator=torch.random.default_generator))
        torch.manual_seed(4)

    def work():
        torch.manual_seed(5)
        thread = threading.Thread(target=of_program)
        thread.start()
        thread.join()
        return torch.get_rng_state()

    assert torch.equal(step_apart(work), torch.Generator().manual_seed(5).get_state())
    assert torch.equal(seen[0], expected[0])
    assert torch.equal(torch.get_rng_state(), expected[1])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_block_that_is_computed_again_in_the_backward_pass_draws_the_same_numbers(use_reentrant):
    block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    x = torch.randn(4, 8, requires_grad=True)

    def gradient():
        block.zero_grad()
        checkpoint(block, x, use_reentrant=use_reentrant).square().sum().backward()
        return block[0].weight.grad.clone()

    state = torch.get_rng_state()
    apart_gradient = step_apart(gradient)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(apart_gradient, gradient())


def test_generators_of_the_program_are_put_back_and_those_of_the_step_are_its_own():
    of_program = torch.Generator().manual_seed(5)
    state = of_program.get_state()

    def draw(seed):
        return torch.rand(2, generator=torch.Generator().manual_seed(seed))

    def work():
        first = torch.rand(2, generator=of_program)
        of_program.manual_seed(5)
        return first, torch.rand(2, generator=of_program), [draw(seed) for seed in (1, 2, 1)]

    first, again, drawn = step_apart(work)
    assert torch.equal(first, again)
    assert torch.equal(of_program.get_state(), state)
    assert all(map(torch.equal, drawn, [draw(seed) for seed in (1, 2, 1)]))


def test_a_step_computes_in_the_modes_of_the_program():
    packed = []

    def pack(value):
        packed.append(value)
        return value

    def work():
        x = torch.ones(3, 3, device="cpu", requires_grad=True)
        return (x @ x).dtype, torch.ones(2).device, torch.is_grad_enabled(), torch.is_autocast_cache_enabled()

    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False), torch.device("meta"):
        with torch.autograd.graph.saved_tensors_hooks(pack, pack), torch.no_grad():
            assert step_apart(work) == (torch.bfloat16, torch.device("meta"), False, False)
            assert step_apart(torch.ones(1, device="cpu").item) == 1
    assert packed == []
    assert step_apart(work) == (torch.float32, torch.device("cpu"), True, True)


def test_a_step_is_checked_as_the_program_is():
    """Its stack goes on to the functions that called it, and compiled regions in it are explained."""

    @torch.compile
    def region(x):
        return (x - 1).log().sum()

    def work():
        with torchnan.detect(action="log") as session:
            torch.log(-torch.ones(1)).item()
            region(torch.zeros(3)).item()
        return session

    findings = step_apart(work).findings
    assert [finding.op for finding in findings] == ["aten::log", "aten::log"]
    assert findings[1].compiled.replay == "traced"
    assert any(test_a_step_is_checked_as_the_program_is.__name__ in str(frame) for frame in findings[0].stack)


def test_what_a_region_in_a_step_draws_is_explained_with_the_numbers_of_the_step():
    """The explanation has copies of its own: the step goes on with its numbers."""

    @torch.compile
    def region(x):
        return (x * torch.rand(3) - 2).log()

    def work():
        torch.manual_seed(3)
        with torchnan.detect(action="log") as session:
            made = region(torch.ones(3))
            made.sum().item()
        return session.findings, torch.rand(3)

    findings, drawn = step_apart(work)
    torch.manual_seed(3)
    region(torch.ones(3))
    assert torch.equal(drawn, torch.rand(3))
    assert [(finding.op, finding.compiled.replay) for finding in findings] == [("aten::log", "traced")]


def test_a_step_warns_of_nothing_and_its_errors_come_through():
    def work():
        warnings.warn("once more", stacklevel=1)
        raise TimeLimit

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(TimeLimit):
            step_apart(work)
        warnings.warn("of the program", stacklevel=1)
    assert [str(warning.message) for warning in seen] == ["of the program"]
    assert not _C.is_apart()


class TimeLimit(Exception):
    pass


@pytest.fixture
def handler():
    def raise_limit(number, frame):
        raise TimeLimit

    before = signal.signal(signal.SIGUSR1, raise_limit)
    yield raise_limit
    signal.signal(signal.SIGUSR1, before)


def test_what_a_handler_raises_is_not_contained(handler):
    with torchnan.detect(action="log") as session:
        with pytest.raises(TimeLimit), contained("a test"):
            signal.raise_signal(signal.SIGUSR1)
        with contained("a test"):
            raise ValueError("of torchnan")
    assert session.stats()["internal_errors"] == 1


def test_what_a_handler_raised_is_found_behind_the_error_that_it_led_to(handler):
    with pytest.raises(TimeLimit), contained("a test"):
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TimeLimit as limit:
            raise RuntimeError("compilation failed") from limit


def test_an_error_that_the_program_handles_is_not_raised_again(handler):
    with torchnan.detect(action="log") as session:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TimeLimit:
            with contained("a test"):
                int("of torchnan")
    assert session.stats()["internal_errors"] == 1


def test_handlers_run_after_the_block_once_for_each_signal(handler):
    order = []
    counted = signal.signal(signal.SIGUSR2, lambda number, frame: order.append("counted"))
    try:
        with pytest.raises(TimeLimit):
            with signal_handlers.deferred():
                for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2):
                    signal.raise_signal(number)
                order.append("block")
            order.append("not reached")
    finally:
        signal.signal(signal.SIGUSR2, counted)
    assert order == ["block", "counted"]
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_system_calls_are_interrupted_as_the_program_wants_it(handler):
    """Python's own signal.signal() would make them fail with EINTR, which os.read() hides; the flags tell."""
    libc, action = ctypes.CDLL(None), (ctypes.c_ubyte * 256)()

    def flags():
        assert libc.sigaction(signal.SIGUSR1, None, action) == 0
        return bytes(action[:16] + action[136:140])  # handler, mask, flags of glibc

    signal.siginterrupt(signal.SIGUSR1, True)
    interrupting = flags()
    signal.siginterrupt(signal.SIGUSR1, False)
    restarting = flags()
    assert restarting != interrupting
    with signal_handlers.deferred():
        assert flags() == restarting
    assert flags() == restarting


def test_other_threads_defer_nothing(handler):
    kept = []

    def look():
        with signal_handlers.deferred():
            kept.append(signal.getsignal(signal.SIGUSR1) is handler)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert kept == [True]
