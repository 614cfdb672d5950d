"""Detection changes nothing: every operator in PyTorch's own list, with and without.

The first sample of each runs here; `make soak` runs all of them.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from identity import Run, differences

OPS = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]


def samples(op):
    return op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)


def is_comparable(sample) -> bool:
    return getattr(sample.input, "layout", torch.strided) in (torch.strided, torch.sparse_coo)


@pytest.mark.parametrize("op", OPS, ids=[op.full_name for op in OPS])
def test_the_first_sample_of_every_operator_is_the_same(op):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample = next((s for s in samples(op) if is_comparable(s)), None)
        if sample is None:
            pytest.skip("no dense or COO sample")
        assert differences(op, sample) == []


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=[op.full_name for op in OPS])
def test_every_sample_of_every_operator_is_the_same(op):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(samples(op)):
            if is_comparable(sample):
                assert differences(op, sample) == [], f"sample {number}"


def test_the_comparison_notices_a_difference():
    """A comparison that cannot fail proves nothing: an operator that looks at its thread's dispatch keys is told."""
    from torchnan._load import _C

    class Spy:
        name = "spy"

        def __call__(self, x):
            return x + float(_C.open_scopes())

    class Sample:
        input, args, kwargs = torch.ones(2, requires_grad=True), (), {}

    assert "outputs" in differences(Spy(), Sample)
    assert Run(Spy(), Sample, watched=False).noticed["gradients"]
