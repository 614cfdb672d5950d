"""Logs of findings made without training: real findings of small operations, with some of their fields changed."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchnan

Fields = dict[str, Any]
BROUGHT = "allreduce_ received it from another rank: see the report of that rank for its origin"
LINE = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# MADE HERE"))


class Attention(nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(torch.tensor([[True], [False]]), float("-inf")).softmax(-1)  # MADE HERE


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attention()])

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return (self.layers[0](scores) * 2 + 1).sum()


@functools.cache
def _masked_row() -> str:
    with torchnan.detect(action="log") as watch:
        Model()(torch.zeros(2, 3, requires_grad=True)).backward()
    assert watch.first is not None
    return watch.first.to_json()


def masked_row(**fields: Any) -> Fields:
    """Returns the finding of a softmax of masked rows in ``layers.0``, with these fields changed."""
    return {**json.loads(_masked_row()), "step": 17, **fields}


def received(**fields: Any) -> Fields:
    """Returns the finding of a rank that received a NaN from a collective."""
    brought = {"origin": "input", "op": "c10d::allreduce_", "collective": "c10d::allreduce_", "hint": BROUGHT}
    return masked_row(module=None, lineage=[], **brought, **fields)


def finding_of(fields: Fields) -> torchnan.Finding:
    """Returns the finding that has these fields."""
    return torchnan.Finding.from_json(json.dumps(fields))


def write_log(path: Path, *lines: Fields) -> Path:
    """Writes a log of these findings."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path
