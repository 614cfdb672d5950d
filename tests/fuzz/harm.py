"""Programs that make one non-finite value on a known line and do one thing with it: docs/harm.md says what follows."""

from __future__ import annotations

import dataclasses
import random

from tests.fuzz.builder import each, templates
from tests.fuzz.comparison import EXACT, PROOFS_ALONE, Disagreement
from tests.fuzz.program import Fact, Program, run

MAKERS = {
    "(x*0).log()": "aten::log",
    "x.neg().sqrt()": "aten::sqrt",
    "(x*0)/(x*0)": "aten::div",
    "(x*1e30)*(x*1e30)": "aten::mul",
    "(x*200).exp()": "aten::exp",
    "(x*0).rsqrt()": "aten::rsqrt",
    "(x+3).acos()": "aten::acos",
    "(x*0).pow(-1.0)": "aten::pow",
    "torch.log1p(-x-5)": "aten::log1p",
    "(x.half()*70000).float()": "aten::mul",
    "(x-x).reciprocal()": "aten::reciprocal",
}
SHAPES = ["(8,)", "(72,70)", "(5000,)", "(3,4)", "(1,)"]
PASSED_ON = ["v.clone()", "v * 1.0", "v + 0.0", "v.reshape(-1)", "v.contiguous()"]
OVERWRITES = [
    *("v.copy_(torch.ones_like(v))", "v.zero_()", "v.fill_(2.)", "v.nan_to_num_(0., 0., 0.)", "v.normal_()"),
    *("torch.ones(v.shape, out=v)", "v[...] = 1.", "v.masked_fill_(~v.isfinite(), 0.)", "v.view(-1)[:] = 3."),
    *("torch.add(torch.ones_like(v), 1., out=v)", "v.set_(torch.ones_like(v))", "v.data = torch.ones_like(v)"),
    *("v.uniform_()", "torch._foreach_zero_([v])", "v.index_fill_(0, torch.arange(v.shape[0]), 1.)", "v.random_(0, 3)"),
]
GRADIENTS = {  # uses of a gradient that `loss.backward()` has made bad, and the expected report
    "opt.step()": "error",
    "if torch.isfinite(p.grad).all(): opt.step()": "silent",
    "opt.zero_grad(set_to_none=False); opt.step()": "silent",
    "opt.zero_grad(); opt.step()": "silent",
    "p.grad.nan_to_num_(0., 0., 0.); opt.step()": "silent",
    "p.grad = torch.nan_to_num(p.grad, 0., 0., 0.); opt.step()": "silent",
    "opt.step(lambda: loss)": "error",
    "p.grad = None": "silent",
    "(p * 2).sum().backward(); opt.step()": "error",
    "torch._foreach_mul_([p.grad], 0.5); opt.step()": "error",
    "pass": "error",
}
LOSSES = [
    *("torch.nan_to_num(p.sqrt())", "torch.where(p > 0, p.log(), torch.zeros_like(p))", "p.abs().pow(0.5)"),
    *("torch.sqrt(p * p)", "(p * p).pow(0.25)"),
]
OPTIMIZERS = [
    "SGD([p], lr=.1)",
    "Adam([p])",
    "AdamW([p], foreach=True)",
    "SGD([p], lr=.1, momentum=.9)",
    "RMSprop([p])",
]
PRELUDE = """import types, collections, functools, weakref
G = {}
class Slot:
    def __init__(self, v): self.v = v
def gen(v):
    yield 1
    yield v
class weakref_holder:
    def __init__(self, v): self.v = v; self.w = weakref.ref(self)
"""


@dataclasses.dataclass(frozen=True)
class Expectation:
    """The expected report: error, read, silent, warning, or anything; and where."""

    report: str
    line: int
    op: str | None


def generate(seed: int) -> tuple[Program, Expectation]:
    """Returns a program and what docs/harm.md says of it."""
    choice = random.Random(seed)
    expression, op = choice.choice(list(MAKERS.items()))
    with_gradient = choice.random() < 0.4
    leaf = ".requires_grad_()" if with_gradient else ""
    fate = choice.choice(["hold", "repair", "read", "drop", "root", "gradient", "overwrite", "unread"])
    first = 1
    if fate == "unread" and expression.endswith(".float()"):  # which reads the result of the multiplication
        expression, op = "(x*1e30)*(x*1e30)", "aten::mul"
    lines = [f"v = {expression}"]
    if choice.random() < 0.3 and fate != "unread":
        lines.append(f"v = {choice.choice(PASSED_ON)}")
    if fate == "gradient":
        handling, report = choice.choice(list(GRADIENTS.items()))
        lines = ["p = torch.nn.Parameter(torch.zeros(x.shape))", f"opt = torch.optim.{choice.choice(OPTIMIZERS)}"]
        lines += [f"loss = ({choice.choice(LOSSES)}).sum()", "loss.backward()", handling, "keep = p, opt"]
        first, expected_op = 3, None
    else:
        expected_op = op
        first += fate == "root"
        added, report = _fate(choice, fate, with_gradient)
        lines = (["p = torch.ones(4).requires_grad_()"] if fate == "root" else []) + lines + added
    head = PRELUDE + f"def make():\n    G.clear()\n    return torch.ones({choice.choice(SHAPES)}){leaf},\n"
    body = "".join(f"    {line}\n" for line in lines)
    source = head + "def program(x):\n" + body + "    return dict(keep=keep)\n"
    return Program("harm", seed, source), Expectation(report, head.count("\n") + 1 + first, expected_op)


def _fate(choice: random.Random, fate: str, with_gradient: bool) -> tuple[list[str], str]:
    if fate == "hold":
        return [choice.choice(templates("harm_hold")), "del v"], "error"
    if fate == "repair":
        kept = "keep = w.detach()" if with_gradient else choice.choice(templates("harm_after"))
        return [choice.choice(templates("harm_repair")), kept, "del v, w"], "silent"
    if fate == "read":
        return [each(choice, "{r}", "{r}", templates("harm_read")), "keep = None", "del v"], "error"
    if fate == "drop":
        return ["w = v * 2 + v", "del v, w", "keep = None"], "silent"
    if fate == "overwrite":
        writes = ["v = v.detach()", choice.choice(OVERWRITES)]
        return [*writes, "keep = v * 2", "z = (v + 1).sum().item()"], "silent"
    if fate == "root":
        return ["(p.sum() + v.detach().float().sum()).backward()", "keep = None", "del p, v"], "error"
    return ["del v", "keep = None"], "warning"


def disagreements(seed: int) -> list[Disagreement]:
    """Returns the differences between the reports and the page, with and without proofs."""
    program, expected = generate(seed)
    found = []
    for options in (PROOFS_ALONE, EXACT):
        watched = run(program, "watched", **options)
        watched.variables, facts = {}, watched.facts
        if watched.error is not None:
            continue  # a statement that is not for this shape
        complaint = _complaint(expected, facts, watched.internal_errors)
        if complaint:
            found.append(Disagreement(program, complaint, {"expected": expected, **options, "found": facts}))
    return found


def _complaint(expected: Expectation, facts: list[Fact], internal_errors: int) -> str | None:
    errors = [fact for fact in facts if fact[0] == "error"]
    if internal_errors:
        return "internal error"
    if expected.report == "error" and not errors:
        return "missed"
    if expected.report in ("silent", "warning") and errors:
        return "false alarm"
    if expected.report == "warning" and not facts:
        return "no warning"
    if len(errors) > 1:
        return "reported twice"
    if errors and errors[0][4][1] != expected.line:
        return "wrong line"
    if errors and expected.op and errors[0][3] != expected.op:
        return "wrong operation"
    return None
