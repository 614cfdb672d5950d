"""The origin of a value that was overwritten, copied, inspected, or written as a constant."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import pytest
import torch
from torch import nn

import torchnan

NAN, INF = float("nan"), float("inf")


def findings_of(program, *arguments):
    with torchnan.detect(action="log") as watch:
        kept = program(*arguments)
    del kept
    return watch.findings


def operations(findings):
    return [(f.level, f.op, f.origin) for f in findings]


def line_of(function, offset: int) -> int:
    return inspect.getsourcelines(function)[1] + offset


# -- overwritten


def replaced_by_another():
    a = torch.tensor([-1.0, 1.0]).log()
    a[0] = torch.tensor(-1.0).sqrt()
    return a


def replaced_in_a_column():
    a = torch.ones(3, 2)
    a[:, 0].sub_(2).log_()
    a[:, 0] = torch.full((3,), -1.0).sqrt()
    return a


@pytest.mark.parametrize("program", [replaced_by_another, replaced_in_a_column], ids=lambda p: p.__name__)
def test_a_nan_that_replaces_another_is_the_one_reported(program):
    assert operations(findings_of(program)) == [("error", "aten::sqrt", "op")]


def test_of_two_values_in_one_tensor_each_keeps_its_origin():
    def program():
        a = torch.tensor([-1.0, -1.0, 1.0]).log()
        a[0] = torch.tensor(-1.0).sqrt()
        return a[0].item(), a[1].item()

    assert [f.op for f in findings_of(program)] == ["aten::sqrt", "aten::log"]


OVERWRITTEN = {
    "an element": lambda x: x.__setitem__(0, 0.0),
    "all": lambda x: x.fill_(0),
    "all by a copy": lambda x: x.copy_(torch.ones(2)),
    "all by out=": lambda x: torch.add(torch.ones(2), 1, out=x),
}


@pytest.mark.parametrize("write", OVERWRITTEN.values(), ids=OVERWRITTEN)
def test_a_value_that_is_overwritten_before_it_is_read_is_silent(write):
    def program():
        x = torch.tensor([0.0, 1.0]).log()
        write(x)
        return x.sum().item()

    assert findings_of(program) == []


# -- constants


CONSTANTS = {
    "full_like": lambda x, value: torch.full_like(x, value),
    "new_full": lambda x, value: x.new_full((3,), value),
    "fill_": lambda x, value: torch.empty_like(x).fill_(value),
    "fill": lambda x, value: torch.fill(x, value),
}


@pytest.mark.parametrize("make", CONSTANTS.values(), ids=CONSTANTS)
def test_a_constant_takes_nothing_from_the_tensor_whose_shape_it_has(make):
    def program(value):
        x = torch.zeros(3) / torch.zeros(3)
        if not torch.isfinite(x).all():
            x = make(x, value)
        return x.tolist()

    assert findings_of(program, NAN) == findings_of(program, -INF) == []  # as torch.full() is


def written_element(x):
    x[1, 4] = NAN
    return x


def written_row(x):
    x[1].fill_(NAN)
    return x


def chosen(x):
    return torch.where(x > 0.5, NAN, x)


def filled(x):
    return x.masked_fill(x > 0.5, NAN)


def filled_where_an_inf_was(x):
    return (x / 0).masked_fill(x > 0.5, NAN)


@pytest.mark.parametrize("write", [written_element, written_row, chosen, filled], ids=lambda p: p.__name__)
def test_a_nan_written_into_data_is_not_blamed_on_its_first_reader(write):
    def program():
        return (write(torch.ones(3, 15)) - torch.rand(3, 15)).sum().item()

    (finding,) = findings_of(program)
    assert finding.origin == "input"
    assert finding.constant
    assert finding.line == inspect.getsourcelines(write)[1] + 1
    assert f"made by   a constant, written by {finding.op}   at " in str(finding)


FACTORIES = {
    "full": lambda: torch.full((2, 3), NAN),
    "full_like": lambda: torch.full_like(torch.ones(2, 3), NAN),
    "new_full": lambda: torch.ones(2).new_full((2, 3), NAN),
    "tensor of rows": lambda: torch.tensor([[1.0, 2.0, NAN], [1.0, 1.0, 1.0]]),
    "tensor of a number": lambda: torch.tensor(NAN),
    "fill": lambda: torch.fill(torch.ones(2, 3), NAN),
    "pad": lambda: nn.functional.pad(torch.ones(2, 1), (1, 1), value=NAN),
}


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
def test_a_nan_that_a_factory_makes_is_a_constant_at_its_own_line(make):
    layer = nn.Sequential(nn.ReLU())

    def program(watch):
        x = make()
        watch.mark_step(2)
        return layer(x).sum().item()

    with torchnan.detect(action="log") as watch:
        program(watch)
    (finding,) = watch.findings
    assert (finding.origin, finding.constant) == ("input", True)
    assert (finding.line, finding.shape) == (inspect.getsourcelines(make)[1], tuple(make().shape))
    assert (finding.step, finding.module) == (2, "0")  # of the first use
    made_by = str(finding).split("\n")[1]
    how = "given to torch.tensor" if finding.op == "aten::lift_fresh" else f"written by {finding.op}"
    assert made_by.startswith(f"  made by   a constant, {how}   at ")
    assert made_by.endswith(f":{finding.line}, first used in 0 (ReLU)")
    assert "\n  lineage   constant -> " in str(finding)


def test_values_from_numpy_are_not_constants():
    def program():
        x = torch.from_numpy(np.array([1.0, NAN]))
        return (x + 1).sum().item()

    (finding,) = findings_of(program)
    assert (finding.origin, finding.constant, finding.op) == ("input", False, "aten::add")
    assert finding.line == line_of(program, 2)
    assert finding.hint == f"it came in at tests/detection/test_provenance.py:{line_of(program, 1)}"


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_a_constant_in_a_weight_has_the_line_of_its_writing_as_its_hint(kind):
    module = nn.BatchNorm1d(2).eval()

    def program():
        nn.init.constant_(module.weight if kind == "parameter" else module.running_mean, NAN)
        return module(torch.ones(3, 2)).sum().item()

    (finding,) = findings_of(program)
    assert (finding.origin, finding.line) == (kind, line_of(program, 2))
    assert finding.hint == f"it is a constant from tests/detection/test_provenance.py:{line_of(program, 1)}"


def test_an_operation_with_a_constants_infinities_is_distinguished_from_the_constant():
    def program():
        limit = torch.full((3,), INF)
        (torch.ones(5, 3, requires_grad=True) + limit).sum().backward()

    (finding,) = findings_of(program)
    assert (finding.op, finding.origin, finding.constant, finding.shape) == ("aten::add", "op", True, (3,))
    assert f"made by   aten::add with a constant   at tests/detection/test_provenance.py:{line_of(program, 2)}" in str(
        finding
    )
    assert "\n  constant  f32[3]  +inf 3\n" in str(finding)
    assert finding.hint.endswith(f"a constant from tests/detection/test_provenance.py:{line_of(program, 1)}")


def test_a_nan_that_is_filled_in_is_not_the_offspring_of_the_inf_beside_it():
    (finding,) = findings_of(lambda: filled_where_an_inf_was(torch.ones(3)).sum().item())
    assert finding.origin == "input"


@pytest.mark.parametrize("move", [lambda mask: mask, lambda mask: mask.clone()])
def test_the_lineage_of_a_constant_begins_after_the_computation_with_it(move):
    weight = nn.Parameter(torch.ones(3))

    def program():
        mask = move(torch.full((3,), -INF))
        (weight + mask).sum().neg().backward()

    (finding,) = findings_of(program)
    assert finding.op == "aten::add"
    assert [step.op for step in finding.lineage] == ["aten::sum", "aten::neg"]


# -- copies of bytes


def test_a_deep_copy_has_the_origin_of_its_original():
    def program(read):
        a = torch.full((5000,), -1.0).log()
        b = copy.deepcopy(a)
        del a
        return b.sum().item() if read else b

    for read in (False, True):
        assert operations(findings_of(program, read)) == [("error", "aten::log", "op")]


# -- inspected


def forward_value_compared(p):
    y = p.sqrt()
    return torch.where(y.isnan(), torch.zeros(2), y)


def repaired(p):
    return torch.nan_to_num(p.sqrt())  # its backward formula calls isfinite


def angle(p):
    return torch.nan_to_num(torch.atan2(p.sqrt(), p))  # its backward formula compares with zero


@pytest.mark.parametrize("program", [forward_value_compared, repaired, angle], ids=lambda p: p.__name__)
def test_a_held_gradient_is_reported_unless_it_was_checked(program):
    def held(look):
        p = torch.tensor([-1.0, 4.0], requires_grad=True)
        program(p).sum().backward()
        assert p.grad.isnan().any() if look else p.grad is not None
        return p

    assert [f.harm.kind for f in findings_of(held, False) if f.level == "error"] == ["alive"]
    assert [f.harm.kind for f in findings_of(held, True) if f.level == "error"] == []


@pytest.mark.parametrize("accumulated", [False, True])
def test_a_hook_that_looks_at_the_gradient_counts(accumulated):
    looks = []

    def look(p):
        looks.append(torch.isfinite(p.grad).all())

    def held():
        p = nn.Parameter(torch.zeros(2))
        p.register_post_accumulate_grad_hook(look)
        for _ in range(1 + accumulated):
            p.sqrt().sum().backward()
        return p

    assert findings_of(held) == []


# -- the line of an operation that wrote into a view


def test_an_operation_in_place_on_a_view_keeps_its_line_in_the_backward_pass():
    def program(x):
        v = x.clone()
        v[3:7].sqrt_()
        unrelated = v * 2
        torch.nan_to_num(unrelated).sum().backward()
        return x

    (finding,) = findings_of(program, torch.zeros(100, requires_grad=True))
    assert finding.phase == "backward"
    assert finding.line == line_of(program, 2)


def test_a_nan_in_the_table_that_ctc_loss_saves_is_its_own():
    """The table is not a result and intentionally holds -inf, so it is not scanned before the backward pass computes
    with it."""
    scores = torch.randn(50, 2, 20).log_softmax(-1)
    targets, lengths, ended = torch.randint(1, 20, (2, 10)), [50, 50], [10, 10]
    loss, table = torch._ctc_loss(scores, targets, lengths, ended)

    def program(table):
        arguments = (torch.ones(2), scores, targets, lengths, ended, loss, table, 0)
        return torch.ops.aten._ctc_loss_backward(*arguments).sum().item()

    assert findings_of(program, table) == []
    table[0, 20] = NAN
    assert operations(findings_of(program, table)) == [("error", "aten::_ctc_loss", "op")]


@pytest.fixture
def unwritten_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def grouped_product(x):
    """Of the first eight rows, in two groups; nothing writes the other rows."""
    weights = torch.ones(2, 16, 16, dtype=torch.bfloat16)
    return torch._grouped_mm(x, weights, offs=torch.tensor([4, 8], dtype=torch.int32))


@pytest.mark.usefixtures("unwritten_memory_is_nan")
@pytest.mark.parametrize("rows", [12, 600])  # of both a small and a large result
def test_rows_after_the_last_group_are_no_result(rows):
    tokens = torch.ones(8, 16, dtype=torch.bfloat16, requires_grad=True)
    with torchnan.detect(action="log") as watch:
        products = grouped_product(torch.cat([tokens, tokens.new_zeros(rows - 8, 16)]))
        torch.nn.functional.silu(products)[:8].sum().backward()
        has_rest = products[8:].isnan().all()
        del products
        assert tokens.grad.isfinite().all()
    assert watch.findings == []
    assert has_rest


@pytest.mark.usefixtures("unwritten_memory_is_nan")
def test_a_row_after_the_last_group_is_unwritten_memory():
    with torchnan.detect(action="log") as watch:
        y = grouped_product(torch.ones(12, 16, dtype=torch.bfloat16))
        y.sum().item()
    assert (watch.first.origin, watch.first.op) == ("uninit", "aten::_grouped_mm")
    assert watch.first.hint == "the product writes its groups: nothing has written to the memory after them"


@pytest.mark.usefixtures("unwritten_memory_is_nan")
def test_a_grouped_product_that_overflows_is_an_origin():
    with torchnan.detect(action="log") as watch:
        y = grouped_product(torch.full((12, 16), 3e38, dtype=torch.bfloat16))
        y[:8].sum().item()
    assert (watch.first.origin, watch.first.op, watch.first.shape) == ("op", "aten::_grouped_mm", (8, 16))


ROWS = {
    "cumprod": (lambda x: torch.cumprod(x, -1), 1e15),
    "mm": (lambda x: x @ torch.full((4, 4), 2.0), 3e38),
    "sum": (lambda x: x.sum(-1), 3e38),
    "mean": (lambda x: x.mean(-1), 3e38),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_infinity_in_another_row_does_not_explain_an_overflow(name):
    """The operation is not computed element by element, so it is repeated without the infinity."""
    function, large = ROWS[name]
    x = torch.ones(3, 4)
    x[0, 2] = INF
    with torchnan.detect(action="log") as session:
        padded = function(x)
    assert session.findings == [], "an intended infinity alone is silent"
    x[1] = large
    with torchnan.detect(action="log") as session:
        x[0, 2] = INF
        padded = function(x)
        padded[1:].mean().item()
    assert [(finding.op, finding.harm.kind) for finding in session.findings] == [(f"aten::{name}", "read")]
    assert session.stats()["internal_errors"] == 0


def times_a_sparse_mask():
    values = torch.ones(3)
    values[1] = -INF
    mask = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [1, 2, 0]]), values, (3, 3))
    return torch.sparse.mm(mask, torch.ones(3, 2))


def sum_of_a_sparse_mask():
    values = torch.ones(3)
    values[1] = -INF
    return torch.sparse.sum(torch.sparse_coo_tensor(torch.tensor([[0, 1, 2]]), values, (3,)), 0)


def product_of_nested_masks():
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    parts[0][0, 1] = -INF
    nested = torch.nested.nested_tensor(parts)
    return torch.matmul(nested, torch.ones(2, 3, 2))


def determinant_of_an_infinity():
    """A matrix of zeros is singular."""
    matrix = torch.zeros(2, 2)
    matrix[0, 0] = matrix[1, 1] = INF
    return torch.logdet(matrix)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "program", [determinant_of_an_infinity, times_a_sparse_mask, sum_of_a_sparse_mask, product_of_nested_masks]
)
def test_a_mask_that_cannot_be_taken_out_is_silent(program):
    with torchnan.detect(action="log") as session:
        try:
            kept = program()
        except RuntimeError as error:  # nested tensors are a prototype
            kept = error
    assert session.findings == []
    assert session.stats()["internal_errors"] == 0
    del kept


def test_a_masked_row_is_silent_where_an_operation_passes_it_on():
    scores = torch.randn(3, 4).masked_fill(torch.tensor([[True], [False], [False]]), -INF)
    with torchnan.detect(action="log") as session:
        scores = scores.masked_fill(torch.tensor([[True], [False], [False]]), -INF)
        kept = [scores.amax(-1), scores.sum(-1), scores.logsumexp(-1), scores.log_softmax(0), scores.cumsum(-1)]
        kept[0][1:].sum().item()
    assert session.findings == []
    del kept


# -- values that depend on a NaN


LIKE = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 2.0),
    "new_zeros": lambda x: x.new_zeros(3),
}


@pytest.mark.parametrize("make", LIKE.values(), ids=LIKE)
def test_a_tensor_of_the_same_size_does_not_depend_on_the_values(make):
    def program():
        index = (torch.zeros(3, 4) / 0).argmax(-1)
        make((index == 0).float()).tolist()

    assert findings_of(program) == []


# -- operators of user code


@torch.library.custom_op("torchnan_tests::full", mutates_args=())
def scale_of(x: torch.Tensor) -> torch.Tensor:
    return torch.full((3,), 1.0) / x


def test_an_operator_of_user_code_with_the_name_of_one_of_pytorch_is_an_origin():
    (finding,) = findings_of(lambda: scale_of(torch.zeros(3)).sum().item())
    assert (finding.op, finding.kind, finding.harm.kind) == ("torchnan_tests::full", "inf", "read")
