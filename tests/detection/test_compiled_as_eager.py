"""Programs with compiled regions are reported as the same programs without: the same origins, modules, steps, harm."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

import torchnan
from torchnan.detection.compiled import explanations

INF = float("inf")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def facts(finding):
    """The fields of a finding that are the same in a compiled program."""
    stack = [frame for frame in finding.stack if frame.file == __file__]  # not what runs the tests
    inner = finding.backward_stack
    where = (finding.phase, finding.op, finding.node, finding.module, finding.name, stack, inner, finding.step)
    harm = (finding.harm.kind, finding.harm.name, finding.harm.line)
    return (finding.level, finding.kind, finding.origin, *where, *harm)


def findings_of(program, compiler, seed=0):
    torch.manual_seed(seed)
    with torchnan.detect(action="log") as session:
        program(compiler)
    assert session.stats()["internal_errors"] == 0
    return session.findings


def both(program):
    """Returns the findings of a program without and with a compiler, called at the same line."""
    eager, compiled = (findings_of(program, compiler) for compiler in (lambda function: function, torch.compile))
    return eager, compiled


def assert_as_eager(program, expected=None):
    """Compares the findings of a program that gets a compiler as its argument; returns those of the compiled one."""
    eager, compiled = both(program)
    assert [facts(finding) for finding in compiled] == [facts(finding) for finding in eager]
    assert expected is None or len(eager) == expected
    return compiled


# -- what PyTorch computes while it compiles


def lowest(x):
    return torch.minimum(x, torch.tensor(1.0) / 0).sum()


def masked(x):
    return torch.where(x > 0, x, torch.tensor(0.0).log()).max()


def scaled(x):
    zero = torch.tensor(0.0)
    return (x * (zero / zero).nan_to_num(1.0)).sum()


@pytest.mark.parametrize("function", [lowest, masked, scaled])
@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
def test_constants_that_a_tracer_computes_are_not_reported(function, backend):
    compiled = torch.compile(function, backend=backend)
    with torchnan.detect() as session:
        compiled(torch.ones(3))
        compiled(torch.ones(4))  # compiled again
    assert session.findings == []


class Scaled(nn.Module):
    def forward(self, x):
        return scaled(x)


@pytest.mark.parametrize("strict", [True, False])
def test_constants_that_an_export_computes_are_not_reported(strict):
    with torchnan.detect() as session:
        exported = torch.export.export(Scaled(), (torch.ones(3),), strict=strict)
        exported.run_decompositions()
    assert session.findings == []


def test_constants_of_a_backward_pass_are_not_reported():
    class Bounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return torch.minimum(gradient, torch.tensor(1.0) / 0)

    x = torch.ones(3, requires_grad=True)
    with torchnan.detect() as session:
        torch.compile(Bounded.apply)(x).sum().backward()
    assert session.findings == []


def test_calls_after_a_compilation_are_checked():
    with torchnan.detect(action="log") as session:
        torch.compile(lowest, backend="eager")(torch.ones(3))
        torch.log(torch.tensor(-1.0)).item()
    assert [finding.op for finding in session.findings] == ["aten::log"]


# -- the cause of this call


def two_causes(change):
    """A region that overflows in one line for some steps, and from then on in another."""

    def program(compiler):
        def loss_of(x, y, w):
            a = (x * w).exp()
            b = torch.sqrt(y * w)
            return a.mean() + b.mean()

        loss_of = compiler(loss_of)
        w = torch.ones(4, requires_grad=True)
        optimizer = torch.optim.SGD([w], 1e-3)
        for i in range(change + 3):
            x, y = torch.full((4,), -1.0), torch.ones(4)
            if i < change:
                x[0] = 90.0
            else:
                y[0] = 3.4e38
                w.data[0] = 2.0
            loss = loss_of(x, y, w)
            if torch.isfinite(loss) or i >= change:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            else:
                optimizer.step()

    return program


@pytest.mark.parametrize("change", [1, 4, 8])
def test_a_later_cause_is_not_taken_for_an_earlier_one(change):
    assert_as_eager(two_causes(change))


def alternating(compiler):
    def loss_of(x, y):
        return (torch.log(x) + torch.sqrt(y)).sum()

    loss_of = compiler(loss_of)
    w = torch.ones(3, requires_grad=True)
    for i in range(12):
        x, y = torch.ones(3), torch.ones(3)
        (x if i % 2 else y).neg_()
        loss_of(x * w, y * w).backward()


def test_causes_that_take_turns_are_all_found():
    assert_as_eager(alternating)


def in_the_backward_pass(compiler):
    def loss_of(x, y):
        return (x.sqrt() + y.norm()).sum()

    loss_of = compiler(loss_of)
    for i in range(10):
        x = torch.full((3,), float(i >= 5), requires_grad=True)
        y = torch.full((3,), float(i < 5), requires_grad=True)
        loss_of(x, y).backward()
        torch.optim.SGD([x, y], 0.1).step()


def test_causes_of_gradients_are_those_of_this_pass():
    assert_as_eager(in_the_backward_pass)


def given_and_made(compiler):
    """Two operations make the input in turn, and the region passes it on."""
    double = compiler(lambda x: x * 2)
    for i in range(10):
        x = torch.full((3,), -1.0)
        y = torch.log(x) if i < 5 else torch.sqrt(x)
        double(y).sum().item()


def test_a_value_that_a_region_passes_on_has_the_cause_of_this_call():
    assert_as_eager(given_and_made, 2)


def late_harm(compiler):
    overflow = compiler(lambda x: torch.exp(x))
    w = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.1)
    for i in range(8):
        made = overflow(torch.full((3,), 100.0))
        if i == 6:
            made.sum().item()
        w.sum().backward()
        optimizer.step()


def test_a_value_that_does_harm_late_has_the_step_of_the_harm():
    eager, compiled = both(late_harm)
    assert [facts(finding) for finding in compiled] == [facts(finding) for finding in eager]
    finding = next(finding for finding in compiled if finding.level == "error")
    assert (finding.hint, finding.inputs) == (eager[0].hint, eager[0].inputs)


def repaired_then_harmful(compiler, repaired=4):
    """The same operation makes values for one cause, which are repaired, and then for another one."""
    divide = compiler(lambda x, y: x / y)
    for y in [torch.zeros(3)] * repaired + [torch.full((3,), 1e-42)]:
        made = divide(torch.ones(3), y)
        if y[0] == 0:
            made = torch.where(torch.isfinite(made), made, 0)
        made.sum().item()


def test_a_cause_that_was_not_reported_before_has_the_numbers_of_its_call():
    (eager,), (compiled,) = both(repaired_then_harmful)
    assert "1.00053e-42" in compiled.hint
    numbers = [(one.hint, one.inputs, one.posinf, one.first_index) for one in (eager, compiled)]
    assert numbers[0] == numbers[1]


def test_a_call_that_was_not_replayed_says_that_it_has_no_numbers(monkeypatch):
    monkeypatch.setattr(explanations, "REPLAYS_OF_MODULES", 2)
    (finding,) = findings_of(repaired_then_harmful, torch.compile)
    assert (finding.op, finding.inputs, finding.posinf) == ("aten::div", (), 0)
    assert finding.hint == (
        "no numbers: this call was not replayed, because its values begin where those of earlier ones do"
    )


def test_a_scaler_that_has_seen_a_value_has_not_seen_the_next():
    def program(compiler):
        loss_of = compiler(lambda w: torch.log(w - 1).sum())
        w = torch.ones(1, requires_grad=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        optimizer = torch.optim.SGD([w], 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            scaler.scale(loss_of(w)).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        loss_of(w).backward()
        optimizer.step()

    assert_as_eager(program)


def test_a_region_says_that_it_was_replayed_too_often(monkeypatch):
    monkeypatch.setattr(explanations, "REPLAYS_IN_ALL", 1)
    findings = findings_of(alternating, torch.compile)
    assert findings[0].compiled.obstacle is None
    assert findings[1].origin == "compiled"
    assert findings[1].compiled.obstacle == "1 of its calls were replayed in this detection, as many as may be"
    assert findings[1].compiled.kernel is not None


def two_ways_to_nan(compiler):
    """Returns a training step that is bad by its logarithm, by its square root, or not at all."""
    w = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.0)
    loss_of = compiler(lambda x, y, w: (torch.log(x * w) + torch.sqrt(y * w)).sum())

    def step(bad):
        sign = [-1.0 if bad == name else 1.0 for name in ("log", "sqrt")]
        loss_of(torch.full((3,), sign[0]), torch.full((3,), sign[1]), w).backward()
        w.grad = torch.zeros(1)
        optimizer.step()

    return step


def after_a_pause(compiler):
    step = two_ways_to_nan(compiler)
    for _ in range(explanations.CHECKED_FIRST + 20):
        step("log")
    step("")
    step("sqrt")


def test_a_region_that_was_finite_meanwhile_is_checked_again():
    assert_as_eager(after_a_pause, 2)


def test_a_cause_that_takes_the_place_of_one_that_was_reported_is_found_when_a_call_is_checked():
    first, checked = explanations.CHECKED_FIRST + 20, explanations.CHECK_EVERY

    def program(compiler):
        step = two_ways_to_nan(compiler)
        for i in range(first + checked):
            step("log" if i < first else "sqrt")

    findings = findings_of(program, torch.compile)
    assert [finding.op for finding in findings] == ["aten::log", "aten::sqrt"]
    assert first < findings[1].step <= first + checked


def test_a_call_that_was_not_checked_says_so():
    step, errors = two_ways_to_nan(torch.compile), []
    with torchnan.detect() as session:
        for i in range(explanations.CHECKED_FIRST + 10):
            session.mark_step(i + 1)
            with pytest.raises(torchnan.NonFiniteError) as raised:
                step("log")
            errors.append(raised.value.finding)
    assert {error.op for error in errors} == {"aten::log"}
    assert errors[10].hint == "the same origin as in step 3, where the numbers were different"
    assert errors[-1].hint == "assumed to be the same origin as in step 3: not every call is checked"


kept = []  # results that outlive a program


def hidden_elsewhere(compiler):
    shifted = compiler(lambda x, hidden: torch.log(x).masked_fill(hidden, float("-inf")))
    hidden = torch.tensor([False, True, False])
    for i in range(explanations.CHECKED_FIRST + 20):
        x = torch.ones(3)
        if i == explanations.CHECKED_FIRST + 10:
            x[2] = 0
        shifted(x, hidden)[~hidden].sum().item()


def test_a_region_that_returns_a_mask_each_time_is_checked_where_the_mask_is_another():
    assert_as_eager(hidden_elsewhere, 1)


def no_longer_hidden(compiler):
    shifted = compiler(lambda x, hidden: torch.log(x).masked_fill(hidden, float("-inf")))
    for i in range(explanations.CHECKED_FIRST + 10):
        is_bad = i == explanations.CHECKED_FIRST + 5
        x, hidden = torch.ones(3), torch.tensor([False, not is_bad, False])
        x[1] = 0.0 if is_bad else 1.0
        shifted(x, hidden)[~hidden].sum().item()


def test_a_value_that_takes_the_place_of_a_mask_is_found():
    assert_as_eager(no_longer_hidden, 1)


def all_visited_at_last(compiler):
    def decode(x, visited):
        logits = x * 10
        logits[visited] = float("-inf")
        return torch.log_softmax(logits, 0)

    decode = compiler(decode)
    visited = torch.zeros(explanations.REPLAYS_OF_ONE_CAUSE + 1, dtype=torch.bool)
    for i in range(len(visited)):
        visited = visited.clone()
        visited[i] = True
        decode(torch.ones(len(visited)), visited).max().item()


def test_a_nan_of_an_operation_that_has_made_masks_is_found():
    """The last softmax has a row of -inf."""
    (found,) = assert_as_eager(all_visited_at_last, 1)
    assert (found.kind, found.op) == ("nan", "aten::_log_softmax")


def masks_in_every_combination(compiler):
    shifted = compiler(lambda x, hidden: [(x * i).masked_fill(hidden[i], float("-inf")) for i in range(6)])
    for call in range(64):
        hidden = torch.tensor([call >> i & 1 for i in range(6)], dtype=torch.bool)
        kept.append(shifted(torch.ones(4), hidden[:, None].expand(6, 4)))


def test_masks_in_any_combination_are_silent():
    """They are more than may be replayed."""
    assert explanations.REPLAYS_OF_MODULES < 2**6
    assert findings_of(masks_in_every_combination, torch.compile) == []
    kept.clear()


ROWS = {
    "sum": lambda x, mask: (x + mask).sum(1),
    "mm": lambda x, mask: (x + mask) @ torch.ones(4, 2),
    "cumsum": lambda x, mask: (x + mask).cumsum(1),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_mask_in_another_row_does_not_explain_an_overflow(name):
    def program(compiler):
        masked = compiler(ROWS[name])
        for call in range(8):
            x, mask = torch.ones(3, 4), torch.zeros(3, 4)
            mask[0, 0] = -float("inf")
            if call == 7:
                x[1] = -3e38
            rows = masked(x, mask).reshape(3, -1)
        rows[1, -1].item()

    assert_as_eager(program, 1)


def in_one_graph(compiler):
    options = {"fullgraph": True} if compiler is torch.compile else {}
    loss_of = compiler(lambda w, x: -torch.log(w * x).mean(), **options)
    w = torch.ones(3, requires_grad=True)
    for step in range(3):
        w.grad = None
        loss_of(w, torch.tensor([1.0, 1.0, 0.0 if step == 1 else 1.0])).backward()


def normalized_in_one_graph(compiler):
    def loss_of(w, x):
        g = (w * 0).detach()
        return (x @ (w - g / g.square().sum().sqrt())).square().mean()

    w = nn.Parameter(torch.ones(3, 2))
    optimizer = torch.optim.SGD([w], lr=0.1)
    options = {"fullgraph": True} if compiler is torch.compile else {}
    compiler(loss_of, **options)(w, torch.ones(4, 3)).backward()
    optimizer.step()


@pytest.mark.parametrize("program", [in_one_graph, normalized_in_one_graph])
def test_a_region_without_breaks_is_reported_once(program):
    """Dynamo evaluates frames while such a region runs, and not in its backward pass."""
    assert_as_eager(program, 1)


def two_results_of_two_causes(compiler):
    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.1)
    weighed = compiler(lambda x, s: ((w * (x / s)).sum(), torch.log(s)))
    loss, logarithm = weighed(torch.zeros(3), torch.tensor([1.0, 0.0, 1.0]))
    torch.where(torch.isfinite(logarithm), logarithm, 0)
    loss.backward()
    optimizer.step()


def test_a_result_that_was_reported_is_the_cause_of_gradients_beside_another():
    assert_as_eager(two_results_of_two_causes, 1)


def behind_a_mask_that_was_given(compiler):
    @compiler
    def decode(cache, x, mask):
        cache[0] = x
        return (cache[0] + mask).softmax(-1), torch.exp(x * 1e3)

    _attention, large = decode(torch.zeros(4, 8), torch.ones(8), torch.tensor([0.0] * 7 + [-float("inf")]))
    large.sum().item()


def test_a_mask_among_the_arguments_explains_no_other_kind():
    torch.manual_seed(0)
    with torchnan.detect(action="log", max_copied_bytes=8) as session:
        behind_a_mask_that_was_given(torch.compile)
    assert [(one.origin, one.kind, one.harm.kind) for one in session.findings] == [("compiled", "inf", "read")]
    assert "max_copied_bytes=8" in session.first.compiled.obstacle


def gradient_that_a_region_zeroes(compiler):
    net = torch.nn.Linear(3, 3)
    masked = compiler(lambda h, keep: torch.where(keep, h.square().sum(-1), 1.0))
    for _ in range(6):
        length = masked(net(torch.ones(4, 3)), torch.tensor([False, True, True, True]))
        shifted = torch.where(torch.tensor([False, True, True, True]), (length - 1.0).abs().sqrt(), 0.0)
        shifted.mean().backward()


def test_a_gradient_that_a_region_zeroes_is_silent():
    assert_as_eager(gradient_that_a_region_zeroes, 0)


def selected_by_a_flag(compiler):
    chosen = compiler(lambda scores, keep, p, flag: torch.where(flag, torch.log(p), scores.masked_fill(~keep, -INF)))
    for call in range(10):
        keep, p = torch.tensor([True, True, False, True]), torch.tensor([0.5, 0.0, 0.5, 0.5])
        row = chosen(torch.randn(4), keep, p, torch.tensor(call > 4))
        if call > 4:
            row.sum().item()


def returned_in_part(compiler):
    def rows(scores, keep, p):
        masked, logarithm = scores.masked_fill(~keep, -INF), torch.log(p)
        return torch.cat([masked[:2], logarithm[:2]]), masked[2:]

    parts = compiler(rows)
    for call in range(10):
        p = torch.tensor([0.5, 0.0 if call > 4 else 0.5, 0.0, 0.5])
        row, hidden = parts(torch.randn(4), torch.tensor([True, call > 4, False, True]), p)
        kept.append(hidden)
        if call > 4:
            row[2:].sum().item()


@pytest.mark.parametrize("program", [selected_by_a_flag, returned_in_part])
def test_a_value_that_reaches_a_result_later_than_a_mask_is_found(program):
    """The operations that make the two are the same in all calls."""
    findings = [one for one in findings_of(program, torch.compile) if one.level == "error"]
    assert [(one.op, one.harm.kind) for one in findings] == [("aten::log", "read")]
    kept.clear()


def two_causes_that_are_selected(compiler):
    chosen = compiler(
        lambda a, b, flag: torch.where(
            flag,
            torch.log(a),
            torch.log(b),
        )
    )
    for call in range(10):
        chosen(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor(call < 5)).sum().item()


def test_the_cause_that_is_selected_is_named():
    assert_as_eager(two_causes_that_are_selected, 2)


class Calling(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


MANY = explanations.REPLAYS_OF_MODULES // explanations.REPLAYS_OF_ONE_CAUSE + 4


def mask_of_many_callers(compiler):
    masked = compiler(lambda x, keep: x.masked_fill(~keep, -INF))
    layers = nn.ModuleList(Calling(masked) for _ in range(MANY))
    for _ in range(5):
        for layer in layers:
            layer.last = layer(torch.randn(3), torch.tensor([True, True, False]))
    kept.append(layers)


def test_a_mask_of_a_helper_with_many_callers_is_silent():
    assert_as_eager(mask_of_many_callers, 0)
    kept.clear()


def beside_the_mask_of_many_callers(compiler):
    biased = compiler(lambda x, bias: torch.log(x) + bias)
    layers = nn.ModuleList(Calling(biased) for _ in range(MANY))
    for turn in range(4):
        for i, layer in enumerate(layers):
            is_bad = turn == 3 and i == 5
            row = layer(torch.tensor([1.0, 0.0 if is_bad else 1.0, 1.0]), torch.tensor([0.0, 0.0, -INF]))
            if is_bad:
                row[1].item()


def test_a_value_beside_the_mask_of_a_helper_with_many_callers_is_found():
    assert_as_eager(beside_the_mask_of_many_callers, 1)


def and_a_logarithm(compiler):
    shifted = compiler(lambda x, y, hidden: (x.masked_fill(hidden[0], -float("inf")), torch.log(y) + hidden[1]))
    for call in range(12):
        hidden = torch.tensor([call >> i & 1 for i in range(2)], dtype=torch.bool)
        kept.append(shifted(torch.ones(4), torch.full((4,), 0.0 if call == 9 else 1.0), hidden))


def test_a_value_beside_a_mask_is_no_combination_of_masks():
    assert_as_eager(and_a_logarithm, 1)
    kept.clear()


def test_a_gradient_that_only_a_graph_holds_is_not_left_over():
    def program(compiler):
        w = torch.ones(3, requires_grad=True)
        totals = compiler(lambda x, w: ((x * w).sum(), torch.exp((x * w).sum() * 1000)))
        loss, _perplexity = totals(torch.ones(3), w)
        loss.backward()
        kept.append(loss)

    kept = []
    assert_as_eager(program, 1)


# -- the module that was called


class Log(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.log(self.scale) * x


class Nested(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.fc, self.gain, self.share = nn.Linear(4, 4), nn.Parameter(torch.ones(4)), share

    @torch.compiler.nested_compile_region
    def forward(self, x):
        y = self.fc(x) * self.gain
        return self.share * x + y / y.square().sum(-1, keepdim=True).sqrt()


class NestedLayers(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.layers, self.last = nn.ModuleList(Nested(share) for _ in range(3)), Nested(share)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.last(x).square().mean()


@pytest.mark.parametrize("bad", ["layers.0", "layers.1", "layers.2", "last"])
def test_the_call_of_a_nested_region_is_named(bad):
    def program(compiler):
        net = NestedLayers(0.5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        with torch.no_grad():
            net.get_submodule(bad).gain.zero_()
        compiler(net)(torch.randn(3, 4)).backward()
        optimizer.step()

    (finding,) = assert_as_eager(program, 1)
    assert finding.module == bad


def test_the_backward_pass_of_a_nested_region_is_followed():
    def program(compiler):
        net = nn.Sequential(RootOfSquares(), RootOfSquares(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        with torch.no_grad():
            net[1].gain.zero_()
        compiler(net)(torch.randn(3, 4)).mean().backward()
        optimizer.step()

    (finding,) = assert_as_eager(program, 1)
    assert (finding.node, finding.module) == ("SqrtBackward0", "1")


class RootOfSquares(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))

    @torch.compiler.nested_compile_region
    def forward(self, x):
        return x + (x * self.gain).square().sum(-1, keepdim=True).sqrt()


def test_a_part_of_a_model_that_is_compiled_alone_has_its_name_in_the_model():
    def program(compiler):
        net = nn.ModuleDict({"a": Log(), "b": Log()})
        with torch.no_grad():
            net["b"].scale.zero_()
        first, second = compiler(net["a"]), compiler(net["b"])
        (first(torch.ones(4)) + second(torch.ones(4))).sum().item()

    (finding,) = assert_as_eager(program, 1)
    assert finding.module == "b"


class Root(nn.Module):
    """Has no parameters."""

    def forward(self, x):
        return torch.sqrt(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Log()
        self.root = Root()

    def forward(self, x):
        return x + self.inner(x) + self.root(x * x)


class BlockThatNamesItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Log()

    def forward(s, x):
        return x + s.inner(x)


class Stack(nn.Module):
    def __init__(self, make, call):
        super().__init__()
        self.blocks = nn.ModuleList([make() for _ in range(4)])
        self.call = call

    def forward(self, x):
        for block in self.blocks:
            x = self.call(block, x)
        return x


def as_argument(compiler, make=Block):
    return Stack(make, compiler(lambda block, x: block(x)))


def as_first_argument(compiler):
    return Stack(BlockThatNamesItself, lambda block, x: compiler(block)(x))


def as_keyword(compiler):
    run = compiler(lambda x, *, block: block(x))
    return Stack(Block, lambda block, x: run(x, block=block))


def as_closure(compiler):
    def call(block, x):
        return compiler(lambda value: block(value))(x)

    return Stack(Block, call)


def as_partial(compiler):
    def run(block, x):
        return block(x)

    return Stack(Block, lambda block, x: compiler(functools.partial(run, block))(x))


def in_a_list(compiler):
    run = compiler(lambda blocks, x: blocks[1](blocks[0](x)))
    return Stack(Block, lambda block, x: run([nn.Identity(), block], x))


def in_a_dict(compiler):
    run = compiler(lambda blocks, x: blocks["one"](x))
    return Stack(Block, lambda block, x: run({"one": block}, x))


def compiled_in_place(compiler):
    model = Stack(Block, lambda block, x: block(x))
    if compiler is torch.compile:
        for block in model.blocks:
            block.compile()
    return model


def wrapped(compiler):
    model = Stack(Block, lambda block, x: block(x))
    for i, block in enumerate(list(model.blocks)):
        model.blocks[i] = compiler(block)
    return model


HOLDERS = (
    as_argument,
    as_first_argument,
    as_keyword,
    as_closure,
    as_partial,
    in_a_list,
    in_a_dict,
    compiled_in_place,
    wrapped,
)


@pytest.mark.parametrize("make", HOLDERS)
@pytest.mark.parametrize("number", [0, 3])
def test_the_module_is_the_one_that_was_called(make, number):
    def program(compiler):
        model = make(compiler)
        with torch.no_grad():
            model.blocks[number].inner.scale.fill_(-1.0)
        model(torch.ones(2, 4)).sum().backward()

    (finding,) = assert_as_eager(program, 1)
    assert finding.module == f"blocks.{number}.inner"


@pytest.mark.parametrize("make", HOLDERS)
def test_the_module_of_a_gradient_is_the_one_that_was_called(make):
    def program(compiler):
        model = make(compiler)
        with torch.no_grad():
            model.blocks[3].inner.scale.fill_(1e-45)  # its logarithm has an infinite slope
        model(torch.ones(2, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()

    (finding,) = assert_as_eager(program, 1)
    assert finding.module == "blocks.3.inner"


@pytest.mark.parametrize("make", HOLDERS)
def test_a_bad_parameter_is_that_of_the_module_that_was_called(make):
    def program(compiler):
        model = make(compiler)
        with torch.no_grad():
            model.blocks[3].inner.scale[1] = float("inf")
        model(torch.ones(2, 4)).sum().backward()

    (finding,) = assert_as_eager(program, 1)
    assert (finding.origin, finding.name) == ("parameter", "blocks.3.inner.scale")


def test_a_module_without_parameters_is_the_one_that_was_called():
    def program(compiler):
        model = Stack(Root, compiler(lambda block, x: block(x) - 1))
        model(torch.full((2, 4), 0.5, requires_grad=True)).sum().backward()

    (finding,) = assert_as_eager(program, 1)
    assert finding.module == "blocks.1"


# -- compiled optimizers


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("way", ["step", "lambda"])
def test_a_bad_gradient_is_reported_before_a_compiled_step_applies_it(kind, way):
    def program(compiler):
        model = nn.Linear(4, 4)
        optimizer = kind(model.parameters(), lr=0.01)
        step = compiler(optimizer.step) if way == "step" else compiler(lambda: optimizer.step())
        for i in range(1, 5):
            loss = model(torch.ones(2, 4)).sum()
            if i == 3:
                model.weight.register_hook(lambda gradient: gradient / 0)
            loss.backward()
            step()
            optimizer.zero_grad()

    eager, compiled = both(program)
    assert (eager[0].step, eager[0].harm.kind, eager[0].harm.name) == (3, "gradient", "weight")
    assert facts(compiled[0]) == facts(eager[0])


def test_nothing_is_applied_by_a_compiled_step_that_is_refused():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = torch.compile(optimizer.step)
    with pytest.raises(torchnan.NonFiniteError) as caught, torchnan.detect():
        for i in range(1, 5):
            loss = model(torch.ones(2, 4)).sum()
            before = model.weight.detach().clone()
            if i == 2:
                model.weight.register_hook(lambda gradient: gradient / 0)
            loss.backward()
            step()
            optimizer.zero_grad()
    assert caught.value.finding.step == 2
    assert torch.equal(model.weight, before)


# -- errors that a region raises


def refused_matrix(x):
    covariance = x.T @ x / (x.sum() * 0)
    return torch.linalg.eigh(covariance)


def bad_probabilities(x):
    probabilities = torch.softmax(x / 0, -1)
    return torch.multinomial(probabilities, 1)


def failed_check(x):
    loss = torch.log(x - 1).sum()
    torch._assert_async(torch.isfinite(loss), "the loss is not finite")
    return loss * 2


@pytest.mark.parametrize("function", [refused_matrix, bad_probabilities, failed_check])
def test_an_error_that_a_region_raises_has_the_report_of_the_value(function):
    found, errors = [], []
    for compiler in (lambda function: function, torch.compile):
        session = torchnan.detect(action="log")
        with pytest.raises(RuntimeError) as raised, session:
            compiler(function)(torch.ones(4, 3))
        assert session.stats()["internal_errors"] == 0
        errors.append(str(raised.value))
        found.append([facts(finding) for finding in session.findings])
    eager, compiled = found
    assert len(eager) == 1
    assert compiled == eager
    assert errors[1] == errors[0]


def test_an_error_that_is_not_about_a_value_has_no_report():
    def refuse(x):
        return torch.linalg.cholesky(-torch.eye(3) * x)

    session = torchnan.detect(action="log")
    with pytest.raises(torch.linalg.LinAlgError), session:
        torch.compile(refuse)(torch.ones(1))
    assert session.findings == []


# -- transforms


def slopes_of_slopes(x):
    return torch.func.hessian(lambda v: (v.abs() ** 1.5).sum())(x)


def test_second_derivatives_are_replayed_and_no_transform_stays_open():
    def program(compiler):
        compiler(slopes_of_slopes)(torch.tensor([1.0, 0.0])).sum().item()

    (finding,) = findings_of(program, torch.compile)
    (eager,) = findings_of(program, lambda function: function)
    assert (finding.op, finding.kind, finding.line) == (eager.op, eager.kind, eager.line)
    assert finding.compiled.obstacle is None
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
    torch.func.jvp(torch.sin, (torch.ones(1),), (torch.ones(1),))  # refused inside of another level


# -- lines inside of a backward pass


class DividesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient / (x - x)


class LogInForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.log(x - 2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@torch.library.custom_op("torchnan_tests::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halved.register_fake
def _(x):
    return torch.empty_like(x)


def divide_in_backward(ctx, gradient):
    return gradient / (ctx.saved_tensors[0] - ctx.saved_tensors[0])


def save_input(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


halved.register_autograd(divide_in_backward, setup_context=save_input)


def function(w):
    return (DividesInBackward.apply(w) * 2).sum()


def forward_of_function(w):
    return LogInForward.apply(w).sum()


def custom_operator(w):
    return halved(w).sum()


def hook(w):
    doubled = w * 2
    doubled.register_hook(lambda gradient: gradient / 0)
    return (doubled * doubled).sum()


def function_in_checkpoint(w):
    return checkpoint(DividesInBackward.apply, w, use_reentrant=False).sum()


@pytest.mark.parametrize("loss_of", [function, forward_of_function, custom_operator, hook, function_in_checkpoint])
def test_code_in_a_backward_pass_has_its_line_and_then_that_of_the_call(loss_of):
    def program(compiler):
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], 0.1)
        compiler(loss_of)(w).backward()
        optimizer.step()

    assert_as_eager(program, 1)


class Newton(nn.Module):
    def forward(self, a, x):
        def step(i, x):
            return i + 1, 0.5 * (x + a / x)

        return while_loop(lambda i, x: i < 2, step, (torch.tensor(0), x))[1]


def test_a_value_beside_harmless_ones_has_its_own_cause():
    def program(compiler):
        layer = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        normalize = compiler(lambda x, scale: x / scale)
        for step in range(5):
            x, scale = torch.randn(4, 3), torch.ones(3)
            x[0, 0] = float("nan")  # a missing value
            valid = ~torch.isnan(x)
            if step == 4:
                x[:, 1] = scale[1] = 0.0
            loss = layer(torch.where(valid, normalize(x, scale), 0.0)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if torch.isfinite(loss):
                optimizer.step()

    (finding,) = assert_as_eager(program, 1)
    assert finding.op == "aten::div"


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, mask):
        scores = (self.query(x) @ self.key(x).transpose(-1, -2)).masked_fill(mask, float("-inf"))
        return x + torch.softmax(scores, -1) @ x, scores


def test_many_modules_may_return_masks():
    def program(compiler):
        blocks = nn.ModuleList(Scores() for _ in range(12))
        calls = [compiler(block) for block in blocks]
        mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
        for _ in range(4):
            x, kept = torch.randn(2, 3, 4), []
            for call in calls:
                x, scores = call(x, mask)
                kept.append(scores)
            x.square().mean().backward()
        return kept

    assert_as_eager(program, 0)


def test_a_slope_that_both_passes_of_a_region_compute_is_reported_once():
    def energy(x, scale):
        square = (x[:, None] - x[None]).square().sum(-1)
        return (scale * torch.exp(-torch.where(square > 0, square.sqrt(), 0.0))).sum()

    def program(compiler):
        scale = nn.Parameter(torch.tensor(1.0))
        optimizer = torch.optim.SGD([scale], lr=0.01)

        def loss_of(scale, x):
            return torch.func.vmap(torch.func.grad(energy), in_dims=(0, None))(x, scale).square().mean()

        compiler(loss_of)(scale, torch.randn(2, 4, 3)).backward()
        optimizer.step()

    (finding,) = assert_as_eager(program, 1)
    assert finding.node == "SqrtBackward0"


def test_the_body_of_a_loop_is_not_a_module():
    with torchnan.detect(action="log") as session, torch.no_grad():
        torch.compile(Newton())(torch.zeros(2), torch.zeros(2)).sum().item()
    assert session.first.op == "aten::div"
    assert "body" not in (session.first.module or "")


# -- functions and modules of the program


class NormalizedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("function", [NormalizedGradient, DividesInBackward])
def test_a_function_of_the_program_is_named_alike_with_every_backend(function, backend):
    def program(compiler):
        w = torch.ones(4, requires_grad=True)
        loss_of = compiler(lambda x, w: (function.apply(x * w) * torch.tensor([[1.0], [0.0]])).sum())
        loss_of(torch.ones(2, 4), w).backward()
        w.grad.sum().item()

    (eager,), (compiled,) = (
        findings_of(program, compiler)
        for compiler in (lambda function: function, lambda function: torch.compile(function, backend=backend))
    )
    assert facts(compiled) == facts(eager)
    assert compiled.node == f"{function.__name__}Backward"


class Pool(nn.Module):
    def forward(self, x):
        return x / (x - x)


class PoolingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.pool = nn.Linear(3, 3), Pool()

    def forward(self, x):
        return self.pool(self.out(x)).sum()


def compiled_by_aot_eager(module):
    return torch.compile(module, backend="aot_eager")


@pytest.mark.parametrize("wrappers", [(0,), (0, 1), (1, 0), (1,)], ids=["ddp", "ddp-compile", "compile-ddp", "compile"])
def test_a_module_has_the_same_name_in_every_order_of_wrappers(wrappers):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = PoolingNet()
        for number in wrappers:
            model = (nn.parallel.DistributedDataParallel, compiled_by_aot_eager)[number](model)
        with torchnan.detect(action="log") as session:
            model(torch.ones(2, 3)).item()
    finally:
        torch.distributed.destroy_process_group()
    assert [finding.module for finding in session.findings] == ["pool"]


# -- errors


def frames_of(error):
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    return frames


@torch.compile
def refused(x):
    return torch.linalg.cholesky(x.log())


def error_of(value):
    with pytest.raises(torch.linalg.LinAlgError) as raised:
        refused(torch.full((2, 2), value))
    return raised.value


def test_an_error_in_a_region_has_the_traceback_of_the_program():
    _, plain = error_of(-1.0), error_of(-1.0)  # the first call compiles
    torch._dynamo.reset()
    with torchnan.detect(action="log"):
        _, watched = error_of(-1.0), error_of(-1.0)
    assert frames_of(watched) == frames_of(plain)
    assert copy.deepcopy(watched).args == watched.args
