"""torchnan.origin_of(): where the values of a tensor came from, without a report."""

from __future__ import annotations

import inspect

import pytest
import torch

import torchnan
from torchnan import origin_of

INF = float("inf")


def this_line() -> int:
    return inspect.currentframe().f_back.f_lineno


def test_the_operation_and_its_line_are_named():
    with torchnan.detect(action="log"):
        x = torch.zeros(3).log()
        line = this_line() - 1
        loss = (x * 0).sum()
        found = origin_of(loss)
    assert (found.op, found.line, found.kind, found.level) == ("aten::log", line, "inf", "note")
    assert found.harm.kind == "none"
    assert [step.op for step in found.lineage] == ["aten::mul", "aten::sum"]
    assert "made by   aten::log" in str(found)


def test_a_finite_tensor_has_none():
    with torchnan.detect():
        assert origin_of(torch.ones(3)) is None
        assert origin_of(torch.arange(3)) is None
        assert origin_of(torch.empty(0)) is None


def test_asking_reports_nothing_and_leaves_the_report_as_it_would_have_been():
    def run(asks: bool) -> list[str]:
        with torchnan.detect(action="log") as watch:
            x = torch.tensor([1.0, 0.0], requires_grad=True)
            y = (x / x).sum()
            if asks:
                assert origin_of(y).op == origin_of(y).op == "aten::div"
                assert watch.findings == []
            y.backward()
            found = [(one.level, one.op, one.line, one.harm.kind) for one in watch.findings]
        return found

    assert run(True) == run(False)
    assert len(run(True)) == 1


def test_it_does_not_raise_under_raise():
    with torchnan.detect():
        x = torch.tensor(-1.0).sqrt()
        assert origin_of(x).op == "aten::sqrt"
        del x


def test_values_from_before_detection_are_an_input():
    batch = torch.tensor([1.0, float("nan")])
    with torchnan.detect(action="log"):
        found = origin_of(batch)
        line = this_line() - 1
        del batch
    assert (found.origin, found.line, found.kind) == ("input", line, "nan")


def test_a_mask_has_the_line_that_wrote_it():
    with torchnan.detect():
        mask = torch.zeros(3).masked_fill(torch.tensor([True, False, False]), -INF)
        line = this_line() - 1
        found = origin_of(mask)
    assert (found.op, found.line, found.kind) == ("aten::masked_fill", line, "inf")


def test_an_integer_has_the_origin_of_the_nan_it_was_computed_from():
    with torchnan.detect(action="log"):
        index = (torch.zeros(3) / 0).argmax()
        found = origin_of(index)
        del index
    assert (found.op, found.kind) == ("aten::div", "nan")


def test_a_gradient_names_the_backward_node():
    with torchnan.detect(action="log"):
        x = torch.zeros(2, requires_grad=True)
        (x.square().sum().sqrt() * 0).backward()
        found = origin_of(x.grad)
    assert (found.phase, found.node) == ("backward", "SqrtBackward0")


def test_outside_of_detection_it_says_so():
    with pytest.raises(RuntimeError, match=r"^origin_of\(\): no detection is on in this thread, so nothing"):
        origin_of(torch.ones(2))


def test_something_else_than_a_tensor_is_refused():
    with torchnan.detect(), pytest.raises(TypeError, match=r"^origin_of\(3\): it takes a tensor\.$"):
        origin_of(3)
