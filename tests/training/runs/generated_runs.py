"""Runs made from plans: the rows, and the correct diagnosis; stored as files, and read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

import torchnan
from tests.training.runs import failing_runs, healthy_runs, numeric_failures
from tests.training.runs.fault_visibility import shown
from tests.training.runs.recorder import write_csv
from tests.training.runs.run_specs import Draw, Truth
from tests.training.runs.small_training import Training

FAILING = {**failing_runs.MAKERS, **numeric_failures.MAKERS}
MAKERS = {**FAILING, **healthy_runs.MAKERS}
ATTEMPTS = 8  # plans that are drawn until one shows


@dataclass(frozen=True)
class Made:
    """A run in a folder: ``NAME-SEED.csv``, the Monitor's log ``NAME-SEED.jsonl``, and the correct diagnosis."""

    name: str
    seed: int
    attempt: int
    truth: Truth
    folder: Path

    @property
    def csv(self) -> Path:
        return self.folder / f"{self.name}-{self.seed}.csv"

    @property
    def json_lines(self) -> Path:
        return self.csv.with_suffix(".jsonl")


def make(folder: Path, which: tuple[str, int]) -> Made:
    """Trains by the first plan of this name and seed whose failure shows.

    Raises:
        RuntimeError: none of ``ATTEMPTS`` plans has shown it.
    """
    torch.set_num_threads(1)
    name, seed = which
    for attempt in range(ATTEMPTS):
        plan = MAKERS[name](Draw(name, seed, attempt))
        made = Made(name, seed, attempt, plan.truth, folder)
        made.json_lines.unlink(missing_ok=True)
        monitor = torchnan.Monitor(made.json_lines, live=False)
        rows = list(Training(plan.setup, monitor).steps())
        monitor.close()
        truth = shown(plan.truth, rows)
        if truth is not None:
            write_csv(made.csv, rows)
            made.csv.with_suffix(".truth.json").write_text(json.dumps({"attempt": attempt, **asdict(truth)}) + "\n")
            return replace(made, truth=truth)
    raise RuntimeError(f"{name}, seed {seed}: none of {ATTEMPTS} trainings shows its failure. Change its plan.")


def made_all(folder: Path, wanted: list[tuple[str, int]], jobs: int) -> Iterator[Made]:
    """Keeps existing runs in the folder; trains the others, in the given number of processes."""
    missing = [which for which in wanted if not (folder / "{}-{}.truth.json".format(*which)).exists()]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as processes:
        yield from (kept(folder, which) for which in wanted if which not in missing)
        yield from processes.map(partial(make, folder), missing)


def kept(folder: Path, which: tuple[str, int]) -> Made:
    name, seed = which
    truth = json.loads((folder / f"{name}-{seed}.truth.json").read_text())
    attempt = truth.pop("attempt")
    return Made(name, seed, attempt, Truth(**{**truth, "causes": tuple(truth["causes"])}), folder)


def wanted(failing: range, healthy: range) -> list[tuple[str, int]]:
    """One of each name for each seed."""
    return [(name, seed) for seed in failing for name in FAILING] + [
        (name, seed) for seed in healthy for name in healthy_runs.MAKERS
    ]
