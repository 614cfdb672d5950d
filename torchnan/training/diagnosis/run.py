"""A run as arrays, independent of its source."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchnan.config.text import MAX_MESSAGE_BYTES, printable
from torchnan.training.diagnosis.arrays import BoolArray, FloatArray, IntArray

COLUMNS = ("loss", "grad_norm", "lr", "loss_scale", "skipped")  # the columns that a Monitor measures
READ_COLUMNS = (*COLUMNS, "eval_loss")
GROUPED = ("lr", "weight_norm", "update_ratio")


class RunError(ValueError):
    """The file cannot be read as a run. The message says what it is, and which formats can be read."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text, MAX_MESSAGE_BYTES))


@dataclasses.dataclass(frozen=True)
class Column:
    """One number per row.

    Attributes:
        values: the numbers, including NaN and Inf; NaN where there is none.
        given: whether the row has a number.
    """

    values: FloatArray
    given: BoolArray

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Column:
        """Returns a column of numbers; ``None`` marks a missing one."""
        listed = list(values)
        given = np.array([value is not None for value in listed], dtype=bool)
        return cls(np.array([np.nan if value is None else value for value in listed], dtype=np.float64), given)

    @classmethod
    def missing(cls, rows: int) -> Column:
        """Returns a column without numbers."""
        return cls(np.full(rows, np.nan), np.zeros(rows, dtype=bool))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Column:
        return Column(self.values[rows], self.given[rows])

    @property
    def bad(self) -> BoolArray:
        """Rows with a NaN or an Inf."""
        return self.given & ~np.isfinite(self.values)


@dataclasses.dataclass(frozen=True)
class Digests:
    """64 bits that identify the batch of each row, and whether they are known."""

    values: NDArray[np.uint64]
    given: BoolArray

    @classmethod
    def of(cls, texts: Iterable[object]) -> Digests:
        """Returns digests of strings or numbers that identify a batch; ``None`` or ``""`` where there is none."""
        words = list(texts)
        if (read := _of_hexadecimal(words)) is not None:
            return cls(read, np.ones(len(words), dtype=bool))
        listed = [None if text is None or text == "" else _bits(str(text)) for text in words]
        given = np.array([bits is not None for bits in listed], dtype=bool)
        return cls(np.array([bits or 0 for bits in listed], dtype=np.uint64), given)

    @classmethod
    def missing(cls, rows: int) -> Digests:
        """Returns digests of unknown batches."""
        return cls(np.zeros(rows, dtype=np.uint64), np.zeros(rows, dtype=bool))

    def __getitem__(self, rows: Any) -> Digests:
        return Digests(self.values[rows], self.given[rows])


def _of_hexadecimal(words: list[Any]) -> NDArray[np.uint64] | None:
    """Parses all digests at once, if each has 16 digits, as in the log of a Monitor."""
    try:
        raw = bytes.fromhex("".join(words))
    except (TypeError, ValueError):
        return None
    if set(map(len, words)) != {16} or len(raw) != 8 * len(words):
        return None
    return np.frombuffer(raw, dtype=">u8").astype(np.uint64)


def _bits(text: str) -> int:
    if re.fullmatch("[0-9a-fA-F]{16}", text):
        return int(text, 16)
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


@dataclasses.dataclass(frozen=True)
class Headroom:
    """Largest absolute values of a module's output, and the dtype whose range they must fit in (``"float16"``)."""

    module: str
    dtype: str
    step: IntArray
    largest: FloatArray


@dataclasses.dataclass
class Run:
    """A training run, one row per optimizer step that was logged.

    Attributes:
        step: strictly increasing; restarts are resolved.
        columns: those of :data:`READ_COLUMNS` that any row has. ``"lr"`` is the largest over the parameter groups;
            ``"skipped"`` is 1 where the optimizer did not apply the step.
        groups: ``"weight_norm"``, ``"update_ratio"`` and ``"lr"`` by name of the parameter group.
        batch_digest: identifies each row's batch.
        headroom: by module.
        findings: origins of non-finite values, as ``{"step": ..., "finding": {...}}``.
        reruns: bad steps run again in float32, as ``{"step": ..., "dtype": ..., "finite": ...}``.
        dtype: dtype that the model computes in: ``"float32"``, ``"float16"``, ``"bfloat16"``; ``None`` if unknown.
        starts: first steps of the run and of each restart.
        source: where it was read from.
        notes: what in the source was damaged, cut or ignored.
        candidates: names in the source that stand for no column.
        last_seen: the largest step in the source, with or without a number; ``None`` if that is not known.
        unread_losses: how many losses in the source are not numbers.
        left_out: how many rows of the source are not in the run, because they are damaged, have no step, or have that
            of another row.
        left_out_nonfinite: how many of these, and of columns that are not read, have a NaN or an Inf.
        parts: if the source has several series, such as those of ranks, all of them by name. The other attributes
            are those of the first.
        actions: what a step guard did about bad steps, as ``{"step": ..., "action": "rollback"}``.
    """

    step: IntArray
    columns: dict[str, Column]
    groups: dict[str, dict[str, Column]] = dataclasses.field(default_factory=dict)
    batch_digest: Digests | None = None
    headroom: list[Headroom] = dataclasses.field(default_factory=list)
    findings: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    reruns: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    dtype: str | None = None
    starts: list[int] = dataclasses.field(default_factory=list)
    source: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)
    actions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    candidates: list[str] = dataclasses.field(default_factory=list)
    last_seen: int | None = None
    unread_losses: int = 0
    left_out: int = 0
    left_out_nonfinite: int = 0
    parts: dict[str, Run] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)

    def column(self, name: str) -> Column:
        """Returns the column of a name; one without numbers if no row has it."""
        return self.columns.get(name) or Column.missing(len(self))

    def has(self, name: str) -> bool:
        """Returns whether any row has a number in a column."""
        return name in self.columns and bool(self.columns[name].given.any())


def of_columns(
    step: Iterable[int],
    columns: Mapping[str, Iterable[float | None]],
    *,
    batch_digest: Iterable[object] = (),
    **rest: Any,
) -> Run:
    """Returns a run made of plain lists: ``of_columns(range(3), {"loss": [1, 0.9, 0.8]}, dtype="float32")``.

    Args:
        step: strictly increasing.
        columns: those of :data:`READ_COLUMNS`, or ``"weight_norm"`` and ``"update_ratio"`` of a single group named
            ``"all"``.
        batch_digest: strings that identify the batches.
        rest: the other attributes of :class:`Run`.
    """
    steps = np.array(list(step), dtype=np.int64)
    digests = Digests.of(batch_digest)
    groups = {name: {"all": Column.of(columns[name])} for name in GROUPED if name in columns}
    return Run(
        steps,
        {name: Column.of(values) for name, values in columns.items() if name in READ_COLUMNS},
        groups,
        digests if len(digests.given) else None,
        **rest,
    )
