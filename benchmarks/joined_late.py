"""Measures detection that begins in mid-training: its first step, which knows no bound yet, and those after it.

    python -m benchmarks.joined_late [--steps mlp,gpt2] [--rounds 15] [--threads N]

Every round switches detection off and on again around a model that has been trained for some steps. A ratio compares a
step with the plain step of its round; "A/A" times the plain step twice.
"""

from __future__ import annotations

import torchnan
from benchmarks import rounds_of_steps, tables
from benchmarks.timing import Times, ratio, time_step
from benchmarks.workloads import Workload

WARM_UP = 5  # plain steps before the first round
PLAIN, AGAIN, DETECTED = "plain", "A/A", ("first step", "second step", "third step", "fourth step")


def measure_rounds(workload: Workload, rounds: int) -> Times:
    for _ in range(WARM_UP):
        workload.step()
    times: Times = {row: [] for row in (PLAIN, AGAIN, *DETECTED)}
    for _ in range(rounds):
        workload.step()  # detection of the round before has ended
        times[PLAIN].append(time_step(workload))
        times[AGAIN].append(time_step(workload))
        with torchnan.detect():
            for row in DETECTED:
                times[row].append(time_step(workload))
    return times


def main() -> None:
    given = rounds_of_steps.parse("joined_late", __doc__.splitlines()[0], "mlp,gpt2,bert,resnet50,llama")
    columns = (AGAIN, *DETECTED)
    print(f"| step | {' | '.join(columns)} |\n|{' --- |' * (1 + len(columns))}")
    for workload in given.workloads():
        times = measure_rounds(workload, given.rounds)
        ratios = " | ".join(f"{ratio(times[row], times[PLAIN]).median:.3f}" for row in columns)
        print(f"| {workload.name} | {ratios} |", flush=True)
    print(f"\nMeasured on {tables.machine(given.threads)}")


if __name__ == "__main__":
    main()
