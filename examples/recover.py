"""Trains on two ranks through a bad batch, an Inf gradient, a flipped bit and an out-of-memory error.

python examples/recover.py [--out FOLDER]

Trains a small GPT-2 from several seeds without faults, then once under torchnan.StepGuard with four faults. Prints the
recovery log's entry for each fault, and whether the final loss is within the noise of the runs without faults. The exit
status is 0 if it is, if all four faults are in the log, and if both ranks have the same weights.
"""

import argparse
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
from itertools import zip_longest
from pathlib import Path

from recovery.faults import STRUCK, planned

HERE = Path(__file__).resolve().parent / "recovery"
RANKS = 2
LAST = 30  # steps at the end, whose mean loss is in the table
FLOOR = -sum(p * math.log(p) for p in (0.7, 0.1, 0.1, 0.1))  # entropy of the language in train.py

# Quantiles of Student's t distribution by the number n of runs: another run of the same kind ends above
# mean + T * sqrt(1 + 1/n) * deviation in 1 of 100 cases.
T = {3: 6.965, 4: 4.541, 5: 3.747, 6: 3.365, 7: 3.143, 8: 2.998}


# -- the runs


def train(out, steps, *arguments):
    """Runs train.py on two ranks and shows its progress bar."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command = [*launch, str(HERE / "train.py"), "--out", str(out), "--steps", str(steps), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    ended = subprocess.run(command, env=environment, check=False)
    if ended.returncode != 0:
        sys.exit(f"The training failed: exit status {ended.returncode}. Its output is in {out}.")


class Run:
    """Reads what both ranks of a training have written."""

    def __init__(self, folder):
        ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
        self.weights = {rank["weights"] for rank in ranks}
        self.held_out = ranks[0]["held_out"]
        self.history = []  # step, mean of the ranks' losses, applied
        for entries in zip(*(rank["history"] for rank in ranks), strict=True):
            (step, _, applied), losses = entries[0], [loss for _, loss, _ in entries]
            self.history.append((step, math.nan if None in losses else statistics.fmean(losses), applied))

    def last_losses(self):
        return statistics.fmean(self.kept()[1][-LAST:])

    def kept(self):
        """Returns steps and losses that led to the final weights, without those that a rollback discarded."""
        kept = {step: loss for step, loss, applied in self.history if applied}
        return list(kept), list(kept.values())

    def discarded(self):
        """Returns steps and losses that a rollback discarded."""
        steps = [step for step, _, _ in self.history]
        again = [i for i, step in enumerate(steps) if step in steps[i + 1 :] and self.history[i][2]]
        return [steps[i] for i in again], [self.history[i][1] for i in again]


# -- what the log says


def events_in(log):
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "step"]


def row_of(event, names):
    """Returns a row of the table: event, step, rank, what was seen, origin, action."""
    action = f"{event['action']}: {event['reason']}"
    if event["snapshot"] is not None:
        action = f"rollback to step {event['snapshot']}, learning rate x {event['lr_factor']}: {event['reason']}"
    origin = event["origin"] or {"transient": "none: finite when it was run again"}.get(event["cause"], "-")
    name, seen = names.get(event["step"], "not planted"), without_folders(event["seen"])
    return [name, str(event["step"]), str(event["rank"]), seen, without_folders(origin), action]


def without_folders(text):
    return re.sub(r"\S*/(?=\w+\.py)", "", text)


def print_table(header, rows, widths):
    """Prints rows whose cells are wrapped to these widths."""
    rule = "  ".join("-" * width for width in widths)
    for i, row in enumerate([header, *rows]):
        cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if i < len(rows):
            print(rule)


# -- is the final loss the same?


def print_losses(clean, recovered):
    """Compares both runs and the spread of the seeds. Returns whether the recovered run is within it."""
    seeds = f"clean, {len(clean)} seeds"
    print(f"\n{'final loss':<20}{'clean, same seed':>18}{'recovered':>11}{seeds:>20}{'noise ends at':>15}")
    within = True
    for what, of in ((f"last {LAST} steps", Run.last_losses), ("held-out sentences", lambda run: run.held_out)):
        losses = [of(run) for run in clean]
        mean, deviation = statistics.fmean(losses), statistics.stdev(losses)
        limit = mean + T[len(clean)] * math.sqrt(1 + 1 / len(clean)) * deviation
        spread = f"{mean:.4f} ± {deviation:.4f}"
        verdict = "within noise" if of(recovered) <= limit else "NOT WITHIN NOISE"
        apart = (of(recovered) - mean) / deviation
        print(
            f"{what:<20}{losses[0]:>18.4f}{of(recovered):>11.4f}{spread:>20}{limit:>15.4f}"
            f"   {verdict} ({apart:+.1f} deviations)"
        )
        within = within and of(recovered) <= limit
    print("(± is the standard deviation between seeds; of 100 further clean runs, 99 end below where noise ends)")
    return within


# -- the picture

SHORT = {"skip": "skipped", "retry": "run again", "rollback": "rolled back", "split": "halved, run again"}
PALE, GREY, BLUE, RED, INK = "#c4c4c4", "#6e6e6e", "#1f5a96", "#b5483a", "#333333"
LABELS_AT = 2.35  # a loss above the curves at every event


def smoothed(values, window=9):
    half = window // 2
    return [statistics.fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def draw(out, clean, recovered, events, names):
    """Draws the curves, and their distance from the mean of the clean runs, as losses.svg and losses.png."""
    import matplotlib
    from matplotlib.figure import Figure

    style = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "torchnan", "legend.edgecolor": "white"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9.5, 6), facecolor="white", layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
        for number, event in enumerate(events, 1):
            mark((above, below), number, event, names)
        draw_losses(above, clean, recovered)
        draw_differences(below, clean, recovered)
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(x=0.01)
        figure.savefig(out / "losses.svg", metadata={"Date": None})
        figure.savefig(out / "losses.png", dpi=110)


def draw_losses(axes, clean, recovered):
    first, *others = clean
    for i, run in enumerate(others):
        steps, losses = run.kept()
        axes.plot(steps, smoothed(losses), color=PALE, linewidth=0.8, label="_" if i else "clean, other seeds")
    steps, losses = first.kept()
    axes.plot(steps, smoothed(losses), color=GREY, linewidth=1.1, label="clean, same seed")
    steps, losses = recovered.kept()
    axes.plot(steps, smoothed(losses), color=BLUE, linewidth=1.6, label="with four faults")
    steps, losses = recovered.discarded()
    axes.plot(steps, losses, color=RED, linewidth=1, label="discarded by the rollback")
    axes.axhline(FLOOR, color=INK, linewidth=0.8, linestyle="--")
    axes.text(1, FLOOR - 0.04, "entropy of the language, the minimum", color=INK, va="top", fontsize=8)
    axes.set(ylabel="loss (mean of 9 steps)", ylim=(0.7, None))
    axes.legend(loc="upper right", framealpha=1)


def draw_differences(axes, clean, recovered):
    steps = clean[0].kept()[0]
    at_each_step = list(zip(*(smoothed(run.kept()[1]) for run in clean), strict=True))
    mean = dict(zip(steps, map(statistics.fmean, at_each_step), strict=True))
    lows, highs = ([of(losses) - mean[s] for s, losses in zip(steps, at_each_step, strict=True)] for of in (min, max))
    axes.fill_between(steps, lows, highs, color=PALE, alpha=0.7, linewidth=0, label=f"all {len(clean)} clean seeds")
    kept, losses = recovered.kept()
    away = [loss - mean[step] for step, loss in zip(kept, smoothed(losses), strict=True)]
    axes.plot(kept, away, color=BLUE, linewidth=1.3, label="with four faults")
    axes.axhline(0, color=INK, linewidth=0.6)
    axes.set(xlabel="step", ylabel="difference to the\nmean of the clean")
    axes.legend(loc="upper right", ncols=2, framealpha=1)


def mark(both_axes, number, event, names):
    """Draws a line through both panels at an event, with its number and its name."""
    step, action = event["step"], SHORT.get(event["action"], event["action"])
    for axes in both_axes:
        axes.axvline(step, color=INK, linewidth=0.6, alpha=0.4)
    to = "" if event["snapshot"] is None else f" to {event['snapshot']}"
    ball = dict(boxstyle="circle,pad=0.25", facecolor=INK, edgecolor="white")
    both_axes[0].text(step, LABELS_AT, str(number), color="white", ha="center", va="center", fontsize=8, bbox=ball)
    label = f"{names.get(step, 'not planted')}\n{action}{to}"
    both_axes[0].annotate(label, (step, LABELS_AT), (9, 0), textcoords="offset points", color=INK, va="center")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="an empty folder for all output (default: a new one)")
    parser.add_argument("--steps", type=int, default=240, help="steps of each training (default: 240; at least 48)")
    parser.add_argument("--seeds", type=int, default=8, choices=T, help="how many clean trainings (default: 8)")
    given = parser.parse_args()
    out = (given.out or Path(tempfile.mkdtemp(prefix="recover-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        parser.error(f"{out} is not empty")

    train(out, given.steps, "--seeds", *map(str, range(given.seeds)))
    train(out, given.steps, "--seeds", "0", "--faults")

    clean, recovered = [Run(out / f"clean-{seed}") for seed in range(given.seeds)], Run(out / "recovered")
    names = {step: name for name, step in planned(given.steps).items()}
    events = events_in(out / "recovered" / "recovery.jsonl")
    print(f"\nThe faults were planted on rank {STRUCK}. The recovery log says:\n")
    header = ["event", "step", "rank", "what was seen", "origin", "action"]
    print_table(header, [row_of(event, names) for event in events], [13, 4, 4, 27, 38, 26])
    within = print_losses(clean, recovered)
    same = len(recovered.weights) == 1
    print(f"weights of the {RANKS} ranks in the end: {'the same' if same else 'NOT THE SAME'}")
    if importlib.util.find_spec("matplotlib"):
        draw(out, clean, recovered, events, names)
        print(f"the curves:   {out / 'losses.svg'}")
    else:
        print("no picture of the curves: matplotlib is not installed")
    print(f"everything:   {out}")
    capture = out / "recovered" / "captures" / f"rank-{STRUCK}-step-{planned(given.steps)['bad batch']:08d}"
    print(f"the bad batch once more, in one process:\n  cd {HERE}")
    print(f"  torchnan replay {capture} --step train:loss_of --model train:new_model")
    unseen = [name for step, name in names.items() if step not in {event["step"] for event in events}]
    if unseen:
        print(f"NOT SEEN: {', '.join(unseen)}")
    sys.exit(0 if within and same and not unseen else 1)


if __name__ == "__main__":
    main()
