"""Diagnoses a training run with a decision tree: what is wrong with it, since when, why, and what to do.

torchnan diagnose run.jsonl
torchnan diagnose metrics.csv --html report.html --set spike_sigma=4
torchnan diagnose runs/gpt2 --json
torchnan diagnose wandb.csv --column loss=train/total_loss
torchnan diagnose train.log --follow --fail-on nonfinite,not_learning

RUN is the log of torchnan.Monitor, JSON Lines, a CSV file, what a program has printed, TensorBoard's event files,
Transformers' trainer_state.json, a history of Keras, or a folder with one of these, of MLflow or of Weights & Biases.
The exit status is 0 if nothing is wrong with the run, 1 if anything is, 2 if the log does not show that: it cannot be
read, has no loss, or the verdict is undetermined.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchnan.config.options import OptionError, suggest
from torchnan.config.text import printable

if TYPE_CHECKING:
    from torchnan.training.diagnosis import Diagnosis, Run, Thresholds, Verdict

NAME = "diagnose"
HELP = "diagnose a training run from its log"

HEALTHY, UNHEALTHY, UNDETERMINED = 0, 1, 2
FOLLOW_SECONDS = 1.0  # between two checks of a growing log
FOLLOW_SHARE = 10  # wait this many times as long as reading the log took


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the thresholds and the outputs."""
    parser.add_argument("run", metavar="RUN", help="log, table, event files, trainer state, or a folder")
    parser.add_argument(
        "--column",
        metavar="COLUMN=NAME",
        action="append",
        default=[],
        help="name of a column (loss, step, lr, ...) in the file; repeat for more",
    )
    parser.add_argument(
        "--pattern",
        metavar="REGEX",
        action="append",
        default=[],
        help="pattern of the lines of a text, with groups named by columns: 'it (?P<step>\\d+) L (?P<loss>\\S+)'",
    )
    parser.add_argument(
        "--fail-on",
        metavar="KINDS",
        help="kinds of verdict for which the exit status is 1, separated by commas (default: all)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="keep reading while the log grows, and print each new verdict; end at the first of --fail-on",
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("--html", metavar="FILE", help="write an HTML page with charts")
    parser.add_argument("--post-mortem", metavar="FILE", help="write a post-mortem document (Markdown)")
    parser.add_argument("--thresholds", metavar="FILE", help="TOML file of thresholds")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="one threshold; repeat for more"
    )


def execute(given: argparse.Namespace) -> int:
    """Prints the diagnosis; returns 1 if anything is wrong with the run, 2 if the log leaves that open, 0 if not."""
    try:
        from torchnan.training.diagnosis import RunError, Thresholds, diagnose, read
        from torchnan.training.diagnosis.readers.source import no_loss
    except ImportError as error:
        raise OptionError(str(error)) from None
    columns, failing = _columns(given.column), _kinds(given.fail_on)
    base = Thresholds.from_toml(given.thresholds) if given.thresholds else Thresholds()
    thresholds = base.with_texts(given.set)
    try:
        if given.follow:
            return _follow(given, columns, failing, thresholds)
        run = read(given.run, columns, given.pattern)
        found = diagnose(run, thresholds)
        if not run.has("loss") and not found.verdicts[0].is_bad:
            raise OptionError(no_loss(run))
        _write(given, run, found, thresholds)
    except (RunError, ImportError) as error:
        raise OptionError(str(error)) from None
    if any(_fails(verdict, failing) for verdict in found.verdicts):
        return UNHEALTHY
    return UNDETERMINED if any(verdict.kind == "undetermined" for verdict in found.verdicts) else HEALTHY


def _fails(verdict: Verdict, failing: frozenset[str] | None) -> bool:
    return verdict.is_bad if failing is None else verdict.kind in failing


def _kinds(text: str | None) -> frozenset[str] | None:
    """Returns the kinds that --fail-on names, ``None`` for all."""
    from torchnan.training.diagnosis.decision_tree import WORST_FIRST

    if text is None:
        return None
    named = frozenset(text.split(","))
    for kind in sorted(named - set(WORST_FIRST)):
        raise OptionError(
            f"--fail-on {text} cannot be used: there is no kind '{kind}'.{suggest(kind, WORST_FIRST)} Kinds: "
            f"{', '.join(WORST_FIRST)}."
        )
    return named


def _follow(
    given: argparse.Namespace, columns: dict[str, str], failing: frozenset[str] | None, thresholds: Thresholds
) -> int:
    """Diagnoses a log whenever it has grown, and prints each verdict once. Returns at the first verdict that fails."""
    from torchnan.training.diagnosis import RunError, diagnose, read
    from torchnan.training.diagnosis.reports import terminal

    printed: set[tuple[str, int]] = set()
    for _ in _growths(given.run):
        try:
            run = read(given.run, columns, given.pattern)
        except RunError:  # the log is still empty
            continue
        found = diagnose(run, thresholds)
        if failing is not None and any(_fails(verdict, failing) for verdict in found.verdicts):
            _write(given, run, found, thresholds)
            return UNHEALTHY
        new = [v for v in found.verdicts if v.is_bad and (v.kind, v.first_step) not in printed]
        printed |= {(verdict.kind, verdict.first_step) for verdict in new}
        for verdict in () if given.json else new:
            print("\n".join(terminal.verdict_lines(verdict)), flush=True)
        if new and given.json:
            print(_json(run, found), flush=True)
    return HEALTHY


def _growths(path: str) -> Iterator[None]:
    """Yields at once, and then whenever a file, or a file in a folder, has changed."""
    seen: object = None
    while True:
        now = _state(path)
        if now == seen:
            time.sleep(FOLLOW_SECONDS)
            continue
        seen, begun = now, time.monotonic()
        yield
        time.sleep(max(FOLLOW_SECONDS, FOLLOW_SHARE * (time.monotonic() - begun)))


def _state(path: str) -> object:
    if not os.path.isdir(path):
        return os.stat(path).st_size, os.stat(path).st_mtime_ns
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sorted((file, os.stat(file).st_size) for file in files)


def _columns(texts: list[str]) -> dict[str, str]:
    """Returns the column names that the user gives, by column."""
    from torchnan.training.diagnosis.readers.column_names import COLUMN_ALIASES

    named = {}
    for text in texts:
        column, _, name = text.partition("=")
        if column not in COLUMN_ALIASES or not name:
            raise OptionError(
                f"--column {text} cannot be used: it takes COLUMN=NAME.{suggest(column, COLUMN_ALIASES)} Columns: "
                f"{', '.join(COLUMN_ALIASES)}."
            )
        named[column] = name
    return named


def _write(given: argparse.Namespace, run: Run, found: Diagnosis, thresholds: Thresholds) -> None:
    from torchnan.pages.private_file import write_text
    from torchnan.training.diagnosis.reports import page, post_mortem, terminal

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of modules may use any alphabet
    run = run.parts.get(found.part, run)
    print(_json(run, found) if given.json else terminal.text(run, found))
    written = [
        (given.html, "page", page.html),
        (given.post_mortem, "post-mortem", lambda run, found, _: post_mortem.markdown(run, found)),
    ]
    for path, what, make in written:
        if path:
            write_text(path, make(run, found, thresholds))
            print(f"torchnan: the {what} is {printable(path)}", file=sys.stderr)


def _json(run: Run, found: Diagnosis) -> str:
    from torchnan.training.monitor.format import to_dict
    from torchnan.training.storage.jsonl import CAMELCASE, sanitize_text, to_json_line

    facts = {
        "verdicts": [to_dict(verdict) for verdict in found.verdicts],
        "forecasts": [to_dict(forecast) for forecast in found.forecasts],
        "walk": [vars(question) for question in found.walk],
        "source": run.source,
        "notes": run.notes,
    }
    return to_json_line(sanitize_text(facts), CAMELCASE).rstrip("\n")
