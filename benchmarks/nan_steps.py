"""Measures the cost of bad values: a step in which everything is NaN, and the first step that is bad.

    python -m benchmarks.nan_steps [--steps mlp,gpt2] [--rounds 15] [--threads N]

Each ratio is taken within one round; the rows run in random order, and "A/A" times the same step twice. A NaN step is
compared with the same NaN step without detection, the first bad step with the plain healthy step.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch

import torchnan
from benchmarks import modes, rounds_of_steps
from benchmarks.timing import measure, ratio, time_once, time_step
from benchmarks.workloads import Workload

PLAIN, AGAIN, ALL_NAN, FIRST_BAD, HEALTHY = "plain", "A/A", "all NaN", "first bad step", "healthy"


@contextlib.contextmanager
def logging(workload: Workload) -> Iterator[None]:
    """The product, in a run that goes on after the finding."""
    with torchnan.detect(action="log"):
        yield


def fill_weights(model: torch.nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def time_under(workload: Workload, mode: modes.Mode) -> float:
    with mode(workload):
        return time_once(workload)


def time_first_bad_step(workload: Workload, healthy: dict[str, torch.Tensor]) -> float:
    """Time of the step after one element of the first weight has become NaN."""
    workload.model.load_state_dict(healthy)
    workload.optimizer.state.clear()
    with logging(workload):
        workload.step()
        workload.step()
        with torch.no_grad():
            next(workload.model.parameters()).view(-1)[0] = float("nan")
        return time_step(workload)


def compare_all_nan(workload: Workload, rounds: int) -> dict[str, float]:
    fill_weights(workload.model, float("nan"))
    timers = {
        PLAIN: lambda: time_under(workload, modes.off),
        AGAIN: lambda: time_under(workload, modes.off),
        ALL_NAN: lambda: time_under(workload, logging),
    }
    times = measure(timers, rounds)
    return {row: ratio(times[row], times[PLAIN]).median for row in (AGAIN, ALL_NAN)}


def compare_first_bad(workload: Workload, rounds: int) -> float:
    healthy = copy.deepcopy(workload.model.state_dict())

    def time_healthy_step() -> float:
        workload.model.load_state_dict(healthy)
        workload.optimizer.state.clear()
        workload.step()
        workload.step()
        return time_step(workload)

    timers = {HEALTHY: time_healthy_step, FIRST_BAD: lambda: time_first_bad_step(workload, healthy)}
    times = measure(timers, rounds)
    return ratio(times[FIRST_BAD], times[HEALTHY]).median


def main() -> None:
    given = rounds_of_steps.parse("nan_steps", __doc__.splitlines()[0], "mlp,gpt2,gpt2-bf16,bert,resnet50,llama")
    print("| step | A/A | all NaN | first bad step |\n| --- | --- | --- | --- |")
    for workload in given.workloads():
        first_bad = compare_first_bad(workload, given.rounds)
        all_nan = compare_all_nan(workload, given.rounds)
        print(f"| {workload.name} | {all_nan[AGAIN]:.3f} | {all_nan[ALL_NAN]:.3f} | {first_bad:.1f} |", flush=True)


if __name__ == "__main__":
    main()
