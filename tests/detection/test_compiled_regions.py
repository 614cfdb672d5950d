"""Inside torch.compile: the origin is that of the uncompiled program; the compiled one runs as without detection."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import inspect
import math
import sys
import threading
import types
import warnings
import weakref

import pytest
import torch
from torch import nn

import torchnan
from tests.support.compiled_issues import PROGRAMS
from tests.support.compiled_programs import CASES, CLEAN
from tests.support.compiled_ways import WAYS
from torchnan._load import _C
from torchnan.detection.compiled import explanations, torch_internals
from torchnan.detection.compiled.graph import has_collectives
from torchnan.detection.compiled.stack import Engine, Line, call_under


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


SLOW_TO_COMPILE = ("gpt2",)


def line_of(mark):
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def session_of(truth):
    """Returns the session of a run, whose first finding has the operation and the phase that are true of it."""
    with torchnan.detect(action="log") as session:
        truth.run()
    finding = session.first
    assert finding is not None
    assert (finding.origin, finding.phase) == ("op", truth.phase)
    assert finding.op in truth.ops
    assert session.stats()["internal_errors"] == 0
    return session


@pytest.mark.breadth(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.breadth(0)] * (name in SLOW_TO_COMPILE)) for name in CASES]
)
def test_the_origin_inside_a_compiled_region_is_named(name):
    truth = CASES[name]
    finding = session_of(truth).first
    assert truth.line is None or (finding.line, finding.file) == (truth.line, truth.run.__code__.co_filename)
    assert truth.module is None or finding.module == truth.module
    compiled = finding.compiled
    assert (compiled.replay, compiled.obstacle) == (truth.replay, None)
    assert truth.region is None or (compiled.region, compiled.file) == (truth.region, finding.file)
    assert truth.kernel in compiled.kernel


@pytest.mark.breadth(2)
@pytest.mark.parametrize("name", WAYS)
def test_the_origin_is_named_however_a_region_is_compiled(name):
    truth = WAYS[name]
    (finding,) = session_of(truth).findings
    assert finding.line == truth.line
    assert truth.module is None or finding.module == truth.module
    assert truth.node is None or finding.node == truth.node
    assert finding.compiled.replay == "traced"


@pytest.mark.breadth(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_origin_in_programs_of_public_reports_is_named(name):
    truth = PROGRAMS[name]
    finding = session_of(truth).first
    assert finding.line == truth.line
    assert finding.compiled.region == name


def test_a_value_that_only_a_hook_on_saved_tensors_makes_is_named_by_its_region():
    called = []

    def unpack(packed):
        called.append(packed)
        return packed.float()

    compiled = torch.compile(lambda w: torch.log(w * 1.0).sum())
    w = torch.tensor([1e-9, 0.5], requires_grad=True)
    with torchnan.detect(action="log") as session:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), unpack):
            y = compiled(w)
        y.backward()  # 1 / 0: the logarithm's input is 0 in float16
    (finding,) = session.findings
    assert (finding.origin, finding.phase) == ("compiled", "backward")
    obstacle = "its replay gave finite values, and calls no hook that packs or unpacks saved tensors"
    assert finding.compiled.obstacle == obstacle
    assert len(called) == 1  # by the program


def test_a_gradient_computed_from_a_buffer_that_the_forward_pass_has_spoilt_has_its_origin():
    """Nothing is near one code, 0 / 0. The generated backward pass computes the distance again, from this buffer."""

    class Codebook(nn.Module):
        def __init__(self):
            super().__init__()
            self.codes = nn.Buffer(torch.tensor([[0.0, 0.0], [1.0, 1.0], [50.0, 50.0]]))

        def forward(self, z):
            distance = (z[:, None] - self.codes[None]).pow(2).sum(-1)
            with torch.no_grad():
                used = nn.functional.one_hot(distance.argmin(1), 3).float()
                self.codes.copy_(used.t() @ z / used.sum(0)[:, None])  # DIVIDED
            return distance.min(1).values.mean()

    layer = nn.Linear(3, 2)
    model = torch.compile(nn.Sequential(layer, Codebook()))
    with torchnan.detect(action="log") as session:
        model(torch.rand(6, 3)).backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=False)
        torch.optim.SGD(layer.parameters(), 0.1).step()
    assert layer.weight.isnan().any()
    (finding,) = session.findings
    assert (finding.op, finding.line) == ("aten::div", line_of("DIVIDED"))


def test_each_thread_that_takes_part_is_followed():
    compiled = torch.compile(lambda x: torch.log(x).sum())
    compiled(torch.ones(4))
    found = []

    def work():
        with torchnan.detect(action="log") as session, torch.no_grad():
            compiled(torch.zeros(4)).item()
        found.extend(session.findings)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [finding.op for finding in found] == ["aten::log"] * 2


def test_an_input_of_a_region_that_is_not_followed_is_the_cause():
    @torch.compile
    def overwrite(x):
        x.mul_(2)
        return x.sum()

    with torchnan.detect(action="log", max_copied_bytes=8) as session, torch.no_grad():
        overwrite(torch.zeros(4).log() * 0).item()
    assert [finding.op for finding in session.findings] == ["aten::log"]


def test_doctor_reports_private_names_that_are_missing(monkeypatch):
    assert torch_internals.missing() == []
    monkeypatch.delattr(torch._inductor.compile_fx, "compile_fx_inner")
    assert torch_internals.missing() == ["torch._inductor.compile_fx.compile_fx_inner"]


@pytest.mark.breadth(1)
@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_compiled_program_is_silent(name):
    with torchnan.detect(action="log") as session:
        CLEAN[name]()
    assert session.findings == []
    assert session.stats()["internal_errors"] == 0


def logarithm(x, w):
    return torch.log(x * w).sum()


def test_an_error_is_raised_where_the_value_does_harm():
    compiled = torch.compile(logarithm)
    w = torch.zeros(4, requires_grad=True)
    with pytest.raises(torchnan.NonFiniteError) as raised, torchnan.detect():
        compiled(torch.ones(4), w).backward()
    assert raised.value.finding.op == "aten::log"
    assert raised.value.finding.harm.kind == "backward"


def test_at_the_origin_an_error_is_raised_by_the_call_of_the_region():
    compiled = torch.compile(logarithm)
    with pytest.raises(torchnan.NonFiniteError) as raised, torchnan.detect(when="origin"):
        compiled(torch.ones(4), torch.zeros(4))
    assert (raised.value.finding.op, raised.value.finding.harm.kind) == ("aten::log", "origin")


def test_an_input_that_was_bad_before_keeps_its_origin():
    compiled = torch.compile(lambda x: (x * 2).relu())
    with torchnan.detect(action="log") as session:
        bad = torch.zeros(4).log() * 0  # HERE
        compiled(bad).sum().item()
    assert [finding.op for finding in session.findings] == ["aten::log"]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_mask_that_a_region_has_used_up_is_silent(is_kept):
    """As without compilation: log(0) that a softmax treats as a mask has done no harm, still referenced or not."""
    with torchnan.detect(action="log") as watch:
        mask = torch.tril(torch.ones(4, 4)).log()
        attend = torch.compile(lambda x: (x @ x.t() + mask).softmax(-1) @ x)
        assert attend(torch.randn(4, 3)).isfinite().all()
        if not is_kept:
            del mask, attend
    assert watch.findings == []


@pytest.mark.parametrize(
    "entry", [Line("train.py", 3, "Net.forward"), nn.Linear(2, 2), Engine()], ids=["line", "module", "engine"]
)
def test_every_replay_of_a_line_has_the_same_call_site(entry):
    """As many as replays would fill the table of call sites, and findings would have no line from then on."""
    stack = [Line("train.py", 1, "<module>"), entry]
    for _ in range(100):  # CPython specializes a call after some runs, and then makes it at another instruction
        call_under(stack, _C.current_stack)
    sites = {call_under(stack, _C.current_stack) for _ in range(3)}
    assert len(sites) == 1
    assert 0 not in sites


@pytest.mark.parametrize("is_compiled", [True, False])
def test_an_operation_of_the_forward_pass_is_reported_once(is_compiled):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(x):
        hidden = model[0](x)
        return model[1](hidden + (hidden.detach() * 0 - 1).log()).mean()  # log

    run = torch.compile(loss_of) if is_compiled else loss_of
    with torchnan.detect(action="log") as session:
        run(torch.randn(3, 4)).backward()
        optimizer.step()
    (finding,) = session.findings
    assert (finding.op, finding.line) == ("aten::log", line_of("log"))
    assert finding.harm.kind == "backward"


@pytest.mark.parametrize("is_good", [torch.isfinite, lambda g: g.norm() < 10])
def test_a_gradient_that_a_region_compares_is_no_harm(is_good):
    w = torch.zeros(3, requires_grad=True)

    @torch.compile
    def step(w, g):
        with torch.no_grad():
            w.add_(torch.where(is_good(g), g, 0.0), alpha=-0.1)

    with torchnan.detect(action="log") as session:
        w.square().sum().sqrt().backward()
        step(w, w.grad)
    assert w.grad.isnan().all()
    assert session.findings == []


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_gradient_of_compiled_autograd_that_is_compared_is_no_harm(is_compiled):
    w = torch.zeros(3, requires_grad=True)

    def step(w, g):
        with torch.no_grad():
            w.add_(torch.where(torch.isfinite(g), g, 0.0), alpha=-0.1)

    with torchnan.detect(action="log") as session:
        with torch._dynamo.compiled_autograd._enable(torch.compile):
            w.square().sum().sqrt().backward()
        (torch.compile(step) if is_compiled else step)(w, w.grad)
    assert w.grad.isnan().all()
    assert session.findings == []


def recycle(memory):
    """Fills memory with NaN by no operation, as if it were handed out again; a replay has other memory."""
    if not _C.is_replaying():
        ctypes.memset(memory.data_ptr(), 0xFF, memory.nbytes)


@torch.library.custom_op("torchnan_tests::recycled", mutates_args=())
def recycled(memory: torch.Tensor) -> torch.Tensor:
    recycle(memory)
    return torch.zeros(())


recycled.register_fake(lambda memory: torch.empty(()))


@torch.library.custom_op("torchnan_tests::normalize_", mutates_args=("x",))
def normalize_(x: torch.Tensor) -> None:
    x.div_(x.std() * 0)


@normalize_.register_fake
def _(x):
    return None


def test_an_operator_that_overwrites_its_argument_is_named_as_the_kernel():
    def loss(x):
        y = x * 2
        torch.ops.torchnan_tests.normalize_(y)
        return (y @ y).sum()

    with torchnan.detect(action="log") as session:
        torch.compile(loss)(torch.randn(4, 4)).item()
    assert session.first.op == "torchnan_tests::normalize_"
    assert session.first.compiled.kernel == "torch.ops.torchnan_tests.normalize_.default"


def test_memory_that_a_region_returns_unwritten_is_the_origin_of_values_read_there():
    @torch.compile
    def allocate(x):
        return x.new_empty(4, 4)  # ALLOCATED

    @torch.compile
    def read(cache, x):
        cache[1:] = x
        return (cache @ x).sum()

    with torchnan.detect(action="log") as session, torch.no_grad():
        cache = allocate(torch.ones(4))
        recycle(cache)
        read(cache, torch.ones(4)).item()
    finding = session.first
    assert (finding.origin, finding.op, finding.file) == ("uninit", "aten::new_empty", __file__)
    assert finding.line == line_of("ALLOCATED")
    assert finding.compiled.region == "read"


def test_memory_that_a_region_reads_unwritten_is_the_origin():
    @torch.compile
    def loss(x):
        memory = torch.empty(4, 4)  # READ
        memory[1:] = x
        return (memory @ x).sum() + recycled(memory)

    with torchnan.detect(action="log") as session, torch.no_grad():
        value = loss(torch.ones(4)).item()
    assert math.isnan(value)
    finding = session.first
    assert (finding.origin, finding.op, finding.line) == ("uninit", "aten::empty", line_of("READ"))


def test_memory_that_a_region_writes_in_part_and_returns_is_the_origin():
    @torch.compile
    def allocate(x):
        memory = torch.empty(4, 4)  # IN PART
        memory[1:] = x
        return memory, recycled(memory)

    with torchnan.detect(action="log") as session, torch.no_grad():
        memory, _ = allocate(torch.ones(4))
        (memory @ torch.ones(4)).sum().item()
    finding = session.first
    assert (finding.origin, finding.op, finding.line) == ("uninit", "aten::empty", line_of("IN PART"))


def test_memory_that_a_region_returns_unwritten_and_user_code_writes_is_silent():
    allocate = torch.compile(lambda x: torch.empty_like(x))
    with torchnan.detect(action="log") as session, torch.no_grad():
        memory = allocate(torch.ones(4))
        recycle(memory)
        memory.copy_(torch.ones(4)).sum().item()
    assert session.findings == []


def test_a_region_that_was_compiled_before_detection_is_followed():
    """Dynamo's guards on tensors hold their dispatch keys: under detection it compiles the region anew."""
    compiled = torch.compile(logarithm)
    compiled(torch.ones(4), torch.ones(4, requires_grad=True))
    with torchnan.detect(action="log") as session:
        compiled(torch.ones(4), torch.zeros(4, requires_grad=True)).backward()
    assert [(finding.origin, finding.op) for finding in session.findings] == [("op", "aten::log")]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x).square().mean()


def trained(net, batches):
    """Trains a compiled net; returns its final state: weights, buffers, generator, graphs and recompilations."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    compiled = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        compiled(batch).backward()
        optimizer.step()
    counters = {name: dict(torch._dynamo.utils.counters[name]) for name in ("stats", "graph_break", "frames")}
    return net.state_dict(), torch.get_rng_state(), counters


def test_bits_generator_and_graphs_are_as_without_detection():
    batches = [torch.randn(6, 8) for _ in range(4)]
    net = Net()
    plain = trained(copy.deepcopy(net), batches)
    with torchnan.detect() as session:
        checked = trained(copy.deepcopy(net), batches)
    assert session.findings == []
    assert all(torch.equal(a, b) for a, b in zip(plain[0].values(), checked[0].values(), strict=True))
    assert torch.equal(plain[1], checked[1])
    assert plain[2] == checked[2]


@pytest.mark.parametrize("start", [1.0, 0.0])
def test_dynamo_does_not_trace_the_checks_of_a_backward_pass(start):
    def breaks(scope):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        w = torch.full((4,), start, requires_grad=True)
        loss = torch.compile(lambda w: (w * 2).square().sum().sqrt())

        def step(w):
            loss(w).backward()
            return w + 1

        with scope:
            torch.compile(step)(w)
        return sorted(torch._dynamo.utils.counters["graph_break"])

    watch = torchnan.detect(action="log")
    assert breaks(watch) == breaks(contextlib.nullcontext())
    assert watch.stats()["internal_errors"] == 0


def test_inputs_are_held_no_longer_than_the_backward_pass():
    compiled = torch.compile(lambda x, w: (x * w).sin().sum())
    w = torch.randn(64, requires_grad=True)
    with torchnan.detect():
        x = torch.randn(64)
        held = weakref.ref(x)
        loss = compiled(x, w)
        loss.backward()
        del x
        gc.collect()
        assert held() is None
        assert loss.isfinite()


def test_a_compiled_optimizer_is_freed_with_its_state_although_its_step_was_reported():
    with torchnan.detect(action="log") as session:
        weight = torch.zeros(4, requires_grad=True)
        optimizer = torch.optim.Adagrad([weight], eps=0.0)
        held = weakref.ref(optimizer.state[weight]["sum"])
        step = torch.compile(optimizer.step)
        (weight * 0).sum().backward()
        step()
        assert session.first.phase == "optimizer"
        del step, optimizer, weight
        gc.collect()
        assert held() is None


def overwrite(x, w):
    x.sub_(1).log_()
    return (x * w).sum()


def test_an_argument_that_is_too_large_to_copy_is_reported_at_the_border():
    with torchnan.detect(action="log", max_copied_bytes=15) as session:
        torch.compile(overwrite)(torch.ones(4), torch.ones(4, requires_grad=True)).backward()
    (finding,) = session.findings
    assert (finding.origin, finding.output, finding.file) == ("compiled", 0, __file__)
    assert (finding.compiled.region, finding.compiled.replay) == ("overwrite", "none")
    assert finding.compiled.obstacle == "it overwrites 16 bytes of arguments, and max_copied_bytes=15"
    assert "something inside a compiled region, first seen in output 0" in str(finding)
    assert "compiled  overwrite (" in str(finding)
    assert torchnan.Finding.from_json(finding.to_json()) == finding


def test_an_argument_of_the_largest_size_is_copied_and_its_region_replayed():
    with torchnan.detect(action="log", max_copied_bytes=16) as session:
        torch.compile(overwrite)(torch.ones(4), torch.ones(4, requires_grad=True)).backward()
    assert (session.first.op, session.first.compiled.replay) == ("aten::log_", "traced")


class Normalized(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm, self.calls = norm, nn.Buffer(torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls.add_(1)
        return torch.log(self.norm(x).mean() * 0 - 1)


def test_statistics_that_a_batch_norm_only_updates_are_not_copied():
    models = [Normalized(nn.BatchNorm1d(3)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(5, 3)
    torch.compile(models[0])(x).backward()
    with torchnan.detect(action="log", max_copied_bytes=0) as session:
        torch.compile(models[1])(x).backward()
    (finding,) = session.findings
    assert (finding.op, finding.compiled.replay) == ("aten::log", "traced")
    state, state_without = (model.state_dict() for model in reversed(models))
    assert all(torch.equal(state[name], state_without[name]) for name in state)


class ReadStatistics(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x) * self.running_mean.sum()


class ReadCounter(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x) / self.num_batches_tracked


@pytest.mark.parametrize("norm", [ReadStatistics(3), ReadCounter(3)], ids=lambda norm: type(norm).__name__)
def test_statistics_that_a_result_depends_on_are_copied(norm):
    with torchnan.detect(action="log", max_copied_bytes=0) as session:
        torch.compile(Normalized(norm))(torch.randn(5, 3)).backward()
    assert session.first.compiled.obstacle.startswith("it overwrites ")


def test_statistics_that_were_bad_before_keep_their_origin():
    model = Normalized(nn.BatchNorm1d(3))
    with torchnan.detect(action="log") as session:
        model.norm.running_mean.copy_(torch.log(-torch.ones(3)))
        torch.compile(lambda x: model.norm(x).sum())(torch.randn(5, 3)).item()
        model.norm.running_mean.sum().item()
    (finding,) = session.findings
    assert (finding.op, finding.compiled) == ("aten::log", None)


def overwritten_for_a_gradient():
    """Inductor's code does not write what gradients are needed of: it is copied back around it."""

    def scale(x, w):
        x.mul_(w)
        return torch.log(x).sum()

    x = torch.ones(4)
    torch.compile(scale)(x, torch.full((4,), -2.0, requires_grad=True)).item()
    return (x,)


def accumulated_in_compiled_autograd():
    a, b = torch.zeros(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    a.grad, b.grad = torch.ones(4), torch.ones(4)
    with torch._dynamo.compiled_autograd._enable(torch.compile):
        (torch.sqrt(a).sum() + b.sum()).backward()
    return a.grad, b.grad


@pytest.mark.parametrize(
    ("program", "op"), [(overwritten_for_a_gradient, "log"), (accumulated_in_compiled_autograd, "div")]
)
def test_a_replay_writes_nothing_that_the_program_has(program, op):
    plain = program()
    torch._dynamo.reset()
    with torchnan.detect(action="log") as session:
        checked = program()
    assert all(map(torch.equal, plain, checked))
    assert [(finding.op, finding.compiled.replay) for finding in session.findings] == [(f"aten::{op}", "traced")]


def test_arguments_that_share_memory_and_are_overwritten_are_no_input_of_a_replay():
    @torch.compile
    def overwrite(x, y, w):
        x.sub_(1)
        return (torch.log(x) * y * w).sum()

    base = torch.ones(4)
    with torchnan.detect(action="log") as session:
        overwrite(base[:3], base[1:], torch.ones(3, requires_grad=True)).item()
    assert base.tolist() == [0, 0, 0, 1]
    assert session.first.compiled.obstacle == "it is not known which of its arguments it overwrites"


def test_an_argument_that_was_bad_before_it_was_overwritten_keeps_its_origin():
    @torch.compile
    def clear_diagonal(x):
        return x.fill_diagonal_(0).sum()

    with torchnan.detect(action="log") as session:
        clear_diagonal(torch.zeros(2, 2, requires_grad=True).log()).item()
    assert [finding.op for finding in session.findings] == ["aten::log"]


@pytest.mark.skipif(torch.__version__ >= (2, 14), reason="Inductor of PyTorch 2.14 no longer takes w * 0 for 0")
def test_a_parameter_is_named_that_is_the_cause_in_the_graph_as_lowered_alone():
    """Inductor takes ``w * 0`` for 0: infinite weights stay so, and become NaN and then 0 in the graph as traced."""
    model = nn.ParameterDict({"w": torch.tensor([1.0, math.inf])})

    @torch.compile
    def loss():
        y = model.w * 0 + model.w
        return torch.where(y.isnan(), 0.0, y).sum()

    with torchnan.detect(action="log") as session:
        loss().backward()
    (finding,) = session.findings
    assert (finding.origin, finding.name, finding.compiled.replay) == ("parameter", "w", "lowered")


def test_intermediate_values_of_a_replay_are_not_reported_as_unused():
    """The replay of a backward pass runs the forward pass, too: its values are gone with it."""

    @torch.compile
    def scores(w, x):
        return torch.log(x * 1), torch.sqrt(w * 2).sum()

    w = torch.tensor([0.0, 1.0], requires_grad=True)
    with torchnan.detect(action="log") as session:
        kept, loss = scores(w, torch.zeros(3))
        loss.backward()
        torch.optim.SGD([w], lr=0.1).step()
    assert kept.isinf().all()
    assert [(finding.op, finding.harm.kind) for finding in session.findings] == [
        ("aten::div", "gradient"),
        ("aten::log", "alive"),
    ]


def test_an_unused_result_of_a_region_is_reported_as_unused():
    compiled = torch.compile(lambda x: (x + 1, torch.log(x)))
    with torchnan.detect(action="log") as session, torch.no_grad():
        compiled(torch.zeros(4))[0].sum().item()
    assert [(finding.op, finding.harm.kind) for finding in session.findings] == [("aten::log", "unused")]


def test_computations_and_output_of_inductor_while_it_compiles_are_not_those_of_the_program():
    """The frozen weight is NaN, and printed with the graph; the program gets what relu makes of it in fused code, 0."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(self.conv(x)).relu().sum()

    model = Net().eval()
    model.norm.running_var[1] = -1.0
    with torch._inductor.config.patch(freezing=True), torch.no_grad(), torchnan.detect():
        assert torch.compile(model)(torch.randn(2, 2, 5, 5)).isfinite()


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="PyTorch 2.12 cannot compile them: docs/limits.md")
def test_weights_that_were_made_in_inference_mode_are_no_obstacle():
    with torch.inference_mode():
        layer = nn.Linear(4, 1)

    @torch.compile
    def score(x):
        with torch.inference_mode():
            return torch.log(torch.relu(layer(x) - 9))

    with torchnan.detect(action="log") as session:
        score(torch.zeros(4)).item()
    assert [finding.op for finding in session.findings] == ["aten::log"]


def test_the_collectives_of_a_graph_are_found():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "sum", "0")))
    assert has_collectives(torch.fx.GraphModule({}, graph))
    assert not has_collectives(torch.fx.symbolic_trace(lambda x: x * 2))


def test_generated_code_without_a_hash_is_a_line_of_the_stack():
    def take_logarithm(x):
        return torch.log(x)

    code = take_logarithm.__code__
    generated = types.FunctionType(code.replace(co_consts=(*code.co_consts, {})), globals())
    with torchnan.detect(action="log") as session:
        generated(torch.tensor(-1.0)).item()
        assert session.stats()["internal_errors"] == 0
    assert (session.first.file, session.first.line) == (__file__, code.co_firstlineno + 1)


def test_a_function_that_dynamo_resumes_is_one_line_of_the_stack():
    def loss(x):
        y = x * 2
        print(end="")  # the graph breaks here
        z = y + 1
        print(end="")
        return torch.log(z * 0).sum()

    with torchnan.detect(action="log") as session, torch.no_grad():
        torch.compile(loss)(torch.ones(4)).item()
    functions = [frame.function for frame in session.first.stack]
    test = "test_a_function_that_dynamo_resumes_is_one_line_of_the_stack"
    full_names = sys.version_info >= (3, 11)
    assert functions[:2] == [f"{test}.<locals>.loss" if full_names else "loss", test]


def beside_a_mask(x, mask):
    return (x.std(-1) * 2)[0], x.masked_fill(mask, -math.inf)


def under_a_mask(x, mask):
    return (x.std(-1, keepdim=True) * torch.ones_like(x)).masked_fill(mask, -math.inf)[0, 0], x


def of_the_kind_of_a_mask(x, mask):
    return (-x.std(-1, keepdim=True) * torch.ones_like(x)).masked_fill(mask, -math.inf)[0, 0], x


def among_the_elements_of_a_mask(x, mask):
    return (-x.std(-1, keepdim=True) * torch.ones_like(x)).masked_fill(mask, -math.inf)[0]


@pytest.mark.parametrize("function", [beside_a_mask, under_a_mask, of_the_kind_of_a_mask, among_the_elements_of_a_mask])
def test_a_mask_does_not_explain_a_value_that_only_generated_code_makes(function):
    mask = torch.tensor([False, False, True])
    with torchnan.detect(action="log") as session:
        held = torch.compile(function)(torch.tensor([[1e20, -2e20, 3e20]]), mask)
        held[0].item()
    assert [(finding.op, finding.kind, finding.compiled.replay) for finding in session.findings] == [
        ("aten::var", "inf", "lowered")
    ]
    del held


def test_a_value_that_only_generated_code_makes_is_the_cause_of_what_follows():
    def difference(x, mask):
        s, c = torch.sin(x), torch.cos(x)
        large = torch.exp((s * s + c * c - 1.0) * 6e8)  # the sum of squares rounds otherwise in generated code
        return (large - large * 1).masked_fill(mask, -math.inf)

    x = torch.arange(4_000_000) * 2.5e-4
    with torchnan.detect(action="log") as session:
        held = torch.compile(difference)(x, x < 1)
        held[x >= 1].sum().item()
    assert [(finding.op, finding.kind, finding.compiled.replay) for finding in session.findings] == [
        ("aten::exp", "inf", "fused")
    ]
    del held


def std_beside_a_nan(x, t):
    return t * 2, x.std()


@pytest.mark.parametrize("is_read", [False, True])
def test_a_nan_that_is_passed_through_does_not_explain_a_value_that_only_generated_code_makes(is_read):
    with torchnan.detect(action="log") as session:
        t = torch.tensor([1.0, math.nan])
        if is_read:
            t.sum().item()
        doubled, spread = torch.compile(std_beside_a_nan)(torch.tensor([1e20, -1e20, 3e20]), t)
        torch.nan_to_num(doubled)
        spread.item()
        del doubled, t
    assert [one.op for one in session.findings] == ["aten::lift_fresh"] * is_read + ["aten::var"]


class Spread(nn.Module):
    def forward(self, x):
        return x.std()


class Spreads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Spread(), Spread()

    def forward(self, x):
        return self.a(x), self.b(x.flip(0) * 2)


def test_of_two_values_that_only_generated_code_makes_the_one_that_is_read_is_named():
    with torchnan.detect(action="log") as session:
        first, second = torch.compile(Spreads())(torch.tensor([1e20, -1e20, 3e20]))
        del first
        second.item()
    assert [(one.op, one.module) for one in session.findings] == [("aten::var", "b")]


def draws_in_one_branch(x, noisy):
    y = torch.cond(noisy, lambda x: x + torch.randn(3), lambda x: x.clone(), (x,))
    return torch.log(y * 0), y


def test_a_replay_that_draws_in_a_branch_leaves_the_generator_as_it_was():
    def drawn():
        torch._dynamo.reset()
        torch.manual_seed(0)
        run = torch.compile(draws_in_one_branch)
        numbers = []
        for call in range(4):
            log, y = run(torch.ones(3), torch.tensor(call > 0))
            log.sum().item()
            numbers += [y, torch.rand(2)]
        return torch.cat(numbers)

    plain = drawn()
    with torchnan.detect(action="log") as session:
        watched = drawn()
    assert torch.equal(plain, watched)
    assert [one.op for one in session.findings] == ["aten::log"]


@pytest.mark.parametrize("action", ["always", "error"])
def test_a_replay_gives_no_warning(action):
    """Eager operations warn where generated code does not."""
    run = torch.compile(lambda x: x.var(0).sum())
    before = list(warnings.filters)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore")
        run(torch.ones(1, 1))
        warnings.simplefilter(action)
        with torchnan.detect(action="log") as session:
            run(torch.ones(1, 1)).item()
    assert [(one.op, one.compiled.replay) for one in session.findings] == [("aten::var", "traced")]
    assert [str(one.message) for one in seen] == []
    assert warnings.filters == before


def test_gradients_of_a_region_that_is_not_replayed_are_reported_once():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaled = torch.compile(lambda x, scale: net(x.sign()) * scale)
    with torchnan.detect(action="log") as session:
        x = torch.ones(4, 3)
        y = scaled(x, torch.full((3,), 1e20))
        x.zero_()
        y.backward(torch.full_like(y, 1e20))
        optimizer.step()
    (finding,) = session.findings
    assert (finding.op, finding.harm.kind) == ("inductor::compiled_region", "gradient")
    assert finding.compiled.obstacle.startswith("its inputs were overwritten before its backward pass")


def test_a_mask_is_not_the_cause_of_a_gradient():
    def values(x, w, mask, state):
        return (x * w).masked_fill(mask, -math.inf), (x * w).square().sum(-1).sqrt() + state.sum()

    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.1)
    state = torch.zeros(3)
    with torchnan.detect(action="log") as session:
        scores, norms = torch.compile(values)(torch.zeros(1, 3), w, torch.tensor([False, True, False]), state)
        loss = torch.softmax(scores, -1).square().sum() + norms.mean()
        state.add_(1.0)
        loss.backward()
        optimizer.step()
    (finding,) = session.findings
    assert (finding.origin, finding.harm.kind) == ("compiled", "gradient")
    assert finding.compiled.obstacle == "its inputs were overwritten before its backward pass"


def test_a_parameter_has_the_name_in_its_model_and_not_in_a_graph():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchnan.detect(action="log") as session:
        model(torch.full((2, 4), 3e38)).sum().backward()
        torch.compile(optimizer.step)()
    assert [(finding.harm.kind, finding.harm.name) for finding in session.findings] == [("gradient", "weight")]


def test_weights_of_a_compiled_optimizer_need_not_be_parameters():
    def train():
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.Adadelta([w], lr=torch.tensor(0.1), eps=0.0, foreach=True)
        step = torch.compile(optimizer.step)
        (w * torch.tensor([1.0, 0.0, 1.0])).sum().backward()
        step()

    with torchnan.detect(action="log") as session:
        train()
    assert [(finding.phase, finding.harm.kind) for finding in session.findings] == [("optimizer", "parameter")]


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)


@torch.no_grad()
def log_without_gradients(x):
    return torch.log(x)


@pytest.mark.parametrize(
    ("program", "region"),
    [(nn.Sequential(nn.ReLU(), Log()), "Sequential.forward"), (log_without_gradients, "log_without_gradients")],
    ids=["module of PyTorch", "decorated function"],
)
def test_a_region_has_the_name_of_the_compiled_function_and_not_of_a_wrapper(program, region):
    with torchnan.detect(action="log") as session:
        torch.compile(program)(torch.zeros(4)).sum().item()
    assert session.first.compiled.region == region


def exported():
    return torch.export.export(Log(), (torch.ones(4),)).module()


def traced_by_fx():
    return torch.fx.symbolic_trace(Log())


def made_by_hand():
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.log, (graph.placeholder("x"),)))
    return torch.fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    ("module", "file", "offset"),
    [(exported, __file__, 1), (traced_by_fx, __file__, 0), (made_by_hand, None, None)],
    ids=["exported", "traced by torch.fx", "made by hand"],
)
def test_a_compiled_graph_module_is_named_and_is_no_backward_pass(module, file, offset):
    with torchnan.detect(action="log") as session, torch.no_grad():
        torch.compile(module())(torch.zeros(4)).sum().item()
    (finding,) = session.findings
    line = 0 if offset is None else inspect.getsourcelines(Log.forward)[1] + offset
    assert (finding.op, finding.phase, finding.compiled.replay) == ("aten::log", "forward", "traced")
    compiled = finding.compiled
    assert (compiled.region, compiled.file, compiled.line) == ("forward of a GraphModule", file, line)
    assert session.stats()["internal_errors"] == 0


class Length(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = w

    def forward(self, x):
        return (x * self.w).square().sum(-1, keepdim=True).sqrt() + x


def test_modules_that_share_their_weights_are_not_mistaken_for_each_other():
    """The backward pass of a region does not show which of them was its argument."""
    w = nn.Parameter(torch.ones(3))
    layers = nn.ModuleList(Length(w) for _ in range(3))
    run = torch.compile(lambda layer, x: layer(x))
    with torchnan.detect(action="log") as session:
        x = torch.ones(2, 3)
        for i, layer in enumerate(layers):
            x = run(layer, x * torch.tensor([[1.0], [0.0 if i == 2 else 1.0]]))
        x.sum().backward()
    assert [(one.op, one.node, one.module) for one in session.findings] == [("aten::div", "SqrtBackward0", None)]


def test_regions_are_replayed_again_in_another_session():
    compiled = torch.compile(lambda x: torch.log(x).sum())
    for _ in range(explanations.REPLAYS_OF_ONE_CAUSE + 2):
        with torchnan.detect(action="log") as session, torch.no_grad():
            compiled(torch.zeros(4)).item()
        assert [finding.op for finding in session.findings] == ["aten::log"]


def test_without_detection_inductor_is_as_it_was():
    original = torch._TorchCompileInductorWrapper.__call__
    with torchnan.detect():
        assert torch._TorchCompileInductorWrapper.__call__ is not original
    assert torch._TorchCompileInductorWrapper.__call__ is original
