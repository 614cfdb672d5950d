"""Measures the overhead of detection for whole training steps, as ratios to the plain step.

    python -m benchmarks.steps [--seconds 60] [--steps mlp,gpt2] [--modes "detect()"] [--cycles] [--write] [--json OUT]

Every mode runs once a round, in random order; a ratio is taken within a round, so that disturbances of the machine
affect both sides. Rounds are added until the row that times the same thing twice ("off again (A/A)") and detect() are
known within a percent, or the time is over; then the table says that the machine was too busy to tell. "Off" is this
process, with torchnan loaded and detection off, relative to a process that never loaded it. malloc has its defaults.
One row is of another process, in which malloc keeps the memory that a step frees: detect() relative to "off" there.
All other modes are ratios to "off". Counts are exact and do not depend on the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import warnings
from collections.abc import Callable

import torch

import torchnan
from benchmarks import clock, modes, price_of_monitor, tables, workloads
from benchmarks.other_process import OtherProcess
from benchmarks.step_result import (
    DETECT,
    KEEPING_DETECT,
    KEEPING_OFF,
    OFF,
    OFF_AGAIN,
    PLAIN,
    Result,
    is_precise,
)
from benchmarks.timing import measure_until, time_once

MODES = [
    OFF,
    DETECT,
    KEEPING_DETECT,
    "StepGuard",
    "set_detect_anomaly",
    "forward hooks",
    "Python dispatch mode",
    "Inductor's nan_asserts",
]


def timers(
    key: str, workload: workloads.Workload, names: list[str], threads: int, read_clock: Callable[[], float]
) -> dict[str, Callable[[], float]]:
    """How to time each row. Another process is timed only in seconds."""

    def under(mode: modes.Mode) -> Callable[[], float]:
        def timer() -> float:
            with mode(workload):
                return time_once(workload, read_clock)

        return timer

    known = modes.ALL if workload.eager is None else modes.COMPILED
    made = {name: under(mode) for name, mode in known.items() if name in names}
    made[OFF] = made[OFF_AGAIN] = under(modes.off)
    if read_clock is not clock.seconds:
        return made
    if OFF in names:
        made[PLAIN] = OtherProcess(key, threads).time_once
    if KEEPING_DETECT in names:
        keeping = OtherProcess(key, threads, keep_freed_memory=True)
        made[KEEPING_OFF] = functools.partial(keeping.time_once, OFF)
        made[KEEPING_DETECT] = functools.partial(keeping.time_once, DETECT)
    return made


def count(workload: workloads.Workload) -> dict[str, int]:
    """The counts of detect() in one step; the same for the second and all later steps."""
    with torchnan.detect() as watch:
        workload.step()
        before = watch.stats()
        workload.step()
        after = watch.stats()
    return {key: after[key] - before[key] for key in ("ops", "checked", "bytes", "call_sites")}


def memory_of_guard(workload: workloads.Workload) -> dict[str, int]:
    """The memory that a StepGuard with one snapshot holds between steps."""
    guard = modes.guard_of(workload, snapshot_every=1, snapshots=1)
    guard.step(workload.batch)
    return guard.memory()


def run(key: str, names: list[str], threads: int, seconds: float, read_clock: Callable[[], float]) -> Result:
    """Times one workload under these modes, for about this many seconds at most."""
    workload = workloads.ALL[key]()
    counts = {**count(workload), **memory_of_guard(workload)}
    times = measure_until(timers(key, workload, names, threads, read_clock), is_precise, seconds)
    result = Result(workload.name, times, counts, is_in_cycles=read_clock is not clock.seconds)
    if "StepGuard" in times and "StepGuard + Monitor" in names and not result.is_in_cycles:
        result.microseconds_of_monitor = price_of_monitor.microseconds(workload)
    return result


def print_result(result: Result) -> None:
    """A row per mode."""
    counts, off = result.counts, statistics.median(result.times[OFF])
    step = f"{off / 1e6:.2f} million cycles" if result.is_in_cycles else f"{off * 1e3:.2f} ms"
    print(
        f"\n{result.name}: {step}, {len(result.times[OFF])} rounds. In one step detect() sees "
        f"{counts['ops']} operations, looks at {counts['checked']} tensors and {counts['bytes'] / 1e6:.1f} MB, and "
        f"notes {counts['call_sites']} call sites. A StepGuard holds {counts['buffers'] / 1e6:.1f} MB between steps, "
        f"and {counts['snapshots'] / 1e6:.1f} MB a snapshot."
    )
    print(f"  {'':<24}{'median':>8}{'95 % interval':>18}{'minima':>9}")
    for name, row in result.ratios.items():
        print(f"  {name:<24}{row.median:>8.3f}{row.low:>11.3f}-{row.high:.3f}{row.of_minima:>9.3f}")
    if not result.is_precise:
        print("  The machine was too busy to tell these ratios within a percent: give more --seconds, or wait.")
    if result.microseconds_of_monitor is not None:
        part = result.microseconds_of_monitor
        share = part / statistics.median(result.times["StepGuard"]) / 1e4
        print(f"  Beside its StepGuard a Monitor takes {part:.0f} µs of a step, {share:.2f} %.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="longest time for a workload (default: 60)")
    parser.add_argument("--steps", default=",".join(workloads.ALL))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cycles", action="store_true", help="of one thread, for a machine that is busy")
    parser.add_argument("--write", action="store_true", help="write the tables in the docs; no file may be uncommitted")
    parser.add_argument("--json", metavar="OUT")
    given = parser.parse_args()
    if given.write and (changed := tables.uncommitted()):
        parser.error(f"--write puts figures of a commit into the docs; commit first: {', '.join(changed)}")
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    if given.cycles:
        given.threads = 1
    torch.set_num_threads(given.threads)
    read_clock = clock.open_cycles() if given.cycles else clock.seconds
    origin = tables.machine(given.threads)
    print(origin)
    results = {}
    for key in given.steps.split(","):
        results[key] = run(key, given.modes.split(","), given.threads, given.seconds, read_clock)
        print_result(results[key])
    if given.json:
        with open(given.json, "w") as file:
            json.dump({key: dataclasses.asdict(result) for key, result in results.items()}, file, indent=1)
    if given.write:
        try:
            tables.write(results, origin)
        except ValueError as error:
            parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
