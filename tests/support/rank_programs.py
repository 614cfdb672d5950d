"""Programs of two ranks over gloo, started as by torchrun: what they have in common, and what each rank tells."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.forked_python import run_forked_ranks

START = """
import gc, json, os, sys
import torch, torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import torchnan
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
planted = sys.argv[2] == "planted"
"""

PREAMBLE = f"""{START}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        return self.b(self.a(x).relu())

def train(model, steps=2, large=False, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        scale = 3e4 if large and planted and rank == 1 and step == 1 else 1.0
        (model(torch.randn(4, 8)) * scale).square().mean().backward()
        optimizer.step()
"""

ENDING = """
first = watch.first or next(iter(watch.findings), None)
told = None if first is None else dict(
    origin=first.origin, op=first.op.rpartition("::")[2], line=first.line, phase=first.phase, name=first.name,
    step=first.step, collective=(first.collective or "").rpartition("::")[2], count=len(watch.findings),
    harm=first.harm.kind, harmed=first.harm.name, hint=first.hint,
)
result = dict(first=told, internal_errors=watch.stats()["internal_errors"])
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(result, file)
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""

Told = dict[str, Any]


class Program(NamedTuple):
    """A program, and what must be told of the fault that is planted in it."""

    text: str
    told: tuple[Told, Told]  # by rank 0 and rank 1


def received(by: str, **more: Any) -> Told:
    """Returns the fields of a finding about a value that a collective has brought."""
    return {"collective": by, **more}


def made(op: str, **more: Any) -> Told:
    """Returns the fields of a finding about a value that the rank's operation has made."""
    return {"origin": "op", "op": op, "collective": "", **more}


def launcher(*options: str) -> list[str]:
    """Returns how torchrun starts a program of two ranks."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]


def line_of_fault(script: Path) -> int | None:
    """Returns the line that is marked as ``# PLANTED``, if there is one."""
    lines = enumerate(script.read_text().splitlines(), 1)
    return next((number for number, text in lines if "# PLANTED" in text), None)


def results_of(program: Program, folder: Path, mode: str) -> list[dict[str, Any]]:
    """Runs a program, planted or healthy, and returns what each rank tells; ``True`` for the line of the fault."""
    script = folder / "train.py"
    script.write_text(PREAMBLE + program.text + ENDING)
    ended = run_forked_ranks(script, 2, str(folder), mode)
    assert ended.returncode == 0, ended.stderr[-3000:]
    results = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    line = line_of_fault(script)
    for result in results:
        if result["first"] is not None and result["first"]["line"] == line:
            result["first"]["line"] = True
    return results


def assert_fault_is_told(program: Program, folder: Path) -> None:
    """Runs a program with its fault: each rank names it."""
    for result, told in zip(results_of(program, folder, "planted"), program.told, strict=True):
        assert result["internal_errors"] == 0
        assert result["first"] is not None
        assert {key: result["first"][key] for key in told} == told


def assert_is_silent(program: Program, folder: Path) -> None:
    """Runs a program without its fault: no rank reports anything."""
    assert results_of(program, folder, "healthy") == [{"first": None, "internal_errors": 0}] * 2
