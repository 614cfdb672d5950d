"""Statistics of gradients: one scan, and simple arithmetic with one row for each tensor."""

from __future__ import annotations

import math

import pytest
import torch

import torchnan
from tests.support.call_comparison import modes
from torchnan._load import _C
from torchnan.training.guard.step.gradients import gradients_of, measure, measure_gradients

INF, NAN = math.inf, math.nan


def named(*rows: list[float], dtype: torch.dtype = torch.float64) -> list[tuple[str, torch.Tensor]]:
    return [(f"p{i}", torch.tensor(row, dtype=dtype)) for i, row in enumerate(rows)]


def test_nothing_has_no_norm():
    assert measure([]).norm == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_norm_and_magnitude_are_those_of_all_elements(dtype):
    tensors = named([3.0, -4.0], [12.0], [0.0], dtype=dtype)
    stats = measure(tensors)
    assert (stats.norm, stats.max_abs, stats.nonfinite, stats.sharded) == (13.0, 12.0, (), False)


@pytest.mark.parametrize(
    ("rows", "norm", "max_abs", "nonfinite"),
    [
        (([1.0], [INF]), INF, INF, ("p1",)),
        (([1.0, NAN], [2.0]), NAN, NAN, ("p0",)),
        (([-INF], [2.0], [NAN]), NAN, NAN, ("p0", "p2")),
        (([NAN], [INF]), NAN, NAN, ("p0", "p1")),
    ],
)
def test_a_nan_outweighs_an_inf(rows, norm, max_abs, nonfinite):
    stats = measure(named(*rows))
    assert [repr(stats.norm), repr(stats.max_abs), stats.nonfinite] == [repr(norm), repr(max_abs), nonfinite]


def test_the_squares_of_large_norms_do_not_overflow_in_the_norm():
    assert measure(named([3e200], [4e200])).norm == pytest.approx(5e200)


def test_every_rank_holds_its_share_of_the_squares():
    """Without the tensors that are not finite, whose rank is known by then."""
    assert measure(named([3.0, 4.0], [NAN], [2.0, 0.0]), ranks=4).squares == (25.0 + 4.0) / 4


def parameters_with(*gradients: torch.Tensor | None) -> list[tuple[str, torch.Tensor]]:
    """Returns parameters that have these gradients."""
    named = []
    for i, gradient in enumerate(gradients):
        dtype, shape = (torch.float32, (2,)) if gradient is None else (gradient.dtype, gradient.shape)
        parameter = torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
        parameter.grad = gradient
        named.append((f"p{i}", parameter))
    return named


def bits(stats: object) -> str:
    return repr(stats)


def assert_measured_in_one_call(*gradients: torch.Tensor | None) -> None:
    """... with the same bits as one by one."""
    parameters = parameters_with(*gradients)
    assert _C.measure_gradients(parameters) is not None
    assert bits(measure_gradients(parameters)) == bits(measure(gradients_of(parameters)))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128]
)
@pytest.mark.parametrize("seed", range(5))
def test_gradients_are_measured_in_one_call(dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = [(3, 5), (1,), (), (0,), (2000,), (64, 64)]
    gradients = [torch.randn(size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]
    assert_measured_in_one_call(*gradients[:3], None, *gradients[3:])


@pytest.mark.parametrize("values", [[1e-320, 3e-310], [1e300, -1e308], [0.0], [], [INF], [NAN, INF], [-INF, 1e-300]])
def test_extreme_gradients_are_measured_in_one_call(values):
    odd = torch.tensor(values, dtype=torch.float64)
    assert_measured_in_one_call(torch.full((3,), 0.1), odd, None, odd.clone(), torch.tensor([1.0, NAN]), torch.ones(1))
    assert_measured_in_one_call(torch.full((3,), 0.1), odd, torch.full((5,), 1e-30))


def test_sparse_and_strided_gradients_are_measured_in_one_call():
    sparse = torch.sparse_coo_tensor([[1, 1, 4]], [2.0, 3.0, INF], (6,), check_invariants=True)
    assert_measured_in_one_call(sparse, torch.arange(12.0).reshape(3, 4).t(), torch.ones(1).expand(7))


def test_parameters_without_gradients_have_no_norm():
    assert bits(measure_gradients(parameters_with(None, None))) == bits(measure([]))
    assert bits(measure_gradients([])) == bits(measure([]))


def test_gradients_in_memory_are_measured_without_operations():
    """... which would allocate their results among the program's tensors."""
    parameters = parameters_with(torch.ones(3), torch.ones(2, 2, dtype=torch.bfloat16).t(), None, torch.tensor([]))
    sparse = parameters_with(torch.ones(3).to_sparse())
    seen = []
    with modes(seen):
        assert measure_gradients(parameters).norm == math.sqrt(7)
    assert seen == []
    with modes(seen):
        measure_gradients(sparse)
    assert torch.ops.torchnan.measure.default in seen


class Wrapped(torch.Tensor):
    """Holds its values in another tensor, as DTensor does."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        unwrapped = torch.utils._pytree.tree_map_only(Wrapped, lambda t: t.inner, (args, kwargs or {}))
        return func(*unwrapped[0], **unwrapped[1])


def test_gradients_of_a_subclass_are_measured_as_it_computes():
    parameters = parameters_with(torch.tensor([3.0, NAN]), torch.tensor([4.0]))
    parameters[1][1].grad = Wrapped(torch.tensor([5.0]))
    assert _C.measure_gradients(parameters) is None
    assert bits(measure_gradients(parameters)) == bits(measure(gradients_of(parameters)))
    assert measure_gradients(parameters).nonfinite == ("p0",)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("value", [0.1, -3.0, INF, NAN])
def test_losses_are_read_in_one_call(dtype, value):
    losses = [torch.full((), value, dtype=dtype), torch.full((1, 1), value, dtype=dtype, requires_grad=True)]
    assert bits(_C.loss_values(losses)) == bits(tuple(loss.item() for loss in losses))


def test_detection_does_not_see_a_loss_that_is_read():
    with torchnan.detect(action="log") as session:
        assert bits(_C.loss_values([torch.tensor(NAN)])) == "(nan,)"
    assert session.first is None


def test_other_losses_are_left_to_python():
    for loss in (torch.tensor(3), torch.tensor(True), Wrapped(torch.tensor(1.0))):
        assert _C.loss_values([torch.tensor(1.0), loss]) is None
