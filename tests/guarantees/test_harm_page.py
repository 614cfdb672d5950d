"""NaN and Inf that are intentional, repaired or harmful: reported or silent exactly as docs/harm.md says, row by
row."""

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


# -- reported: by kind of harm

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


@told("gradient")
def a_gradient_that_a_scaler_lets_pass():
    x = weight(1.0)
    optimizer, scaler = torch.optim.SGD([x], lr=1.0), torch.amp.GradScaler("cpu", init_scale=1e-40)
    scaler.scale(x.sum()).backward()
    scaler.step(optimizer)


@told("gradient")
def a_step_that_is_taken_after_the_scaler_has_looked():
    x = weight(0.0)
    optimizer, scaler = torch.optim.SGD([x], lr=1.0), torch.amp.GradScaler("cpu")
    scaler.scale(x.sqrt().sum()).backward()
    scaler.unscale_(optimizer)
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
def unread_value():
    t(-1.0).log()


@told("unused")
def what_only_a_slice_was_taken_of():
    return (t(0, 1) / t(0, 1))[1:].tolist()


# -- silent: by the row of the page

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
    lambda: torch.where(t(-1, 1).log() > 0, t(1, 2), 0.0).tolist(),
    lambda: t(1, 2)[t(-1, 1).log() >= 0].tolist(),
    lambda: t(1, 2).masked_fill(t(-1, 1).log() < 0, 5.0).sum().item(),
):
    silent(
        "`where`, `masked_fill`, `nan_to_num`, indexing, `softmax` of some `-inf`, `min`, `max`, comparison to select"
    )(_ending)


@silent("`isfinite(x).all()`, `isnan(x).sum()`, `x == x` and the like")
def the_program_looks():
    x = t(-1.0).log()
    looks = torch.isfinite(x).all(), x.isnan().any(), (x == x).all(), (x != x).any(), x.isnan() | (x < 0)
    return [bool(look) for look in looks], x.isnan().sum().item()


@silent("a gradient hook that cleans")
def a_hook_cleans():
    x = weight(0.0)
    optimizer = torch.optim.SGD([x], lr=1.0)
    x.register_hook(torch.nan_to_num)
    x.sqrt().sum().backward()
    optimizer.step()


SKIPPED = "a step that `GradScaler` skips"


@silent(SKIPPED)
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


@silent(SKIPPED)
def a_scaler_skips_the_generators_step():
    generator, discriminator = weight(1.0), weight(2.0)
    one, _ = torch.optim.SGD([generator], lr=1.0), torch.optim.SGD([discriminator], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    scaler.scale((generator * discriminator * 9).sum()).backward()
    scaler.step(one)
    scaler.update()
    return generator, discriminator


@silent(SKIPPED)
def a_scaler_skips_a_fused_step():
    x, y = weight(0.0), weight(0.0)
    optimizer, scaler = torch.optim.Adam([x], lr=1.0, fused=True), torch.amp.GradScaler("cpu")
    scaler.scale((x.sqrt() + y.sqrt()).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return x, y


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


# -- integers and comparisons: by the row of the page

FOLLOWED: dict[str, list[Callable[[], object]]] = {}


def followed(row: str, *programs: Callable[[], object]) -> None:
    FOLLOWED[row] = list(programs)


def nothing_but_nan() -> torch.Tensor:
    return torch.full((4, 5), -1.0).log()


def one_bad_row() -> torch.Tensor:
    """As with padding: the other elements are finite."""
    scores = torch.arange(20.0).view(4, 5)
    return scores / (scores.sum(1, keepdim=True) != 60)  # row 2 is Inf


def padded() -> torch.Tensor:
    return one_bad_row() * t(1, 1, 0, 1)[:, None]


def greedy_decoding() -> list[int]:
    table, tokens = torch.ones(5, 3), torch.zeros(4, 3, dtype=torch.long)
    for i in range(1, 3):
        hidden = table[tokens[:, i - 1]] * 0
        tokens[:, i] = (hidden / hidden.norm(dim=-1, keepdim=True)).argmax(-1)
    return tokens.tolist()


def quantize() -> float:
    weights = torch.zeros(4, 4)
    scale = weights.abs().amax() / 127
    return (torch.ones(2, 4) @ (weights / scale).round().to(torch.int8).float()).sum().item()


followed(
    "`argmax`, `argmin`, indices of `topk`, `sort` and `max(dim)`, `searchsorted` of NaN, and what they look up",
    lambda: nothing_but_nan().argmax().item(),
    lambda: nothing_but_nan().argmin(1).tolist(),
    lambda: nothing_but_nan().topk(2).indices.numpy(),
    lambda: nothing_but_nan().sort().indices[0, 0].item(),
    lambda: repr(nothing_but_nan().max(1).indices),
    lambda: torch.searchsorted(torch.arange(5.0), nothing_but_nan()).tolist(),
    lambda: torch.rand(9, 3)[nothing_but_nan().argmax(1)].sum().item(),
    lambda: nn.functional.embedding(nothing_but_nan().argmax(1), torch.rand(9, 3)).matmul(torch.rand(3, 3)).tolist(),
    lambda: torch.rand(4, 5, requires_grad=True).gather(1, nothing_but_nan().argmax(1)[:, None]).sum().backward(),
    lambda: nothing_but_nan().argmax(1),
    lambda: padded().argmax(1)[2].item(),
)
followed(
    "`.long()`, `.to(torch.int8)`, `int_tensor.copy_()` of NaN or Inf",
    lambda: nothing_but_nan().long().tolist(),
    lambda: (torch.ones(3) / 0).int().tolist(),
    lambda: torch.zeros(4, 5, dtype=torch.int16).copy_(nothing_but_nan()).sum().item(),
    quantize,
    lambda: nn.functional.embedding(nothing_but_nan().long().clamp(0, 3), torch.arange(8.0).view(4, 2)).sum().item(),
    lambda: torch.arange(9.0)[(nothing_but_nan() / 0.1).int().clamp(1, 8)].sum().item(),
    lambda: nn.functional.one_hot((torch.ones(3) / 0).long().clamp(0, 3), 4).tolist(),
)


def attention(query: torch.Tensor, keys: int) -> torch.Tensor:
    torch.manual_seed(0)
    key, value = torch.rand(1, 2, keys, 8), torch.rand(1, 2, keys, 8)
    return nn.functional.scaled_dot_product_attention(query, key, value)


def query_with_a_bad_row() -> torch.Tensor:
    return torch.ones(1, 2, 3, 8) / t(1, 0, 1)[:, None] * t(1, 0, 1)[:, None]


def classified() -> torch.Tensor:
    return nn.functional.multi_margin_loss(nothing_but_nan(), torch.zeros(4, dtype=torch.long))


def sampled(padding_mode: str) -> torch.Tensor:
    grid = nothing_but_nan()[:2, :4].reshape(1, 2, 2, 2)
    return nn.functional.grid_sample(torch.ones(1, 3, 4, 4), grid, "nearest", padding_mode, align_corners=False)


followed(
    "`sign`, `sgn`, `heaviside`, `multi_margin_loss`, `multilabel_margin_loss`, `grid_sample`, fake quantization and "
    "attention to a few keys, where they return a number for a NaN",
    lambda: nothing_but_nan().sign().sum().item(),
    lambda: nothing_but_nan().sgn().tolist(),
    lambda: torch.heaviside(nothing_but_nan(), torch.ones(())).mean().item(),
    lambda: padded().sign()[2].tolist(),
    lambda: nothing_but_nan().sum().sign().item(),
    lambda: classified().item(),
    lambda: (classified() * weight(1.0)).sum().backward(),
    lambda: nn.functional.multilabel_margin_loss(nothing_but_nan(), torch.zeros(4, 5, dtype=torch.long)).item(),
    lambda: sampled("zeros").sum().item(),
    lambda: sampled("border").sum().item(),
    lambda: torch.fake_quantize_per_tensor_affine(nothing_but_nan(), 0.1, 0, 0, 255).sum().item(),
    lambda: attention(nothing_but_nan().sum() * torch.ones(1, 2, 3, 8), 5).tolist(),
    lambda: attention(query_with_a_bad_row(), 5)[0, 0, 1].tolist(),
    lambda: attention(query_with_a_bad_row(), 5),
)
followed(
    "the accuracy, a histogram, tokens that were computed from such an integer",
    lambda: (nothing_but_nan().argmax(1) == 0).float().mean().item(),
    lambda: (nothing_but_nan().argmax(1) == 7).float().mean().item(),
    lambda: torch.zeros((), dtype=torch.long).add_((nothing_but_nan().argmax(1) == 0).sum()).item(),
    lambda: torch.bincount(nothing_but_nan().argmax(1)).tolist(),
    lambda: torch.cat([torch.zeros(4, dtype=torch.long), nothing_but_nan().argmax(1)]).tolist(),
    greedy_decoding,
)
followed(
    "`if loss < best`, `while change > tolerance` with a NaN",
    lambda: bool(nothing_but_nan().sum() < torch.tensor(INF)),
    lambda: bool((nothing_but_nan() - 1).abs().max() > 1e-3),
)
followed(
    "`argmax`, `topk`, `sort`, comparisons with an Inf or a mask of `-inf`: `loss < inf`, `max` from `-inf` on",
    lambda: torch.arange(12.0).view(3, 4).masked_fill(torch.eye(3, 4) > 0, -INF).argmax(1).tolist(),
    lambda: torch.arange(12.0).view(3, 4).masked_fill(torch.eye(3, 4) > 0, -INF).topk(2).indices.tolist(),
    lambda: (torch.arange(12.0).view(3, 4) + torch.eye(3, 4).log()).sort().indices.tolist(),
    lambda: bool(t(1.0) < torch.tensor(INF)),
    lambda: torch.maximum(torch.tensor(-INF), t(1, 2)).max().item(),
    lambda: torch.minimum(torch.tensor(INF), t(1, 2)).argmin().item(),
)
followed(
    "an element that depends on a NaN, but is masked, overwritten, multiplied by 0 or not read, as for padding",
    lambda: padded().argmax(1)[torch.tensor([0, 1, 3])].tolist(),
    lambda: ((padded().argmax(1) == 1) & torch.tensor([True, True, False, True])).sum().item(),
    lambda: torch.where(torch.tensor([True, True, False, True]), padded().argmax(1), -1).tolist(),
    lambda: (padded().argmax(1) * torch.tensor([1, 1, 0, 1])).sum().item(),
    lambda: padded().argmax(1).index_fill_(0, torch.tensor([2]), -1).tolist(),
    lambda: padded().argmax(1)[0].item(),
    lambda: padded().sign()[0].tolist(),
    lambda: attention(query_with_a_bad_row(), 5)[:, :, 0].tolist(),
    lambda: attention(query_with_a_bad_row(), 50)[:, :, 0].tolist(),
    lambda: padded().long().clamp(0, 3)[:2].tolist(),
    lambda: nothing_but_nan().argmax(1).fill_(0).tolist(),
    lambda: nothing_but_nan().argmax(1).random_(3).tolist(),
)
followed(
    "indices of finite elements in a tensor with NaN, and the values of `sort` without those at its end",
    lambda: (t(3, 1, 2, 0) / t(1, 1, 1, 0)).sort().indices[:3].tolist(),
    lambda: (t(3, 1, 2, 0) / t(1, 1, 1, 0)).sort().values[:3].tolist(),
    lambda: (t(3, 1, 2, 0) / t(1, 1, 1, 0)).nanquantile(0.5).item(),
)


def rejected_step() -> bool:
    """Like adaptive solvers."""
    error = (t(1, 2) * 1e30 - t(1, 2) * 1e30 / t(1, 0)).mean()
    accepted = error <= 1
    torch.where(torch.isfinite(error), error, torch.tensor(1e-8)).item()
    return bool(accepted)


followed(
    "an ordered comparison in a program that checks the same value with `isfinite` or `isnan` before it reads "
    "the result",
    rejected_step,
    lambda: [bool(x.isnan().any()) or bool(x.max() > 5) for x in (nothing_but_nan(),)],
)
followed(
    "an elementwise comparison: `(iou > 0.5).tolist()`, one by which `where`, `masked_fill` or `x[mask]` selects, "
    "or one that is only kept",
    lambda: (nothing_but_nan() > 0.5).tolist(),
    lambda: torch.where(nothing_but_nan() > 0, 1.0, 2.0).sum().item(),
    lambda: torch.ones(4, 5).masked_fill(nothing_but_nan() <= 0, 3.0).tolist(),
    lambda: torch.ones(4, 5)[nothing_but_nan() > 0].sum().item(),
    lambda: nothing_but_nan() > 0,
)
followed(
    "`isnan`, `isfinite`, `x == x`, `x != x`, `count_nonzero`, `.bool()`",
    lambda: nothing_but_nan().isnan().sum().item(),
    lambda: bool(nothing_but_nan().isfinite().all()),
    lambda: torch.count_nonzero(nothing_but_nan()).item(),
    lambda: bool(nothing_but_nan().bool().all()),
)

# -- the page itself

PAGE = (REPOSITORY / "docs" / "harm.md").read_text()


def rows(section: str) -> list[list[str]]:
    """The rows of the table in this section."""
    text = PAGE.split(f"## {section}", 1)[1].split("\n## ", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)[2:]]


def test_every_row_of_the_page_is_here():
    """Fails when docs/harm.md gets a row, or loses one, without a program for it."""
    kinds = {cells[2].strip("`") for cells in rows("Harm")} | {"unused"}
    assert set(TOLD) == kinds
    promised_in_words = {row for row in SILENT if row.startswith("A ")}
    assert all(row.split("`")[-1].strip() in " ".join(PAGE.split()) for row in promised_in_words)
    assert set(SILENT) - promised_in_words == {cells[0] for cells in rows("Silent")}
    assert list(FOLLOWED) == [cells[0] for cells in rows("Integers and comparisons")]


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
def test_each_harm_of_the_page_is_reported_once(kind, program):
    assert [finding.harm.kind for finding in findings_of(program)] == [kind]


@pytest.mark.parametrize(("row", "program"), programs(SILENT))
def test_each_silent_case_of_the_page_is_silent(row, program):
    assert findings_of(program) == []


IS_REPORTED = {cells[0]: cells[1] == "yes" for cells in rows("Integers and comparisons")}


@pytest.mark.parametrize(("row", "program"), programs(FOLLOWED))
def test_an_integer_is_reported_where_it_depends_on_a_nan(row, program):
    findings = findings_of(program)
    assert len(findings) == IS_REPORTED[row]
    assert all(finding.harm.kind in ("read", "backward", "alive") for finding in findings)
