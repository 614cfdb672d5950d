"""A value made in another process, such as a worker of a DataLoader, is reported with its line there."""

from __future__ import annotations

import inspect
import json
import sys
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import torchnan
from tests.support.processes import run


class Standardized(Dataset):
    """Item 5 is constant: its deviation is 0."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        x = torch.arange(3.0) * (index != 5)
        return x / x.std()


class Given(Dataset):
    """Item 6 has a NaN already."""

    def __init__(self, as_array=False):
        self.rows = np.ones((8, 3), dtype="float32")
        self.rows[6, 1] = float("nan")
        self.as_array = as_array

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.rows[index].copy() if self.as_array else torch.from_numpy(self.rows[index].copy())


class Repaired(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(2).masked_fill(torch.tensor([True, False]), float("-inf"))


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def first_of(dataset, workers, **options):
    with torchnan.detect(action="log") as watch:
        for batch in DataLoader(dataset, batch_size=4, num_workers=workers, **options):
            (batch * 2).sum().item()
    assert watch.stats()["internal_errors"] == 0
    assert len(watch.findings) == 1, watch.report()
    return watch.findings[0]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_value_that_a_dataset_computes_is_named_with_its_line_and_item(workers):
    finding = first_of(Standardized(), workers)
    assert (finding.level, finding.kind, finding.origin, finding.op) == ("error", "nan", "op", "aten::div")
    assert finding.file == __file__
    assert finding.line == line_of(Standardized, "x.std()")
    assert finding.hint == "other is 0; in 3 places the dividend is 0 too: 0/0 is NaN"
    assert finding.item == "5"
    assert finding.process == (f"DataLoader worker {1 % workers}" if workers else None)
    assert [step.op for step in finding.lineage][-2:] == ["aten::mul", "aten::sum"]
    assert "  data      item 5 of the dataset\n" in str(finding)
    assert ("  process   DataLoader worker" in str(finding)) == (workers > 0)
    assert finding.harm.line == line_of(first_of, "item()")


@pytest.mark.parametrize("as_array", [False, True], ids=["tensors", "arrays"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_value_in_the_data_is_named_with_its_process(workers, as_array):
    finding = first_of(Given(as_array), workers)
    assert (finding.origin, finding.item) == ("input", "6")
    assert finding.process == ("DataLoader worker 0" if workers else None)


def test_a_value_from_a_worker_is_first_used_here():
    finding = first_of(Given(), 1)
    assert (finding.op, finding.line) == ("aten::mul", line_of(first_of, "batch * 2"))
    assert finding.hint == "row 2 of 4 is the first with a non-finite value (1 in all)"


def test_the_item_is_that_of_the_sampler():
    order = [7, 1, 5, 0, 2, 3, 4, 6]
    finding = first_of(Standardized(), 1, sampler=order)
    assert (finding.item, finding.process) == ("5", "DataLoader worker 0")


def test_a_mask_of_a_worker_is_silent():
    with torchnan.detect(action="log") as watch:
        for batch in DataLoader(Repaired(), batch_size=2, num_workers=1):
            batch.softmax(-1).sum().item()
            held = batch
    assert watch.findings == []
    del held


def test_unused_values_are_silent():
    with torchnan.detect(action="log") as watch:
        for batch in DataLoader(Standardized(), batch_size=4, num_workers=1):
            torch.nan_to_num(batch).sum().item()
            del batch
    assert watch.findings == []


def test_a_process_without_detection_gets_plain_tensors():
    loader = iter(DataLoader(Standardized(), batch_size=8, num_workers=1))
    with torchnan.detect(action="log"):
        started = iter(DataLoader(Standardized(), batch_size=8, num_workers=1))
    assert torch.equal(next(started), next(loader)) is False  # NaN
    assert next(iter(DataLoader(Standardized(), batch_size=8))).isnan().sum() == 3


def test_reducers_are_as_before():
    before = dict(ForkingPickler._extra_reducers)
    with torchnan.detect(action="log"):
        assert ForkingPickler._extra_reducers[torch.Tensor] is not before[torch.Tensor]
    assert ForkingPickler._extra_reducers == before


SPAWNED = """
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.tensor([float(index)]).log()  # MADE

if __name__ == "__main__":
    for batch in DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="spawn"):
        batch.sum().item()
"""


@pytest.mark.slow
def test_a_spawned_worker_is_named_too(tmp_path):
    script, log = tmp_path / "train.py", tmp_path / "log.jsonl"
    script.write_text(SPAWNED)
    ended = run([sys.executable, str(script)], TORCHNAN="log", TORCHNAN_LOG=str(log), OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr
    (line,) = log.read_text().splitlines()
    finding = json.loads(line)
    assert (finding["op"], finding["item"], finding["process"]) == ("aten::log", "0", "DataLoader worker 0")
    assert (
        finding["stack"][0]["line"]
        == SPAWNED.splitlines().index("        return torch.tensor([float(index)]).log()  # MADE") + 1
    )
