"""A NaN or Inf that comes in from NumPy while detection is on is data, as it is before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import torchnan

ROWS = np.arange(16, dtype="float32").reshape(4, 4)
ROWS[1, 2] = np.inf
BEFORE = torch.from_numpy(ROWS)


class Rows(Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, i):
        return ROWS[i]


WAYS = {
    "before": lambda: BEFORE,
    "from_numpy": lambda: torch.from_numpy(ROWS),
    "a copy": lambda: torch.from_numpy(ROWS).clone(),
    "another dtype": lambda: torch.from_numpy(ROWS.astype("float64")).float(),
    "as_tensor": lambda: torch.as_tensor(ROWS),
    "collated": lambda: next(iter(DataLoader(Rows(), batch_size=4))),
    "collated by a worker": lambda: next(iter(DataLoader(Rows(), batch_size=4, num_workers=1))),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_infinity_of_an_array_is_the_origin(way):
    w = torch.ones(4, requires_grad=True)
    with torchnan.detect(action="log") as watch:
        h = way() * w
        (h - h.max()).sum().backward()
    finding = watch.first
    assert (finding.origin, finding.kind) == ("input", "inf"), str(finding)
    assert "sub made NaN of it" in finding.hint


def test_the_line_that_took_it_over_is_named():
    def take_over():
        return torch.from_numpy(ROWS)  # HERE

    w = torch.ones(4, requires_grad=True)
    with torchnan.detect(action="log") as watch:
        h = take_over() * w
        (h - h.max()).sum().backward()
    line = take_over.__code__.co_firstlineno + 1
    assert f"it came in at tests/detection/test_data_from_arrays.py:{line}" in watch.first.hint


def test_a_mask_from_an_array_stays_a_mask():
    """A row that is masked everywhere is 0/0 in the softmax, which is the operation to name."""
    mask = np.triu(np.full((3, 3), -np.inf, dtype="float32"), 1)
    with torchnan.detect(action="log") as watch:
        kept = torch.from_numpy(mask)
        assert (torch.rand(3, 3) + kept).softmax(-1).isfinite().all()
    assert watch.findings == []
    mask[:] = -np.inf
    with torchnan.detect(action="log") as watch:
        (torch.rand(3, 3) + torch.from_numpy(mask)).softmax(-1).sum().item()
    assert (watch.first.op, watch.first.origin) == ("aten::_softmax", "op")
