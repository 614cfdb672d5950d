"""Diagnoses a training run with a decision tree: what is wrong with it, since when, why, and what to do.

torchnan diagnose run.jsonl
torchnan diagnose metrics.csv --html report.html --set spike_sigma=4
torchnan diagnose runs/gpt2 --json
torchnan diagnose wandb.csv --column loss=train/total_loss

RUN is the log of torchnan.Monitor, a CSV file, TensorBoard's event files, Transformers' trainer_state.json, or a folder
with one of these. The exit status is 0 if the run is healthy, 1 if anything is wrong with it, 2 if it cannot be read.
"""

from __future__ import annotations

import argparse
import io
import sys
from typing import TYPE_CHECKING

from torchnan.config.options import OptionError, suggest

if TYPE_CHECKING:
    from torchnan.diagnosis import Diagnosis, Run, Thresholds

NAME = "diagnose"
HELP = "diagnose a training run from its log"

HEALTHY, UNHEALTHY = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the thresholds and the outputs."""
    parser.add_argument("run", metavar="RUN", help="log, table, event files, trainer state, or a folder")
    parser.add_argument(
        "--column",
        metavar="COLUMN=NAME",
        action="append",
        default=[],
        help="the name that a column (loss, step, lr, ...) has in the file; repeat for more",
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("--html", metavar="FILE", help="write an HTML page with charts")
    parser.add_argument("--post-mortem", metavar="FILE", help="write a post-mortem document (Markdown)")
    parser.add_argument("--thresholds", metavar="FILE", help="TOML file of thresholds")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="one threshold; repeat for more"
    )


def execute(given: argparse.Namespace) -> int:
    """Prints the diagnosis; returns 1 if anything is wrong with the run, 0 if it is healthy."""
    try:
        from torchnan.diagnosis import RunError, Thresholds, diagnose, read
    except ImportError as error:
        raise OptionError(str(error)) from None
    columns = _columns(given.column)
    base = Thresholds.from_toml(given.thresholds) if given.thresholds else Thresholds()
    thresholds = base.with_texts(given.set)
    try:
        run = read(given.run, columns)
        found = diagnose(run, thresholds)
        _write(given, run, found, thresholds)
    except (RunError, ImportError) as error:
        raise OptionError(str(error)) from None
    return HEALTHY if found.verdicts[0].kind == "healthy" else UNHEALTHY


def _columns(texts: list[str]) -> dict[str, str]:
    """Returns the names that the user gives for columns, by column."""
    from torchnan.diagnosis.readers.column_names import COLUMN_ALIASES

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
    from torchnan.diagnosis.reports import page, post_mortem, terminal
    from torchnan.storage.private_file import write_text

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of modules may be of any alphabet
    print(_json(run, found) if given.json else terminal.text(run, found))
    if given.html:
        write_text(given.html, page.html(run, found, thresholds))
    if given.post_mortem:
        write_text(given.post_mortem, post_mortem.markdown(run, found))


def _json(run: Run, found: Diagnosis) -> str:
    from torchnan.monitor.format import to_dict
    from torchnan.storage.jsonl import CAMELCASE, sanitize_text, to_json_line

    facts = {
        "verdicts": [to_dict(verdict) for verdict in found.verdicts],
        "forecasts": [to_dict(forecast) for forecast in found.forecasts],
        "walk": [vars(question) for question in found.walk],
        "source": run.source,
        "notes": run.notes,
    }
    return to_json_line(sanitize_text(facts), CAMELCASE).rstrip("\n")
