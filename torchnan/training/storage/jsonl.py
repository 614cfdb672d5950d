"""Lines of strict JSON: one object each, non-finite numbers as text, all text Unicode."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from torchnan.config.text import to_valid_utf8


class NonfiniteNames(NamedTuple):
    """The texts for the numbers that JSON does not have."""

    nan: str
    inf: str
    minus_inf: str


LOWERCASE = NonfiniteNames("nan", "inf", "-inf")  # in findings and in the recovery log
CAMELCASE = NonfiniteNames("NaN", "Infinity", "-Infinity")  # in the monitor's log

_ENCODER = json.JSONEncoder(allow_nan=False)


def to_json_line(facts: dict[str, Any], names: NonfiniteNames) -> str:
    """Returns an object of sanitized text and numbers as a line.

    Raises:
        TypeError: it contains a type that JSON does not have.
    """
    try:
        return _ENCODER.encode(facts) + "\n"
    except ValueError:
        return _ENCODER.encode(encode_nonfinite(facts, names)) + "\n"


def encode_nonfinite(value: Any, names: NonfiniteNames) -> Any:
    """Returns a nested value with texts for its non-finite numbers, and with lists for its tuples."""
    if isinstance(value, float) and not math.isfinite(value):
        return names.nan if math.isnan(value) else names.inf if value > 0 else names.minus_inf
    if isinstance(value, dict):
        return {key: encode_nonfinite(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode_nonfinite(item, names) for item in value]
    return value


def sanitize_text(value: Any) -> Any:
    """Returns a nested value whose names and texts, which may come from user code, are valid Unicode of limited
    length."""
    if isinstance(value, str):
        return to_valid_utf8(value)
    if isinstance(value, dict):
        return {to_valid_utf8(str(key)): sanitize_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [sanitize_text(item) for item in value]
    return value
