"""What a training step costs on the device: time, launches, copies, waits and memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

import torchnan
from benchmarks import modes, timing, workloads
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.verdict import Verdict, at_most
from benchmarks.workloads import Workload
from tests.devices.step_trace import StepTrace

WARM_UP = 8  # steps of a fresh model that are not timed: after the third, the history of Adam's moments has begun
TIMED = 20  # steps, at least
ROUNDS = 6
SMALL_STEPS = 4  # where times mean nothing
DETECT = "detect() from the first step"
PEERS = ("set_detect_anomaly", "forward hooks")
LIMITS = {"gpt2": {DETECT: 1.03}, "resnet50": {DETECT: 1.03}, "mlp": {DETECT: 1.15}}
KEPT_BY_A_BATCH = 64  # MiB, see docs/gpu.md
GUARD_LIMIT = 1.005


def step_times(bench: Bench, name: str) -> Iterator[Verdict]:
    """The time of a step, relative to the plain one of the same round; the second plain one shows the noise."""
    make = partial(bench.workload, name)
    rows = {
        "plain": partial(time_row, bench, make, modes.off),
        "plain again (A/A)": partial(time_row, bench, make, modes.off),
        DETECT: partial(time_row, bench, make, modes.detect),
        "detect(), joined in mid-training": partial(time_row, bench, make, modes.detect, steps_before=WARM_UP),
        "StepGuard": partial(time_row, bench, make, modes.ALL["StepGuard"]),
        **{peer: partial(time_row, bench, make, modes.ALL[peer]) for peer in PEERS},
    }
    limits = {**LIMITS[name], "StepGuard": GUARD_LIMIT}
    yield from compare(bench, name, rows, limits, ROUNDS)


def compiled_step_times(bench: Bench, name: str) -> Iterator[Verdict]:
    """The same for a model compiled by Inductor. Each row compiles; later ones find the kernels in its cache."""
    if not bench.is_gpu:
        yield Verdict(f"{name}, compiled: Inductor knows no such device", 0)
        return

    def make() -> Workload:
        torch._dynamo.reset()  # which compiles a function at most eight times
        return workloads.compiled(partial(bench.workload, name))()

    rows = {
        "plain": partial(time_row, bench, make, modes.off),
        "plain again (A/A)": partial(time_row, bench, make, modes.off),
        DETECT: partial(time_row, bench, make, modes.detect),
    }
    yield from compare(bench, f"{name}, compiled", rows, LIMITS[name], ROUNDS)


def compare(
    bench: Bench, title: str, rows: dict[str, Callable[[], float]], limits: dict[str, float], rounds: int
) -> Iterator[Verdict]:
    """Runs all rows, in random order, once a round while there is time; yields their medians after each round."""
    times: timing.Times = {row: [] for row in rows}
    longest = 0.0
    for _ in range(rounds if bench.is_gpu else 1):
        if bench.seconds_left < 1.2 * longest:
            return
        began = time.monotonic()
        timing.add_round(times, rows)
        longest = max(longest, time.monotonic() - began)
        plain = times["plain"]
        yield Verdict(f"{title}: plain step, ms", statistics.median(plain), detail=f"{len(plain)} rounds")
        for row in list(rows)[1:]:
            ratios = [t / base for t, base in zip(times[row], plain, strict=True)]
            detail = f"{min(ratios):.3f} to {max(ratios):.3f}"
            what, value = f"{title}: {row}", statistics.median(ratios)
            if row in limits:
                yield at_most(what, value, limits[row], bench.is_gpu, detail)
            else:
                yield Verdict(what, value, detail=detail)


def time_row(bench: Bench, make: Callable[[], Workload], mode: modes.Mode, steps_before: int = 0) -> float:
    """Returns milliseconds of a step of a fresh model under a mode, entered after some steps."""
    workload = make()
    for _ in range(steps_before):
        workload.step()
    with mode(workload):
        for _ in range(WARM_UP if bench.is_gpu else 1):
            workload.step()
        return bench.time(workload.step, max(TIMED, workload.repeat) if bench.is_gpu else SMALL_STEPS)


def one_step(bench: Bench, name: str) -> Iterator[Verdict]:
    """One step of a fresh model after some, traced: a clean training waits, copies and keeps memory as without."""
    yield at_most("launches of torchnan's scan that the trace shows, too few", float(not sees_scans(bench)), 0)
    plain, peak = traced(bench, bench.workload(name))
    workload = bench.workload(name)
    with torchnan.detect(action="log") as watch:
        watched, watched_peak = traced(bench, workload)
        before = watch.stats()
        workload.step()
        bench.machine.synchronize()
        after = watch.stats()
    read, proved = (after[what] - before[what] for what in ("device_bytes", "bytes_proved"))
    yield from (
        at_most(f"{name}: waits of a step, more than without", watched.waits - plain.waits, 0),
        at_most(f"{name}: copies to the host, more than without", watched.copies_to_host - plain.copies_to_host, 0),
        at_most(f"{name}: gradients cloned, more than without", watched.cloned_gradients - plain.cloned_gradients, 0),
        at_most(f"{name}: sums in place, fewer than without", plain.adds_in_place - watched.adds_in_place, 0),
        at_most(f"{name}: findings", len(watch.findings), 0),
        at_most(f"{name}: internal errors", after["internal_errors"], 0),
        Verdict(f"{name}: launches of the scan", watched.scans),
        Verdict(f"{name}: share of the written bytes that is scanned", read / (read + proved)),
    )
    if bench.is_gpu:
        yield from (
            Verdict(f"{name}: kernels of a plain step", plain.kernels),
            Verdict(f"{name}: device time of a plain step, us", plain.device_microseconds),
            Verdict(f"{name}: time of the scans, us", watched.scan_microseconds),
            Verdict(f"{name}: peak of a plain step, MiB", peak / 2**20),
            at_most(
                f"{name}: MiB allocated at the peak, more than without",
                (watched_peak - peak) / 2**20,
                max(peak / 2**20 / 100, KEPT_BY_A_BATCH),
            ),
        )


def sees_scans(bench: Bench) -> bool:
    """Whether the trace shows torchnan's kernels, which use a separate CUDA runtime."""
    x = torch.ones(1000, device=bench.device)
    with torchnan.detect(action="log", rescan_every=1):
        return bool(bench.machine.trace(lambda: (x + 1).sum().item()).scans > 0)


def traced(bench: Bench, workload: Workload) -> tuple[StepTrace, int]:
    """Returns the trace of a step, and the peak of the allocated memory in the one before it, in bytes."""
    for _ in range(WARM_UP if bench.is_gpu else 3):
        workload.step()
    peak = 0
    bench.machine.synchronize()
    if bench.is_gpu:
        torch.cuda.reset_peak_memory_stats()
        workload.step()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    return bench.machine.trace(workload.step), peak


def soak(bench: Bench, name: str) -> Iterator[Verdict]:
    """A long clean training under detection: no alarm, no wait, no finding, and memory does not grow."""
    workload = bench.workload(name)
    steps, settled = 0, 0
    last = 0.2 * bench.seconds_left  # to come to the end
    with torchnan.detect(action="log") as watch:
        while bench.seconds_left > last and (bench.is_gpu or steps < 2 * SMALL_STEPS):
            for _ in range(SMALL_STEPS):
                workload.step()
            steps += SMALL_STEPS
            bench.machine.synchronize()
            allocated = torch.cuda.memory_allocated() if bench.is_gpu else 0
            settled = settled or allocated
            stats = watch.stats()
            yield from (
                Verdict(f"{name}: steps", steps),
                at_most(f"{name}: findings", len(watch.findings), 0),
                at_most(f"{name}: internal errors", stats["internal_errors"], 0),
                Verdict(f"{name}: alarms, of assumptions that failed", stats["device_alarms"]),
                Verdict(f"{name}: waits for the device because of these", stats["device_waits"]),
                at_most(f"{name}: MiB allocated, more than after the first steps", (allocated - settled) / 2**20, 64),
            )
