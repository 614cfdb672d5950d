"""Validates the options and arguments of a Monitor before anything is written."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import torch

from torchnan.config.options import (
    OptionError,
    Settings,
    integer_from,
    is_path,
    nonnegative_int,
    one_of,
    parse_int,
    setting,
    switch,
)
from torchnan.config.text import brief, type_name
from torchnan.training.monitor.compute_dtype import COMPUTE_DTYPES
from torchnan.training.storage.jsonl import CAMELCASE, encode_nonfinite, sanitize_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitorOptions(Settings):
    """Options of a Monitor; :class:`torchnan.Monitor` documents them."""

    TOPIC: ClassVar[str] = "the monitor"

    log: str | Path | None = setting(None, "a path, or nothing", lambda v: v is None or is_path(v))
    max_bytes: int = nonnegative_int(2**26, minimum=2**16)
    parts: int | None = setting(
        None, "an integer of at least 2, or nothing", lambda v: v is None or integer_from(2)(v), parse_int
    )
    all_ranks: bool = switch(False)
    weights_every: int = nonnegative_int(20)
    headroom_every: int = nonnegative_int(50)
    live: bool = switch(True)
    judge_every: int = nonnegative_int(50, minimum=1)
    window: int = nonnegative_int(1000, minimum=50)
    rerun_in_fp32: bool = switch(True)
    dtype: str | None = setting(
        None, f"one of {', '.join(COMPUTE_DTYPES)}, or nothing", lambda v: v is None or one_of(*COMPUTE_DTYPES)(v)
    )

    def path_of(self, rank: int) -> str | None:
        """Returns the log of a rank, or ``None`` if the rank writes none."""
        if self.log is None or (rank > 0 and not self.all_ranks):
            return None
        path = Path(self.log)
        return os.fspath(path.with_name(f"{path.stem}.rank-{rank}{path.suffix}") if rank > 0 else path)


def validate_callbacks(callback: Any, on_instability: Any) -> None:
    """Raises for callbacks that are not callable."""
    for name, function in (("callback", callback), ("on_instability", on_instability)):
        if function is not None and not callable(function):
            raise TypeError(f"{name} is a {type_name(function)}: it must be callable")


def validate_meta(meta: Any) -> dict[str, Any]:
    """Returns the metadata of a run in a form that JSON can represent.

    Raises:
        OptionError: JSON cannot represent it.
    """
    if not isinstance(meta, Mapping):
        raise OptionError(f"meta={brief(meta)} cannot be used: it takes a dict of strings and numbers.")
    values: dict[str, Any] = encode_nonfinite(sanitize_text(dict(meta)), CAMELCASE)
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"meta={brief(meta)} cannot be used: {error}.") from None
    return values


def as_scalar(name: str, value: Any) -> float | torch.Tensor | None:
    """Returns a number, or a tensor of one element.

    Raises:
        TypeError: the value is neither.
    """
    if value is None:
        return None
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        return value
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
    raise TypeError(f"{name} is a {type_name(value)}{shape}: it takes a number, or a tensor of one element")


def as_scalars(name: str, value: Any) -> list[float | torch.Tensor]:
    """Returns one or several scalars as a list; ``None`` gives an empty one.

    Raises:
        TypeError: a value is not a scalar.
    """
    is_list = not isinstance(value, torch.Tensor | float | str | bytes) and isinstance(value, Sequence)
    several = value if is_list else [value]
    return [given for one in several if (given := as_scalar(name, one)) is not None]


def validate_step(step: Any, model: Any, optimizer: Any, scaler: Any, skipped: Any) -> None:
    """Raises for arguments of :meth:`Monitor.step` that have the wrong type."""
    if step is not None and (not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**62):
        raise TypeError(f"step={brief(step)} cannot be used: it takes the number of the step, 0 or above")
    if skipped is not None and not isinstance(skipped, bool):
        raise TypeError(f"skipped={brief(skipped)} cannot be used: it takes True or False")
    parts: list[tuple[str, Any, type | tuple[type, ...], str]] = [
        ("model", model, torch.nn.Module, "a torch.nn.Module"),
        ("optimizer", optimizer, torch.optim.Optimizer, "a torch.optim.Optimizer"),
        ("scaler", scaler, torch.amp.GradScaler, "a torch.amp.GradScaler"),
    ]
    for name, part, kind, wanted in parts:
        if part is not None and not isinstance(part, kind):
            raise TypeError(f"{name} is a {type_name(part)}: it takes {wanted}")
