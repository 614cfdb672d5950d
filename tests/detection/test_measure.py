"""torch.ops.torchnan.measure: norm and largest magnitude of many tensors in one pass."""

from __future__ import annotations

import math

import pytest
import torch

import torchnan

ops = torch.ops.torchnan

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def by_definition(x: torch.Tensor) -> torch.Tensor:
    if x.layout != torch.strided:
        x = x.to_dense()
    parts = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).double()
    most = parts.abs().max() if parts.numel() else torch.zeros((), dtype=torch.float64)
    return torch.stack([torch.linalg.vector_norm(parts), most])


def assert_measures(tensors: list[torch.Tensor]) -> None:
    measured = ops.measure(tensors)
    assert (measured.dtype, measured.device.type, measured.requires_grad) == (torch.float64, "cpu", False)
    torch.testing.assert_close(measured, torch.stack([by_definition(x) for x in tensors]), rtol=1e-13, atol=0)


def test_equals_the_definition_for_every_dtype_in_one_call():
    assert_measures([torch.randn(1000 + i).to(dtype) for i, dtype in enumerate(DTYPES)])


def test_equals_the_definition_for_every_layout():
    x = torch.randn(40, 30, 20)
    assert_measures(
        [
            x.permute(2, 0, 1),
            x[:, ::2],
            x[3:, :, 5:7],
            x[..., :1].expand(40, 30, 9),
            x.as_strided((100, 7), (3, 1)),
            x[0, 0, 0],
            x[:0],
            torch.randn(8, dtype=torch.complex64).conj(),
            torch.randn(3, 3, dtype=torch.complex64).imag,
        ]
    )


def test_counts_an_element_of_a_sparse_tensor_once():
    twice = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 3]]), torch.tensor([3.0, 1.0, 2.0]), (5,), check_invariants=True
    )
    assert_measures([twice, torch.eye(4).to_sparse_csr(), torch.zeros(3).to_sparse()])


def test_a_large_tensor_beside_many_small_ones():
    assert_measures([torch.randn(1 << 20), *(torch.randn(i) for i in range(300))])


@pytest.mark.parametrize("dtype", DTYPES)
def test_tells_nan_before_inf_and_only_where_they_are(dtype):
    def measured(*values: float) -> list[float]:
        return ops.measure([torch.ones(100, dtype=torch.float32).to(dtype), torch.tensor(values).to(dtype)])[1].tolist()

    assert all(math.isnan(x) for x in measured(1.0, float("nan"), 2.0))
    assert ops.measure([torch.ones(100).to(dtype)]).tolist() == [[10.0, 1.0]]
    if dtype is torch.float8_e4m3fn:  # has no Inf
        return
    assert measured(1.0, -float("inf")) == [float("inf")] * 2
    assert all(math.isnan(x) for x in measured(-float("inf"), float("nan")))


def test_the_norm_is_right_where_squares_overflow_or_vanish():
    scale = torch.tensor([1e300, 1e-300], dtype=torch.float64)
    measured = ops.measure([torch.full((10000,), x, dtype=torch.float64) for x in scale.tolist()])
    torch.testing.assert_close(measured[:, 0], scale * 100, rtol=1e-13, atol=0)
    assert torch.equal(measured[:, 1], scale)


def test_nothing_is_nothing():
    assert ops.measure([]).shape == (0, 2)
    assert ops.measure([torch.empty(0), torch.empty(2, 0)]).tolist() == [[0.0, 0.0]] * 2


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_a_dtype_without_a_norm_is_rejected(dtype):
    for device in ("cpu", "meta"):
        with pytest.raises(RuntimeError, match=r"tensor 1 of 2 is of dtype (Long|Bool)"):
            ops.measure([torch.ones(2, device=device), torch.ones(2, dtype=dtype, device=device)])


def test_an_unreadable_tensor_is_rejected():
    with pytest.raises(RuntimeError, match=r"tensor 0 is on cpu and tensor 1 on meta: call it once for each device"):
        ops.measure([torch.ones(2), torch.ones(2, device="meta")])
    freed = torch.ones(100)
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"shape \[100\] has been freed"):
        ops.measure([freed])


def test_has_no_derivative():
    measured = ops.measure([torch.ones(3, requires_grad=True)])
    with pytest.raises(RuntimeError, match=r"derivative for torchnan::measure is not implemented"):
        measured.sum().backward()


def test_works_in_torchscript():
    @torch.jit.script
    def f(x: torch.Tensor):
        return torch.ops.torchnan.measure([x, 2 * x])

    assert f(torch.ones(4)).tolist() == [[2.0, 1.0], [4.0, 2.0]]


def test_runs_no_other_operation_than_making_the_result():
    tensors = [torch.randn(100, 7)[:, ::2], torch.randn(1 << 20)]
    with torch.profiler.profile() as profile:
        ops.measure(tensors)
    assert {event.name for event in profile.events()} == {"torchnan::measure", "aten::empty"}


def test_a_detection_changes_nothing_and_is_changed_by_nothing():
    tensors = [torch.randn(1000), torch.tensor([1.0, float("nan")])]
    alone = ops.measure(tensors)
    with torchnan.detect() as watch:
        watched = ops.measure(tensors)
        before = ops.stats()["ops"]
        ops.measure(tensors[:1])
        assert ops.stats()["ops"] == before + 1
        torch.testing.assert_close(watched, alone, rtol=0, atol=0, equal_nan=True)
        del watched
    assert not watch.findings


def test_to_measure_a_gradient_is_to_look_at_it():
    """A step that is skipped after a check of the gradients is not reported; a step without a check is."""

    def leave_out_the_step(*, look: bool) -> list[str]:
        weight = torch.zeros(2, requires_grad=True)
        with torchnan.detect(action="log") as watch:
            (weight * 1).sqrt().sum().mul(0).backward()
            if look:
                ops.measure([weight.grad])
        return [finding.op for finding in watch.findings]

    assert leave_out_the_step(look=False)
    assert not leave_out_the_step(look=True)


def test_values_computed_from_a_measured_norm_are_reported_with_its_origin():
    with torchnan.detect(action="log") as watch:
        norm = ops.measure([torch.zeros(3).log()])[0, 0]
        norm.item()
        del norm
    assert watch.first.op == "aten::log"
    assert watch.first.lineage[0].op == "torchnan::measure"
