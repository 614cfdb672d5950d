"""Measures how the overhead grows with the size of tensors, the number of operations, depth, and threads. CPU only.

    python -m benchmarks.scaling [--rounds 7] [--threads N] [--json OUT] [--pictures FOLDER]

As in benchmarks.steps, every mode runs once a round, in random order, and a ratio is taken within a round; "off again
(A/A)" times the same thing twice. The plain run here is this process with detection off: benchmarks.steps measures the
cost of loading torchnan. The picture, scaling.svg, needs matplotlib.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import torchnan
from benchmarks import modes
from benchmarks.step_result import OFF, OFF_AGAIN
from benchmarks.timing import Times, measure, time_once
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Measured = dict[int, dict[str, Times]]  # by x, then by workload

SHORTEST = 0.02  # seconds: a shorter timing would measure the clock and the scheduler
LINE_COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#CC79A7")  # distinguishable for the colour-blind
GREY = "#767676"


@contextlib.contextmanager
def exact(workload: Workload) -> Iterator[None]:
    """Every result is scanned, even if it is proved."""
    with torchnan.detect(rescan_every=1):
        yield


DETECT: dict[str, modes.Mode] = {"detect()": modes.detect}
DETECT_AND_EXACT: dict[str, modes.Mode] = {**DETECT, "detect(rescan_every=1)": exact}


# -- workloads


def repeated(name: str, step: Callable[[], object], model: torch.nn.Module | None = None) -> Workload:
    """A workload with enough steps per timing."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)

    def run() -> None:
        step()

    return Workload(name, run, model or torch.nn.Identity(), max(1, round(SHORTEST / min(seconds))))


def chain_on_one_tensor(size: int) -> Workload:
    """Bounds prove all three results; those of 16 KiB and less are scanned, which is as cheap."""
    x = torch.randn(size // 4)
    return repeated("(x * 1.5 + x).tanh()", lambda: (x * 1.5 + x).tanh())


def without_a_rule(size: int) -> Workload:
    """No bound is known for log1p: its result is scanned."""
    x = torch.rand(size // 4) + 0.5
    return repeated("x.log1p()", lambda: x.log1p())


def many_small_ops(n: int) -> Workload:
    """Operations in sequence, each on the result of the one before."""
    x = torch.randn(64, 64)

    def step() -> None:
        y = x
        for _ in range(n):
            y = y * 1.0

    return repeated(f"{n} times mul", step)


def training(layers: int, width: int) -> Workload:
    """A step of an MLP, batch 32: forward, backward, SGD."""
    made = [layer for _ in range(layers) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    model, x = torch.nn.Sequential(*made), torch.randn(32, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return repeated(f"MLP {layers}x{width}", step, model)


# -- axes


def ratio(seconds: float, base: float, x: int) -> float:
    return seconds / base


def added_us_per_op(seconds: float, base: float, x: int) -> float:
    return (seconds - base) / x * 1e6


def size_text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


@dataclasses.dataclass(frozen=True)
class Curve:
    """The measurements along one axis; a panel of the picture.

    Attributes:
        title: for the table and the picture.
        axis: the meaning of x.
        along: its values.
        workloads: the timed workloads at each x, by name.
        modes: the modes of each, beside "off".
        price: computes the overhead from the seconds of a mode, the seconds of "off" in the same round, and x.
        unit: of the price.
        text_of: formats x.
        sets_threads: whether x is the number of threads to compute with.
    """

    title: str
    axis: str
    along: tuple[int, ...]
    workloads: dict[str, Callable[[int], Workload]]
    modes: dict[str, modes.Mode]
    price: Callable[[float, float, int], float] = ratio
    unit: str = "ratio to the plain run"
    text_of: Callable[[int], str] = str
    sets_threads: bool = False


CURVES: dict[str, Curve] = {
    "size": Curve(
        title="Tensor size",
        axis="bytes of x",
        along=tuple(4**k << 12 for k in range(9)),
        workloads={"(x * 1.5 + x).tanh()": chain_on_one_tensor, "x.log1p()": without_a_rule},
        modes=DETECT_AND_EXACT,
        text_of=size_text,
    ),
    "ops": Curve(
        title="Operations in a step",
        axis="operations, each on 64 x 64",
        along=(10, 100, 1000, 5000),
        workloads={"chain of mul": many_small_ops},
        modes=DETECT,
        price=added_us_per_op,
        unit="µs added per operation",
    ),
    "depth": Curve(
        title="Depth of a training step",
        axis="layers of 128, batch 32",
        along=(2, 4, 8, 16, 32, 64),
        workloads={"MLP, SGD": lambda layers: training(layers, 128)},
        modes=DETECT,
    ),
    "threads": Curve(
        title="Threads",
        axis="threads; MLP of 4 layers of 1024 x 1024, batch 32",
        along=(1, 2),
        workloads={"MLP, SGD": lambda threads: training(4, 1024)},
        modes=DETECT,
        sets_threads=True,
    ),
}


# -- measuring


def timers(workload: Workload, modes_: dict[str, modes.Mode]) -> dict[str, Callable[[], float]]:
    """How to time each mode, and "off" twice."""

    def under(mode: modes.Mode) -> Callable[[], float]:
        def timer() -> float:
            with mode(workload):
                return time_once(workload)

        return timer

    return {name: under(mode) for name, mode in {OFF: modes.off, OFF_AGAIN: modes.off, **modes_}.items()}


def measure_curve(curve: Curve, rounds: int, threads: int) -> Measured:
    """Every workload at every x."""
    measured: Measured = {}
    for x in curve.along:
        torch.set_num_threads(x if curve.sets_threads else threads)
        measured[x] = {name: measure(timers(make(x), curve.modes), rounds) for name, make in curve.workloads.items()}
    torch.set_num_threads(threads)
    return measured


def quartiles(curve: Curve, x: int, times: Times, mode: str) -> list[float]:
    """The lower quartile, the median and the upper quartile over the rounds."""
    prices = [curve.price(seconds, base, x) for seconds, base in zip(times[mode], times[OFF], strict=True)]
    return statistics.quantiles(prices, n=4) if len(prices) > 1 else prices * 3


# -- output


def print_table(curve: Curve, measured: Measured) -> None:
    """For each workload a row per x: the plain step, then each mode's median and quartiles."""
    for workload in curve.workloads:
        names = [OFF_AGAIN, *curve.modes]
        print(f"\n{curve.title}, {workload}: {curve.unit}, median (quartiles)")
        print(f"  {'':<10}{'plain ms':>10}" + "".join(f"{name:>28}" for name in names) + f"   {curve.axis}")
        for x in curve.along:
            times = measured[x][workload]
            cells = ""
            for name in names:
                low, middle, high = quartiles(curve, x, times, name)
                cells += f"{f'{middle:.3f} ({low:.3f} to {high:.3f})':>28}"
            print(f"  {curve.text_of(x):<10}{statistics.median(times[OFF]) * 1e3:>10.3f}{cells}")


def draw_line(axes: Axes, curve: Curve, measured: Measured, line: tuple[str, str], label: str, colour: str) -> None:
    """The medians of a workload under a mode, and a band from quartile to quartile."""
    workload, mode = line
    lows, middles, highs = zip(*(quartiles(curve, x, measured[x][workload], mode) for x in curve.along), strict=True)
    is_again = mode == OFF_AGAIN
    axes.plot(curve.along, middles, "--" if is_again else "o-", color=colour, label=label, markersize=4, linewidth=1.4)
    axes.fill_between(curve.along, lows, highs, color=colour, alpha=0.15, linewidth=0)


def draw_panel(axes: Axes, curve: Curve, measured: Measured) -> None:
    """One curve: its A/A lines in grey, under one name, and the others on top."""
    for i, workload in enumerate(curve.workloads):
        draw_line(axes, curve, measured, (workload, OFF_AGAIN), "_" if i else OFF_AGAIN, GREY)
    lines = [(workload, mode) for workload in curve.workloads for mode in curve.modes]
    for line, colour in zip(lines, LINE_COLOURS, strict=False):
        label = ", ".join(line) if len(curve.workloads) > 1 else line[1]
        draw_line(axes, curve, measured, line, label, colour)
    axes.set(title=curve.title, xlabel=curve.axis, ylabel=curve.unit, xscale="log")
    axes.set_xticks(curve.along, [curve.text_of(x) for x in curve.along])
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)


def draw(folder: Path, measured: dict[str, Measured]) -> None:
    """scaling.svg: four panels, on white whatever the page is, and the same bytes from the same figures."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "torchnan"}):
        figure = Figure(figsize=(11, 7.5), facecolor="white", layout="constrained")
        for axes, (key, curve) in zip(figure.subplots(2, 2).flat, CURVES.items(), strict=True):
            draw_panel(axes, curve, measured[key])
        figure.savefig(folder / "scaling.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", metavar="OUT")
    parser.add_argument("--pictures", metavar="FOLDER", type=Path)
    given = parser.parse_args()
    if given.pictures:  # fails now rather than at the end
        importlib.import_module("matplotlib.figure")
        given.pictures.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    print(f"PyTorch {torch.__version__}, {given.threads} threads, {platform.processor() or platform.machine()}")
    measured = {}
    for key, curve in CURVES.items():
        measured[key] = measure_curve(curve, given.rounds, given.threads)
        print_table(curve, measured[key])
    if given.json:
        Path(given.json).write_text(json.dumps(measured, indent=1) + "\n")
    if given.pictures:
        draw(given.pictures, measured)


if __name__ == "__main__":
    main()
