"""The report is the product: its exact words."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import sys
import sysconfig
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import torchnan
from tests.support.function_names import name_in_report


class Attention(nn.Module):
    def forward(self, scores, mask):
        return scores.masked_fill(mask, float("-inf")).softmax(-1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, scores, mask):
        return self.attn(scores, mask) * 2


def found(step) -> torchnan.Finding:
    with torchnan.detect(action="log") as watch:
        watch.mark_step(4711)
        step()
    return watch.first


def anonymous(text: str) -> str:
    """Without the line numbers of this file."""
    return re.sub(r"test_report\.py:\d+", "test_report.py:N", text)


@pytest.mark.parametrize(("name", "is_users"), [("pytest", False), ("train", True)])
def test_a_command_that_pip_wrote_is_not_in_the_stack(name, is_users):
    """A script of the user may lie in the same folder."""
    command = os.path.join(sysconfig.get_path("scripts"), name)
    start = types.FunctionType((lambda step: step()).__code__.replace(co_filename=command), globals())
    finding = found(lambda: start(lambda: torch.zeros(1).log().item()))
    assert (command in [frame.file for frame in finding.stack]) == is_users


def test_a_forward_finding(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    block, mask = Block(), torch.tensor([[True, False], [True, True]])
    finding = found(lambda: block(torch.ones(2, 2, requires_grad=True), mask).sum().backward())
    lines = anonymous(str(finding)).splitlines()
    assert lines[:9] == [
        "torchnan: NaN at step 4711, rank 3 (cpu)",
        "  made by   aten::_softmax, output 0   in attn (Attention)   at tests/detection/test_report.py:N",
        "  output    f32[2,2]  nan 2  first at [1,0]",
        "  inputs    self f32[2,2]  min 1  max 1  -inf 3  constant from tests/detection/test_report.py:N",
        "  because   the row of self at [1,0] is -inf everywhere: softmax of a fully masked row is 0/0",
        "  lineage   _softmax -> mul (tests/detection/test_report.py:N) -> sum (tests/detection/test_report.py:N)",
        "  harm      backward() was called on it (tests/detection/test_report.py:N)",
        f"  stack     tests/detection/test_report.py:N {name_in_report(Attention.forward)}",
        f"            tests/detection/test_report.py:N {name_in_report(Block.forward)}",
    ]


def test_a_backward_finding():
    x = torch.zeros(3, requires_grad=True)

    def step():
        x.sqrt().sum().backward()
        with torch.no_grad():
            x.sub_(x.grad)

    text = anonymous(str(found(step)))
    assert "torchnan: Inf at step 4711 (cpu), in the backward pass" in text
    assert "made by   aten::div in SqrtBackward0, output 0   at tests/detection/test_report.py:N" in text
    assert "harm      it is in a parameter of shape [3] that no module owns" in text
    assert "\n  forward   tests/detection/test_report.py:N" in text


@pytest.mark.parametrize(
    ("gradient", "kind", "output"),
    [
        (0.0, "nan", "f32[3]  +inf 3, then NaN in PowBackward0  first at [0]"),
        (1.0, "inf", "f32[3]  +inf 3  first at [0]"),
    ],
)
def test_an_infinite_slope_that_a_gradient_of_zero_turns_into_nan_is_reported_as_both(gradient, kind, output):
    x = torch.zeros(3, requires_grad=True)
    finding = found(lambda: ((x**0.5) * gradient).sum().backward() or x.grad)
    assert (finding.op, finding.node, finding.kind) == ("aten::pow", "PowBackward0", kind)
    assert (finding.nan, finding.posinf) == (0, 3)
    text = str(finding)
    assert text.startswith(f"torchnan: {'NaN' if kind == 'nan' else 'Inf'} at step")
    assert f"\n  output    {output}\n" in text


def test_a_node_whose_operation_makes_the_nan_itself_says_so_once():
    x = torch.zeros(3, requires_grad=True)
    finding = found(lambda: (x.sqrt() * 0).sum().backward() or x.grad)
    assert (finding.op, finding.kind, finding.nan) == ("aten::div", "nan", 3)
    assert "\n  output    f32[3]  nan 3  first at [0]\n" in str(finding)


def test_it_fits_one_screen_and_holds_no_control_character():
    def deep(n, x):
        return deep(n - 1, x) if n else x.log()

    finding = found(lambda: sum(deep(40, torch.tensor([-1.0])) for _ in range(1)).item())
    text = str(finding)
    assert len(text.splitlines()) <= 24
    assert all(character == "\n" or character.isprintable() for character in text)


def test_json_is_strict_and_says_the_same():
    finding = found(lambda: torch.log(torch.tensor([-1.0, float("inf")])).sum().item())
    parsed = json.loads(finding.to_json(), parse_constant=lambda name: pytest.fail(f"not strict JSON: {name}"))
    assert parsed["schema"] == 1
    for field in ("level", "kind", "origin", "phase", "op", "output", "module", "step", "nan", "hint", "repeats"):
        assert parsed[field] == getattr(finding, field), field
    assert parsed["stack"][0]["line"] == finding.line
    assert parsed["harm"]["kind"] == finding.harm.kind
    assert set(parsed) == GOLDEN_FIELDS


# A field that is added unnoticed might hold data that must not be logged.
GOLDEN_FIELDS = {
    *(
        "schema",
        "level",
        "kind",
        "origin",
        "phase",
        "op",
        "overload",
        "output",
        "node",
        "module",
        "module_type",
        "name",
        "constant",
        "collective",
        "stack",
        "backward_stack",
    ),
    *(
        "step",
        "rank",
        "thread",
        "process",
        "item",
        "device",
        "dtype",
        "shape",
        "strides",
        "nan",
        "posinf",
        "neginf",
        "first_index",
    ),
    *("inputs", "compiled", "lineage", "lineage_omitted", "harm", "hint", "others", "others_omitted", "repeats"),
}


def test_no_value_of_a_tensor_is_reported_beyond_the_range():
    secret = torch.tensor([-1234.5, 3.25, 77.125, 0.0])
    text = found(lambda: secret.log().sum().item()).to_json()
    assert "3.25" not in text
    assert "-1234.5" in text  # the smallest
    assert "77.125" in text  # the largest


def test_a_model_made_anew_at_the_address_of_a_dead_one_is_named():
    """Interned stacks identify modules by address; the address of a freed one may be reused."""

    class Log(torch.nn.Module):
        def forward(self, x):
            return x.log().sum()

    for _ in range(50):
        model = torch.nn.Sequential(torch.nn.Identity(), Log())
        with torchnan.detect(action="log") as watch:
            model(torch.full((3,), -1.0)).item()
        assert [finding.module for finding in watch.findings] == ["1"]


def test_places_are_known_after_many_models():
    """Each model has separate stacks, and only a limited number is kept: those of freed models make room."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Tanh() for _ in range(40))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    with torchnan.detect(action="log") as watch:
        for _ in range(1500):  # 60,000 stacks
            model = Deep()
            model(torch.ones(1, requires_grad=True)).sum().backward()
        held = model(-torch.ones(1)).log()
    assert watch.first.file == __file__
    assert watch.first.module is None
    del held


# -- what happened to the step


def bad_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.zeros(2, 1)).sqrt().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("action", ["raise", "warn", "log", "callable"])
def test_the_harm_of_a_gradient_says_whether_the_step_went_on(action):
    model = nn.Linear(1, 1, bias=False)
    before = model.weight.item()
    seen: list[torchnan.Finding] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(torchnan.NonFiniteError):
            with torchnan.detect(action=seen.append if action == "callable" else action) as watch:
                bad_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    was_applied = math.isnan(model.weight.item())
    assert was_applied == (action != "raise")
    assert before == before  # it was finite
    harm = watch.findings[0].harm
    about = "an optimizer was about to use it as the gradient of weight"
    texts = {"raise": f"{about}; the step was not applied", "callable": about}
    texts["warn"] = texts["log"] = "an optimizer used it as the gradient of weight; the step was applied"
    assert harm.text.startswith(f"{texts[action]} (")
    assert harm.applied == {"raise": False, "callable": None}.get(action, True)
    assert torchnan.Finding.from_json(watch.findings[0].to_json()).harm == harm


def test_a_gradient_without_a_name_has_its_place_and_shape():
    bare = [torch.ones(3, requires_grad=True), torch.zeros(2, requires_grad=True)]
    optimizer = torch.optim.SGD(bare, lr=0.1)

    def step():
        (bare[0].sum() + bare[1].sqrt().sum()).backward()
        optimizer.step()

    text = found(step).harm.text
    assert text.startswith("an optimizer used it as the gradient of parameter 1 of group 0, shape [2]; the step was")


# -- lines


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        e = torch.exp(x * 60)  # overflows
        return gradient * (1 - e) / e


def line_with(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line and "line_with" not in line)


def test_python_code_in_a_backward_pass_has_both_lines_and_its_own_kind():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        Swish.apply(model(torch.full((2, 1), 1e3))).sum().backward()  # the forward call
        optimizer.step()

    with torch.no_grad():
        model.weight.fill_(1)
    finding = found(step)
    own, forward = line_with("# overflows"), line_with("# the forward call")
    assert (finding.op, finding.node, finding.kind) == ("aten::exp", "SwishBackward", "inf")
    assert finding.hint.startswith("exp of 6")
    assert finding.line == forward
    assert finding.backward_stack[0].line == own
    text = str(finding)
    assert "torchnan: Inf at step" in text
    here = "tests/detection/test_report.py"
    assert f"in SwishBackward, output 0   at {here}:{own}, forward {here}:{forward}" in text
    assert f"\n  backward  {here}:{own} {name_in_report(Swish.backward)}\n  forward   {here}:{forward}" in text


def test_a_hook_has_its_own_line_and_that_of_the_forward_call():
    x = torch.zeros(2, requires_grad=True)

    def step():
        y = x * 2  # made here
        y.register_hook(lambda gradient: gradient / (gradient - 1))  # the hook
        y.sum().backward()
        x.grad.sum().item()

    finding = found(step)
    assert [finding.line, finding.backward_stack[0].line] == [line_with("# the hook")] * 2
    text = str(finding)
    here = "tests/detection/test_report.py"
    assert f"at {here}:{line_with('# the hook')}, forward {here}:{line_with('# made here')}" in text


def test_accumulation_of_a_gradient_has_the_parameters_name_and_module():
    model = nn.Sequential(nn.Linear(1, 1, bias=False)).half()

    def step():
        for _ in range(2):
            (model(torch.full((1, 1), 40000.0).half()) * 1).sum().backward()
        model[0].weight.grad.sum().item()

    with torch.no_grad():
        model[0].weight.fill_(0)
    finding = found(step)
    assert (finding.name, finding.module) == ("0.weight", "0")
    assert "for parameter 0.weight   in 0" in str(finding)


@pytest.mark.parametrize(("depth", "left_out"), [(4, 0), (5, 0), (6, 2), (10, 6)])
def test_the_users_own_frame_is_shown_however_deep_the_operation_stands(depth, left_out, tmp_path):
    package = tmp_path / "site-packages" / "deep"
    package.mkdir(parents=True)
    steps = "".join(f"def step{i}(f):\n    return step{i - 1}(f)\n" for i in range(1, depth))
    (package / "__init__.py").write_text("def step0(f):\n    return f()\n" + steps)
    sys.path.insert(0, str(package.parent))
    try:
        deep = importlib.import_module("deep")
        finding = found(lambda: getattr(deep, f"step{depth - 1}")(torch.tensor(-1.0).log).item())
    finally:
        sys.path.remove(str(package.parent))
        del sys.modules["deep"]
    rows = str(finding).splitlines()
    assert re.findall(r"\.\.\. (\d+) more", str(finding)) == ([str(left_out)] if left_out else [])
    assert any("step0" in row for row in rows)
    assert "tests/detection/test_report.py" in rows[-2]
    assert rows[-1].startswith("  see ")
    assert "tests/detection/test_report.py" in finding.harm.text


@pytest.mark.parametrize(("steps", "left_out"), [(6, 0), (7, 0), (8, 2), (9, 3)])
def test_no_operation_of_a_lineage_is_left_out_where_there_is_room_for_it(steps, left_out):
    passing = ["neg", "abs", "sin", "cos", "exp", "tanh", "sigmoid", "relu", "sqrt"][:steps]

    def step():
        x = torch.tensor(-1.0).log()
        for name in passing:
            x = getattr(torch, name)(x)
        x.item()

    (lineage,) = [row for row in str(found(step)).splitlines() if row.startswith("  lineage")]
    shown = [part.split(" (")[0] for part in lineage.split(maxsplit=1)[1].split(" -> ")]
    note = [f"... {left_out} more"] if left_out else []
    assert shown == ["log", *passing[: steps - 1 - left_out], *note, passing[-1]]


def test_no_argument_is_left_out_where_there_is_room_for_it():
    norm = nn.BatchNorm1d(2).eval()
    norm.running_var[0] = -1
    finding = found(lambda: norm(torch.ones(3, 2)).sum().item())
    assert len([one for one in finding.inputs if one.dtype != "number"]) == 5
    assert not re.search(r"\.\.\. \d+ more", str(finding))


def test_a_recursion_is_one_row_of_the_stack():
    def halve(x, n):
        return halve(x, n - 1) * 1 if n else x.log()

    finding = found(lambda: halve(torch.tensor(-1.0), 40).item())
    rows = str(finding).partition("  stack ")[2].splitlines()
    assert rows[0].endswith("halve  41 times")
    assert rows[1].endswith("<lambda>")


def test_functions_that_call_each_other_in_turn_have_a_row_each():
    def even(x, n):
        return odd(x, n - 1) + 1 if n else x.log()

    def odd(x, n):
        return even(x, n - 1) * 2

    finding = found(lambda: even(torch.tensor(-1.0), 12).item())
    rows = [row.split("<locals>.")[-1] for row in str(finding).partition("  stack ")[2].splitlines()]
    assert rows[:4] == ["even  6 times", "odd  6 times", "even", "<lambda>"]
    (lineage,) = [row for row in str(finding).splitlines() if row.startswith("  lineage")]
    assert "log -> [mul (" in lineage
    assert ")] 2 times -> mul (" in lineage


# -- one cause, one error; two causes are two


@pytest.mark.parametrize("divide", [lambda p: p / p.sum(-1, keepdim=True), lambda p: p.sum().log() * p])
def test_a_forward_value_is_not_reported_again_by_its_own_backward_node(divide):
    p = nn.Parameter(torch.zeros(2, 3))
    optimizer = torch.optim.SGD([p], lr=0.1)
    with torchnan.detect(action="log") as watch:
        divide(p).sum().backward()
        optimizer.step()
    assert [finding.phase for finding in watch.findings] == ["forward"]


def test_of_two_causes_of_one_loss_neither_is_reported_again_by_its_own_backward_node():
    p = nn.Parameter(torch.zeros(3))
    with torchnan.detect(action="log") as watch:
        (p / p - p.log()).sum().backward()
    assert [finding.phase for finding in watch.findings] == ["forward"]
    assert p.grad.isnan().all()


def test_another_step_and_another_operation_are_reported_all_the_same():
    p = nn.Parameter(torch.zeros(2, 3))
    with torchnan.detect(action="log") as watch:
        optimizer = torch.optim.SGD([p], lr=0.0)
        (p / p.sum(-1, keepdim=True)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        p.sqrt().sum().backward()
        optimizer.step()
    assert [(finding.op, finding.node) for finding in watch.findings][:1] == [("aten::div", None)]


def library_line(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "metric"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def share(x):\n    return x / x.sum()\n")
    monkeypatch.syspath_prepend(str(package.parent))
    return importlib.import_module("metric").share


def test_one_library_line_under_two_lines_of_the_user_is_two_findings(tmp_path, monkeypatch):
    share = library_line(tmp_path, monkeypatch)
    with torchnan.detect(action="log") as watch:
        for _ in range(3):
            share(torch.zeros(2)).sum().item()
        share(torch.zeros(2)).sum().item()
    assert [finding.repeats for finding in watch.findings] == [2, 0]


class Share(nn.Module):
    def forward(self, x):
        return x / x.sum(-1, keepdim=True)


def test_two_modules_of_one_class_are_two_findings():
    net = nn.ModuleDict({"left": Share(), "right": Share()})
    p = torch.zeros(2, 3, requires_grad=True)
    with torchnan.detect(action="log") as watch:
        for name in ("left", "right"):
            net[name](p).sum().backward()
    assert [finding.module for finding in watch.findings] == ["left", "right"]


# -- inputs


def test_a_digit_that_decides_is_shown_and_numbers_have_their_values():
    text = str(found(lambda: torch.acos(torch.tensor([1.0000001])).item()))
    assert "inputs    self f32[1]  min 1.0000001  max 1.0000001" in text
    text = str(found(lambda: torch.tensor([-1.0]).pow(0.5).item()))
    assert "\n            exponent 0.5" in text


def test_the_argument_that_the_hint_is_about_is_first():
    norm = nn.BatchNorm1d(2).eval()
    norm.running_var[0] = -1
    finding = found(lambda: norm(torch.ones(3, 2)).sum().item())
    assert finding.inputs[0].name == "running_var"
    assert finding.hint == "running_var holds negative values (down to -1): their square root is NaN"
    assert "  inputs    running_var f32[2]  min -1  max 1" in str(finding)
