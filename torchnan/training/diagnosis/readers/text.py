"""Reads named numbers from plain text: ``iter 7: loss 2.31``, ``{'loss': 2.31}``, ``loss=2.31``."""

from __future__ import annotations

import array
import bisect
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from torchnan.config.options import OptionError
from torchnan.config.text import brief
from torchnan.training.diagnosis.arrays import FloatArray
from torchnan.training.diagnosis.readers.column_names import COLUMN_ALIASES, is_known, is_loss, match_columns, normal
from torchnan.training.diagnosis.readers.encoded import open_log, to_float
from torchnan.training.diagnosis.readers.run_builder import RunBuilder
from torchnan.training.diagnosis.run import Column, Run, RunError

MAX_LINE = 2**16  # letters of a line that are read
MAX_WORD = 128  # letters of a word in a name
MAX_NAMES = 2000  # different names of numbers; later ones are dropped
SUMMARIES = 0.5  # rows in a less common style are means over epochs if they are fewer than this share of all

_NONFINITE = r"[-+]?(?:nan|inf(?:inity)?)\b|[-+]?∞|[-+]?1\.?#[A-Za-z]+\w*"
_NUMBER = rf"{_NONFINITE}|[-+]?(?:\d[\d_]*(?:,\d{{3}})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
# Each pattern takes time in proportion to the line: words are bounded, and begin where letters begin.
_WORD = rf"[A-Za-z_][\w./@-]{{0,{MAX_WORD - 1}}}"
_PAIR = re.compile(
    rf"(?<![A-Za-z_])(?P<name>{_WORD}(?:\([\w%/]{{1,10}}\))?(?: {_WORD}){{0,3}})['\"]?(?P<separator>\s*[:=]\s*|\s+)"
    rf"(?:tensor\(|\[|['\"])*(?P<value>{_NUMBER})(?![\w.])",
    re.IGNORECASE,
)
_CELLS = re.compile(rf"\s*\|\s*(?P<name>[\w/]+(?: [\w/]+)*)\s*\|\s*(?P<value>{_NUMBER})\s*\|\s*", re.IGNORECASE)
_RANK = re.compile(r"(?:\[|^)[^\[\]]{0,40}\brank[ _:=]?(\d{1,6})\b", re.IGNORECASE)  # "[rank0]:", "[default0 rank 3]"
_PROGRESS = re.compile(r"\| (?P<step>\d+)/\d+ \[")  # written by tqdm
_CONTEXT = re.compile(r"(?<![\w/.-])(?:(train\w*)|(val|valid\w*|eval\w*|test|dev))(?![\w/.])", re.IGNORECASE)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SUMMARY = re.compile(r"epoch results:|\| end of epoch", re.IGNORECASE)

# The messages of programs when a scaler skips a step, and the scales in them.
_OVERFLOW = re.compile(r"OVERFLOW!|(?:grad(?:ient)?s?|loss scale) overflow", re.IGNORECASE)
_TRIED = re.compile(rf"attempted loss scale:? ({_NUMBER})", re.IGNORECASE)
_LOWERED = re.compile(rf"(?:reducing|setting|reduced|lowering)(?: the)?(?: loss scale)?(?: to)?:? ({_NUMBER})", re.I)

# The messages of programs before they give up.
_LOSS_IS_BAD = re.compile(
    r"\bloss\b(?: \w+)? (?:is|became|was|=|of)(?: \w+){0,2}? (nan|inf)\w*|\b(?:nan|infinite|non-?finite) loss\b", re.I
)
_AT_STEP = re.compile(r"\b(?:iteration|iter|step)[ =:]+(\d+)", re.IGNORECASE)
_NORM_IS_BAD = re.compile(r"\bgrad(?:ient)?[ _]?norm is ([-+]?(?:nan|inf))", re.IGNORECASE)


@dataclasses.dataclass
class _Numbers:
    """The numbers of a name, with their rows and their style."""

    rows: array.array[int] = dataclasses.field(default_factory=lambda: array.array("q"))
    values: array.array[float] = dataclasses.field(default_factory=lambda: array.array("d"))
    styles: array.array[int] = dataclasses.field(default_factory=lambda: array.array("B"))


def read(path: Path, columns: Mapping[str, str], patterns: Sequence[str] = ()) -> Run:
    """Returns the run in the lines of a text.

    Args:
        path: the file.
        columns: names in it that the user gives for columns of a run.
        patterns: regular expressions with groups named by columns, which replace the search for names.

    Raises:
        OptionError: a pattern is invalid.
        RunError: there is no named number in it.
    """
    reading = _TextReader([_compiled(pattern) for pattern in patterns])
    with open_log(path) as file:
        for line in _lines(file):
            reading.add(line)
    return reading.finish(str(path), columns)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        made = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"--pattern {brief(pattern)} is not a regular expression: {error}.") from None
    unknown = made.groupindex.keys() - COLUMN_ALIASES.keys()
    if unknown or not made.groupindex:
        raise OptionError(
            f"--pattern {brief(pattern)} cannot be used: it takes groups named by columns, such as "
            f"'step (?P<step>\\d+).*loss (?P<loss>\\S+)'. Columns: {', '.join(COLUMN_ALIASES)}."
        )
    return made


def _lines(file: BinaryIO) -> Iterator[str]:
    """Yields lines, and the states of a progress bar, which are separated by carriage returns."""
    rest = b""
    while block := file.read(MAX_LINE):
        *lines, rest = re.split(rb"[\r\n]", rest[: 2 * MAX_LINE] + block)
        yield from (_COLOURS.sub("", line[:MAX_LINE].decode("utf-8", "replace")) for line in lines)
    yield _COLOURS.sub("", rest[:MAX_LINE].decode("utf-8", "replace"))


class _TextReader:
    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        self._patterns = patterns
        self._numbers: dict[str, _Numbers] = {}
        self._row = -1
        self._in_row: set[str] = set()
        self._has_loss = False  # the last row
        self._step: float | None = None
        self._step_name = "step"  # the name in the last line
        self._pending: dict[str, float] = {}  # printed before the row that they belong to
        self._scale: float | None = None  # the scale after the last overflow

    def add(self, line: str) -> None:
        """Adds the numbers of a line."""
        if self._patterns:
            found = {
                name: (_float(text), 0)
                for pattern in self._patterns
                if (match := pattern.search(line)) is not None
                for name, text in match.groupdict().items()
                if text is not None and _is_number(text)
            }
            self._add_row(found)
        elif _OVERFLOW.search(line):
            self._overflow(line)
        elif (norm := _NORM_IS_BAD.search(line)) is not None:
            self._pending["grad_norm"] = float(norm[1])
        elif (bad := _LOSS_IS_BAD.search(line)) is not None:
            at = _AT_STEP.search(line)
            step = {} if at is None else {self._step_name: (float(at[1]), 0)}
            self._add_row({"loss": (float((bad[1] or "nan").lower()), 0), **step})
        else:
            self._add_row(_pairs(line))

    def _overflow(self, line: str) -> None:
        tried, lowered = _TRIED.search(line), _LOWERED.search(line)
        self._pending["overflow"] = float("inf")
        if lowered is not None and "hysteresis" not in line:
            self._scale = _float(lowered[1])
            self._pending["scaled"] = _float(tried[1]) if tried is not None else 2 * self._scale

    def _add_row(self, found: dict[str, tuple[float, int]]) -> None:
        """Adds numbers to a new row, or to the last one if they belong to its step or are not about the training."""
        if not found:
            return
        counter = next((name for name in COLUMN_ALIASES["step"] if name in found), None)
        step = None if counter is None else found[counter][0]
        self._step_name = counter or self._step_name
        is_training = any(is_loss(name) and not name.startswith("eval_") for name in found)
        is_same = step is not None and step == self._step
        repeats = bool(self._in_row & {name for name in found if is_loss(name)})
        if is_same and repeats and "progress" in found and found["progress"][0] == step:
            self._replace(found)  # a redrawn progress bar
            return
        continues = self._row >= 0 and (
            (is_same and not repeats) or (step is None and not (is_training and self._has_loss))
        )
        if not continues:
            self._row += 1
            self._in_row, self._has_loss = set(), False
        if is_training and not self._has_loss:
            found.update({name: (value, 0) for name, value in self._pending.items()})
            self._pending = {}
            if self._scale is not None:
                found.setdefault("scaled", (self._scale, 0))
            self._replace(found)  # a row with only settings becomes the row of the loss
            self._has_loss = True
        self._step = self._step if step is None else step
        for name, (value, style) in found.items():
            if name not in self._in_row and (name in self._numbers or len(self._numbers) < MAX_NAMES):
                numbers = self._numbers.setdefault(name, _Numbers())
                numbers.rows.append(self._row)
                numbers.values.append(value)
                numbers.styles.append(style)
                self._in_row.add(name)

    def _replace(self, found: dict[str, tuple[float, int]]) -> None:
        for name, (value, _) in found.items():
            if name in self._in_row and math.isfinite(self._numbers[name].values[-1]):  # a NaN is not painted over
                self._numbers[name].values[-1] = value

    def finish(self, source: str, columns: Mapping[str, str]) -> Run:
        """Returns the run."""
        if self._pending:  # printed after the last row
            self._in_row = set()
            self._append_pending()
        names = [name for name in self._numbers if name not in ("overflow", "scaled")]
        if not names:
            raise RunError(
                f"{source} is not the log of a run: no line of it has a number with a name, such as 'loss 2.3', "
                "'loss: 2.3' or 'loss=2.3'. --pattern REGEX says how its lines are written."
            )
        rows = self._row + 1
        known = (
            {name: name for name in names}
            if self._patterns
            else match_columns(self._without_rare_steps(names), columns)
        )
        table = {column: self._column(name, rows) for name, column in known.items()}
        builder = RunBuilder(source)
        builder.set_aside(names, known, lambda name: self._numbers[name].values.tolist())
        self._leave_out_summaries(known, table, builder)
        for name, column in (("scaled", "loss_scale"), ("overflow", "grad_norm")):
            if name in self._numbers:
                table[column] = _completed(table.get(column), self._column(name, rows))
        wanted = [c for name, c in table.items() if name.partition("#")[0] in ("loss", "eval_loss", "grad_norm")]
        keep = np.any([column.given for column in wanted], axis=0) if wanted else np.zeros(rows, dtype=bool)
        step = table.pop("step", None)
        kept = np.flatnonzero(keep)
        is_row = np.any([c.given for n, c in table.items() if n.partition("#")[0] == "loss"] or [keep], axis=0)
        own = {name: column[kept] for name, column in table.items()}
        if step is not None:
            builder.add(_carried(step)[kept], own)
        elif len(kept):
            builder.add_note("No line of the training has a step: its lines are counted from 0.")
            builder.add(np.maximum(np.cumsum(is_row) - 1, 0)[kept], own)  # an evaluation belongs to the row before it
        return builder.build()

    def _without_rare_steps(self, names: list[str]) -> list[str]:
        """Drops the names of steps that occur with fewer than half of the losses: those lines count something else."""
        losses = [self._numbers[name].rows for name in names if is_loss(name) and not name.startswith("eval_")]
        usual = max(losses, key=len, default=array.array("q"))
        steps = [name for name in names if name in COLUMN_ALIASES["step"] and usual]
        rare = [n for n in steps if 2 * len(np.intersect1d(self._numbers[n].rows, usual)) <= len(usual)]
        return [name for name in names if name not in rare]

    def _append_pending(self) -> None:
        row = max(self._row, 0)
        self._row = row
        for name, value in self._pending.items():
            numbers = self._numbers.setdefault(name, _Numbers())
            if numbers.rows and numbers.rows[-1] == row:
                numbers.values[-1] = value
            else:
                numbers.rows.append(row)
                numbers.values.append(value)
                numbers.styles.append(0)

    def _column(self, name: str, rows: int) -> Column:
        numbers = self._numbers[name]
        values, given = np.full(rows, np.nan), np.zeros(rows, dtype=bool)
        at = np.frombuffer(numbers.rows, dtype=np.int64)
        values[at], given[at] = np.frombuffer(numbers.values, dtype=np.float64), True
        return Column(values, given)

    def _leave_out_summaries(self, known: Mapping[str, str], table: dict[str, Column], builder: RunBuilder) -> None:
        """Drops losses in a less common style: they are means over epochs.

        A non-finite one always stays.
        """
        for name, column in known.items():
            if column != "loss" or self._patterns:
                continue
            numbers = self._numbers[name]
            styles = np.frombuffer(numbers.styles, dtype=np.uint8)
            usual = int(np.bincount(styles).argmax())
            others = np.flatnonzero(styles != usual)
            others = others[np.isfinite(np.frombuffer(numbers.values, dtype=np.float64)[others])]
            if 0 < len(others) < SUMMARIES * len(styles):
                at = np.frombuffer(numbers.rows, dtype=np.int64)[others]
                for other in (table[c] for c in table if c != "eval_loss"):
                    other.given[at], other.values[at] = False, np.nan
                builder.add_note(f"{len(others):,} lines with a loss are written in another way: summaries, left out.")


def _carried(step: Column) -> FloatArray:
    """Returns steps; a row without one gets the last one before it."""
    last = np.maximum.accumulate(np.where(step.given, np.arange(len(step.given)), -1))
    carried: FloatArray = np.where(last >= 0, step.values[np.maximum(last, 0)], np.nan)
    return carried


def _completed(column: Column | None, other: Column) -> Column:
    """Returns a column, with the numbers of another where it has none."""
    if column is None:
        return other
    return Column(np.where(column.given, column.values, other.values), column.given | other.given)


def _pairs(line: str) -> dict[str, tuple[float, int]]:
    """Returns the numbers of a line by name, each with an identifier of its style."""
    found: dict[str, tuple[float, int]] = {}
    if (rank := _RANK.search(line)) is not None:
        found["rank"] = (float(rank[1]), 0)
    if (cells := _CELLS.fullmatch(line)) is not None:  # from a table that Stable Baselines prints
        return {_name(cells["name"]): (_float(cells["value"]), 0)}
    if (progress := _PROGRESS.search(line)) is not None:
        found["progress"] = (float(progress["step"]), 0)
    summary = 4 if _SUMMARY.search(line) else 0
    contexts = list(_CONTEXT.finditer(line))
    starts = [context.start() for context in contexts]
    for match in _PAIR.finditer(line):
        raw = match["name"]
        if raw.endswith((".py", ".cc", ".cu", ".cpp")):
            continue
        name = _name(raw)
        before = bisect.bisect_left(starts, match.start("name"))
        is_evaluation = before > 0 and contexts[before - 1][1] is None
        if is_evaluation and is_loss(name) and not name.startswith(("train", "eval_", "val", "test", "dev")):
            name = f"eval_{name}"
        separator = match["separator"].strip()
        style = {"": 0, "=": 1, ":": 2}[separator] + summary
        found.setdefault(name, (_float(match["value"]), style))
    return found


@functools.lru_cache(maxsize=8192)
def _name(raw: str) -> str:
    """Returns the name of a number without the words before it: "then got loss" becomes "loss"."""
    words = raw.split(" ")
    for first in range(len(words)):
        name = normal(" ".join(words[first:]))
        if is_known(name):
            return name
    last = normal(words[-1])
    return last if is_loss(last) or len(words) == 1 else normal(raw)


def _is_number(text: str) -> bool:
    try:
        _float(text)
    except ValueError:
        return False
    return True


def _float(text: str) -> float:
    return to_float(text.replace(",", "").replace("_", ""))
