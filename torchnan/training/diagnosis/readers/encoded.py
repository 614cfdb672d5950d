"""Opens a log as UTF-8, whatever its encoding, and the numbers in its text, however they are written."""

from __future__ import annotations

import codecs
import gzip
import io
import math
import re
from pathlib import Path
from typing import BinaryIO, cast

from torchnan.training.diagnosis.run import RunError

MAX_RECODED = 2**29  # bytes of a file that is not UTF-8
SAMPLE = 4096  # bytes that tell the encoding
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def open_log(path: Path) -> BinaryIO:
    """Opens a file, and returns its bytes as UTF-8 without a byte order mark. A file that gzip has written is read like
    its content.

    Raises:
        RunError: it is too large to be recoded.
        OSError: it cannot be opened.
    """
    with open(path, "rb") as raw:
        is_zipped = raw.read(2) == b"\x1f\x8b"
    file = cast(BinaryIO, (gzip.open if is_zipped else open)(path, "rb"))
    start = file.read(SAMPLE)
    encoding = _encoding_of(start)
    file.seek(len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0)
    if encoding is None:
        return file
    with file:
        content = file.read(MAX_RECODED + 1)
    if len(content) > MAX_RECODED:
        raise RunError(f"{path} is text in {encoding} of more than {MAX_RECODED:,} bytes: convert it to UTF-8.")
    return io.BytesIO(content.decode(encoding, "replace").encode())


def _encoding_of(start: bytes) -> str | None:
    """Returns the encoding by the byte order mark, or by where the zeros are; ``None`` for UTF-8."""
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            return encoding
    even, odd = start[::2], start[1::2]
    if len(odd) >= 4 and 2 * odd.count(0) > len(odd) and not even.count(0):
        return "utf-16-le"
    if len(odd) >= 4 and 2 * even.count(0) > len(even) and not odd.count(0):
        return "utf-16-be"
    return None


_NAN = re.compile(r"[-+]?(?:[qs]?nan(?:\([\w ]*\))?|1\.?#(?:[qs]nan|ind)\w*)", re.IGNORECASE)
_INF = re.compile(r"([-+]?)(?:inf(?:inity)?|∞|1\.?#inf\w*)", re.IGNORECASE)
_GROUPED = re.compile(
    r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?\d{1,3}(?:(['\u00a0\u202f ])\d{3})+[.,]?\d*"
)
_DECIMAL_COMMA = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+(?:[eE][-+]?\d+)?")
_NONFINITE = re.compile(rf"(?<![\w.-])(?:{_NAN.pattern}|{_INF.pattern})(?![\w.-])", re.IGNORECASE)
_CUT = re.compile(r":\s*\"?-?(?:n|na|i|in|nan|inf\w{0,5})$", re.IGNORECASE)


def to_float(text: str) -> float:
    """Returns the number in a text: also with thousands separators (``"1,000"``), and NaN and Inf as printf, C# and
    MSVC write them (``"-nan(ind)"``, ``"1.#QNAN"``).

    Raises:
        ValueError: it is not a number.
    """
    try:
        return float(text)
    except ValueError:
        stripped = text.strip().strip("'\"").strip()
    if _NAN.fullmatch(stripped):
        return math.nan
    if (infinite := _INF.fullmatch(stripped)) is not None:
        return -math.inf if infinite[1] == "-" else math.inf
    if _GROUPED.fullmatch(stripped):
        return float(re.sub(r"[,'\u00a0\u202f ](?=\d{3})", "", stripped).replace(",", "."))
    return float(stripped)


def without_decimal_comma(text: str) -> str:
    """Returns a number with a decimal comma as one with a point."""
    stripped = text.strip()
    return stripped.replace(".", "").replace(",", ".") if _DECIMAL_COMMA.fullmatch(stripped) else text


def has_nonfinite(text: str) -> bool:
    """Returns whether a text that is not read has a NaN or an Inf in it, or ends within one."""
    return _NONFINITE.search(text) is not None or _CUT.search(text) is not None
