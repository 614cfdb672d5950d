"""NaN and Inf that are meant, mended or harmful: told or silent exactly as docs/harm.md has it, row by row."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import torchnan
from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.guarantee(4)

NAN, INF = float("nan"), float("inf")


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def weight(*values: float) -> nn.Parameter:
    return nn.Parameter(t(*values))


def step_with(gradient: torch.Tensor, parameter: nn.Parameter, **options: bool) -> nn.Parameter:
    parameter.grad = gradient
    torch.optim.SGD([parameter], lr=1.0, **options).step()
    return parameter


def nothing_to_mend() -> None:
    t(4, 9).sqrt().sum().item()


# -- told: by what it harms

TOLD: dict[str, list[Callable[[], object]]] = {}


def told(*kinds: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def add(program: Callable[[], object]) -> Callable[[], object]:
        TOLD.setdefault(" ".join(kinds), []).append(program)
        return program

    return add


@told("backward")
def a_root_of_backward():
    (weight(-1.0) * 1).log().sum().backward()


@told("backward")
def a_root_of_grad():
    x = weight(-1.0)
    torch.autograd.grad(x.log().sum(), x)


@told("gradient")
def the_gradient_of_a_leaf():
    x = weight(0.0)
    optimizer = torch.optim.SGD([x], lr=1.0)
    x.sqrt().sum().backward()
    optimizer.step()


@told("parameter")
def a_parameter_that_an_optimizer_has_spoilt():
    return step_with(t(3e38), weight(-3e38))


@told("parameter")
def a_weight_that_was_spoilt_by_hand_and_is_read():
    layer = nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.div_(layer.weight * 0)
    return layer(t(1.0)).detach().isfinite()


@told("parameter")
def a_weight_that_is_spoilt_at_the_end():
    layer = nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.copy_(t(0.0).log().view(1, 1))
    return layer


@told("optimizer_state")
def the_state_of_an_optimizer():
    x = weight(1.0)
    optimizer = torch.optim.Adam([x], foreach=False)
    x.grad = t(1e30)
    optimizer.step()


for _read in (
    lambda: t(-1.0).log().item(),
    lambda: t(-1.0).log().tolist(),
    lambda: t(-1.0).log().numpy(),
    lambda: print(t(-1.0).log(), file=sys.stderr),
    lambda: float(t(-1.0).log()),
    lambda: math.isfinite(t(-1.0).log().item()),  # "Reported even if you handle it yourself"
    lambda: np.asarray(t(-1.0).log()),
):
    told("read")(_read)


@told("guard")
def a_guard():
    torchnan.guard(t(-1.0).log(), "scores")


@told("alive")
def what_is_held_at_the_end():
    return t(-1.0).log()


@told("alive")
def a_mask_times_zero():
    return torch.full((2,), -INF) * 0


@told("alive")
def a_softmax_of_nothing_but_mask():
    return torch.full((1, 3), -INF).softmax(-1)


@told("unused")
def what_nobody_has_read():
    t(-1.0).log()


@told("unused")
def what_only_a_slice_was_taken_of():
    return (t(0, 1) / t(0, 1))[1:].tolist()


# -- silent: by what the page says of it

SILENT: dict[str, list[Callable[[], object]]] = {}


def silent(row: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def add(program: Callable[[], object]) -> Callable[[], object]:
        SILENT.setdefault(row, []).append(program)
        return program

    return add


for _ending in (
    lambda: torch.where(t(0, 1) > 0, t(0, 1).log(), 0.0),
    lambda: t(0, 1).log().masked_fill(t(0, 1) == 0, 0.0),
    lambda: (t(0, 1) / t(0, 1)).nan_to_num(),
    lambda: t(0, 1).log()[[1]],
    lambda: t(0, 1).log().softmax(0),
    lambda: torch.minimum(1 / t(0, 1), t(5, 5)),
    lambda: (1 / t(0, 1)).min(),
    lambda: t(0, 1).log().max(),
    lambda: t(0, 1).log() > 0,
):
    silent("`where`, `masked_fill`, `nan_to_num`, indexing, `softmax` of some `-inf`, `min`, `max`, comparison")(
        _ending
    )


@silent("`isfinite(x).all()` and the like")
def the_program_looks():
    x = t(-1.0).log()
    return bool(torch.isfinite(x).all()) or bool(x.isnan().any())


@silent("a gradient hook that cleans")
def a_hook_cleans():
    x = weight(0.0)
    optimizer = torch.optim.SGD([x], lr=1.0)
    x.register_hook(torch.nan_to_num)
    x.sqrt().sum().backward()
    optimizer.step()


@silent("`GradScaler`")
@silent("A `GradScaler` that skips every step because of a true 0/0")
def a_scaler_skips():
    x = weight(0.0)
    optimizer, scaler = torch.optim.SGD([x], lr=1.0), torch.amp.GradScaler("cpu")
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale((x / x).nan_to_num().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return x


@silent("an optimizer step that user code skips")
def the_program_skips():
    x = weight(0.0)
    optimizer = torch.optim.SGD([x], lr=1.0)
    x.sqrt().sum().backward()
    if torch.isfinite(x.grad).all():
        optimizer.step()
    return x


@silent("a weight that an initializer cleans")
def an_initialiser_cleans():
    x = weight(1.0, -1.0, 0.0)
    with torch.no_grad():
        x.erfinv_().clamp_(-2, 2)
    return x


@silent("a mask made by `log(0)` that is still referenced")
def a_kept_mask():
    mask = t(0, 1).log()
    weights = (t(1, 2) + mask).softmax(0)
    return mask, weights


for _constant in (
    lambda: torch.full((2,), -INF),
    lambda: t(1.0, 2.0).masked_fill(t(0, 1) > 0, -INF),
    lambda: torch.tensor(INF),
    lambda: torch.full((2,), -INF).tolist(),
    lambda: repr(torch.full((2,), -INF)),
    lambda: torch.full((2,), -INF).clone() + 1,
):
    silent("masks and constants: `full(-inf)`, `masked_fill(..., -inf)`, `torch.tensor(inf)`")(_constant)


for _overwritten in (lambda x: x.__setitem__(0, 0.0), lambda x: x.fill_(0), lambda x: torch.add(t(1, 1), 1, out=x)):

    @silent("a value that is overwritten before it is read (`x[0] = 0`, `fill_`, `out=`)")
    def overwritten_unread(write=_overwritten):
        x = t(0, 1).log()
        write(x)
        return x.sum().item()


@silent(
    "an operation that returns `info`, such as `linalg.inv_ex` in `linalg.inv`, and whose result nothing uses",
)
def an_inverse_that_is_refused():
    with contextlib.suppress(torch.linalg.LinAlgError):
        torch.linalg.inv(torch.zeros(2, 2))
    torch.linalg.inv_ex(torch.zeros(2, 2))


@silent("`empty` memory that is written before it is read")
def written_first():
    return torch.empty(3).fill_(1.0) * 2


# -- the page itself

PAGE = (REPOSITORY / "docs" / "harm.md").read_text()


def rows(section: str) -> list[list[str]]:
    """Of the table in this section."""
    text = PAGE.split(f"## {section}", 1)[1].split("\n## ", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)[2:]]


def test_every_row_of_the_page_is_here():
    """Fails when docs/harm.md gets a row, or loses one, without a program for it."""
    kinds = {cells[2].strip("`") for cells in rows("Harm")} | {"unused"}
    assert set(TOLD) == kinds
    promised_in_words = {row for row in SILENT if row.startswith("A ")}
    assert all(row.split("`")[-1].strip() in " ".join(PAGE.split()) for row in promised_in_words)
    assert set(SILENT) - promised_in_words == {cells[0] for cells in rows("Silent")}


def programs(table: dict[str, list[Callable[[], object]]]) -> list[object]:
    return [
        pytest.param(said, program, id=f"{re.sub(r'[^a-z]+', '-', said.lower())[:40]}-{program.__name__}-{i}")
        for said, its_programs in table.items()
        for i, program in enumerate(its_programs)
    ]


def findings_of(program: Callable[[], object]) -> list[torchnan.Finding]:
    with torchnan.detect(action="log") as watch:
        held = program()
        nothing_to_mend()
    del held
    return watch.findings


@pytest.mark.filterwarnings("ignore:.*nothing used it")
@pytest.mark.parametrize(("kind", "program"), programs(TOLD))
def test_what_the_page_calls_harm_is_reported_once(kind, program):
    assert [finding.harm.kind for finding in findings_of(program)] == [kind]


@pytest.mark.parametrize(("row", "program"), programs(SILENT))
def test_what_the_page_calls_silent_is_silent(row, program):
    assert findings_of(program) == []
