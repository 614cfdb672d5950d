"""Every maker in the catalogue: operation, node, output, counts and line, exactly."""

from __future__ import annotations

import pytest

import torchnan
from tests.support.nonfinite_catalogue import FAMILIES, Maker

pytestmark = [
    pytest.mark.guarantee(3),
    # Degenerate statistics are what is asked for.
    pytest.mark.filterwarnings("ignore:.*degrees of freedom", "ignore:Sparse CSR"),
]

MAKERS = [pytest.param(maker, id=f"{family}-{maker}") for family, makers in FAMILIES.items() for maker in makers]


def answer(maker: Maker) -> dict[str, object]:
    return {
        "op": f"aten::{maker.op}",
        "kind": maker.kind,
        "counts": (maker.nan, maker.posinf, maker.neginf),
        "output": maker.output,
        "node": maker.node,
        "line": maker.line,
        "origin": "op",
    }


def said(finding: torchnan.Finding) -> dict[str, object]:
    return {
        "op": finding.op,
        "kind": finding.kind,
        "counts": (finding.nan, finding.posinf, finding.neginf),
        "output": finding.output,
        "node": finding.node,
        "line": finding.line,
        "origin": finding.origin,
    }


@pytest.mark.breadth(25)
@pytest.mark.parametrize("maker", MAKERS)
def test_maker(maker, figure):
    with torchnan.detect(action="log") as watch:
        held = maker.run()
    assert watch.first is not None
    assert said(watch.first) == answer(maker)
    del held
    figure("{makers} makers of a NaN or Inf: operation, node, output, counts and line exact", makers=1)


def test_the_catalogue_is_broad():
    assert len(MAKERS) >= 120
    assert sum(maker.node is not None for makers in FAMILIES.values() for maker in makers) >= 20
