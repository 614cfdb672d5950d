"""Reads a folder that :mod:`atomic_folder` has written, and trusts nothing in it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchnan.training.storage.errors import CaptureError
from torchnan.training.storage.schema_checks import damaged, require_key

FORMAT = 1
CONTENTS = "contents.json"
MAX_DOCUMENT_BYTES = 64 * 2**20
MAX_DOCUMENT_MEMORY = 256 * 2**20  # bytes that the objects of a document take in Python
STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # of a file's name
_CHUNK = 2**22  # bytes

# Upper bounds of the bytes that CPython allocates for each of these characters: a list of up to four items, a dict of
# one item, an item of either, a quote (half of a string).
_MEMORY_OF = {b"[": 96, b"{": 240, b",": 48, b":": 48, b'"': 32}
_MEMORY_OF_STORED_TENSOR = 2048  # its entry in safetensors' header, and the tensor


def is_capture_folder(target: Path) -> bool:
    """Returns whether a folder has any file that `atomic_folder.write` makes; it may be damaged."""
    return any(target.glob("*.safetensors")) or os.path.lexists(target / CONTENTS)


def read(target: Path) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
    """Returns the documents and the tensors of a folder, by stem, as they were given to `atomic_folder.write`.

    Sizes are compared with the recorded ones, and documents with 64 MiB and with the memory that they would take,
    before anything is loaded. The format of the folder is checked, and that of each document with a number under
    ``"format"``.

    Raises:
        CaptureError: the folder or a file of it is missing, damaged or truncated, it was made by a newer torchnan, or
            safetensors is not installed.
    """
    library = safetensors()
    require_folder(target)
    documents: dict[str, Any] = {}
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for name, size, crc32 in _read_contents(target / CONTENTS):
        path = target / name
        if path.suffix == ".json":
            documents[path.stem] = document = _parse_document(path, _read_document(path, size, crc32))
            if type(document) is dict and type(document.get("format")) is int:
                _check_format(document["format"], path)
        else:
            _check_crc32(path, size, crc32)
            tensors[path.stem] = _load_tensors(path, library)
    return documents, tensors


def require_folder(target: Path) -> None:
    """Raises ``CaptureError`` if there is no such folder."""
    if not target.is_dir():
        what = "it is a file, and not a folder" if target.exists() else "there is no such folder"
        raise CaptureError(f"{target} cannot be read: {what}.")


def safetensors() -> ModuleType:
    """Imports safetensors' functions for PyTorch.

    Raises:
        CaptureError: it is not installed.
    """
    try:
        import safetensors.torch
    except ImportError as error:
        raise CaptureError("captures need safetensors: pip install safetensors") from error
    return safetensors.torch


def crc32_of(path: Path, size: int | None = None) -> int:
    """Returns the CRC-32 of a file.

    Raises:
        CaptureError: it cannot be read, or has another size.
    """
    crc = 0
    with _open_regular(path, size) as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc


def _read_contents(path: Path) -> list[tuple[str, int, int]]:
    """Returns name, size in bytes and CRC-32 of every file."""
    known: set[str] = set()
    described = _parse_document(path, _read_document(path))
    where = str(path)
    _check_format(require_key(described, "format", int, where), path)
    files: list[tuple[str, int, int]] = []
    for i, file in enumerate(require_key(described, "files", list, where)):
        at = f"{where}['files'][{i}]"
        name = require_key(file, "name", str, at)
        size, crc32 = require_key(file, "bytes", int, at), require_key(file, "crc32", int, at)
        stem, dot, suffix = name.rpartition(".")
        is_one = dot and STEM.fullmatch(stem) and suffix in ("json", "safetensors") and name != CONTENTS
        if not is_one or name in known:
            raise damaged(f"{at}['name']", "the name of a separate file, *.json or *.safetensors", name)
        known.add(name)
        files.append((name, size, crc32))
    return files


def _check_format(made: int, path: Path) -> None:
    if made > FORMAT:
        raise CaptureError(
            f"{path.parent} was made by a newer torchnan: format {made}, this one reads {FORMAT}. Update torchnan."
        )
    if made != FORMAT:
        raise damaged(f"{path}['format']", str(FORMAT), made)


def _read_document(path: Path, size: int | None = None, crc32: int | None = None) -> bytes:
    """Reads a document."""
    with _open_regular(path, size) as file:
        there = os.fstat(file.fileno()).st_size
        if there > MAX_DOCUMENT_BYTES:
            raise CaptureError(f"{path} has {there} bytes, and a document has at most {MAX_DOCUMENT_BYTES}.")
        text: bytes = file.read(MAX_DOCUMENT_BYTES + 1)
    if crc32 is not None and zlib.crc32(text) != crc32:
        raise _crc_error(path)
    return text


@contextlib.contextmanager
def _open_regular(path: Path, size: int | None) -> Iterator[Any]:
    """Opens a regular file of this size."""
    try:
        with open(path, "rb", opener=_open_without_following_links) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CaptureError(f"{path} is not a file.")
            there = os.fstat(file.fileno()).st_size
            if size is not None and there != size:
                raise CaptureError(f"{path} has {there} bytes and had {size} when it was written: it is damaged.")
            yield file
    except FileNotFoundError as error:
        raise CaptureError(f"{path} is missing: the folder is incomplete.") from error
    except OSError as error:
        reason = "it is a link, and torchnan writes none" if error.errno == errno.ELOOP else error.strerror
        raise CaptureError(f"{path} cannot be read: {reason}.") from error


def _open_without_following_links(name: str, flags: int) -> int:
    """Opens a file. Follows no link out of the folder, and does not wait for the writer of a pipe."""
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)


def _crc_error(path: Path) -> CaptureError:
    return CaptureError(f"{path} is damaged: its bytes are not those that were written (CRC-32).")


def _check_crc32(path: Path, size: int, crc32: int) -> None:
    if crc32_of(path, size) != crc32:
        raise _crc_error(path)


def memory_of(text: bytes) -> int:
    """Returns an upper bound of the bytes that a JSON document takes once it is parsed."""
    return len(text) + sum(text.count(character) * cost for character, cost in _MEMORY_OF.items())


def _parse_document(path: Path, text: bytes) -> Any:
    if (needed := memory_of(text)) > MAX_DOCUMENT_MEMORY:
        raise CaptureError(
            f"{path} would take {needed} bytes of memory, and a document takes at most {MAX_DOCUMENT_MEMORY}."
        )
    try:
        return json.loads(
            text,
            parse_int=_int64,
            parse_constant=_reject_constant,
            object_pairs_hook=_object_of_distinct_names,
        )
    except RecursionError as error:
        raise CaptureError(f"{path} is damaged: it is nested too deep.") from error
    except ValueError as error:
        raise CaptureError(f"{path} is damaged: it is not JSON ({error}).") from error


def _object_of_distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):  # readers disagree on which of them counts
        raise ValueError("an object has the same name twice")
    return made


def _int64(text: str) -> int:
    number = int(text) if len(text) <= 20 else 2**63
    if not -(2**63) <= number < 2**63:  # longer ones are written as text
        raise ValueError("Exceeds the limit of 64 bits")
    return number


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _load_tensors(path: Path, library: ModuleType) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError

    _check_header(path)
    try:
        loaded: dict[str, torch.Tensor] = library.load_file(path)
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CaptureError(f"{path} is damaged: {error}") from error
    return loaded


def _check_header(path: Path) -> None:
    """Raises ``CaptureError`` for tensors so many that their names and shapes would fill the memory."""
    with _open_regular(path, None) as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(min(size, MAX_DOCUMENT_BYTES + 1))
    needed = memory_of(header) + header.count(b"{") * _MEMORY_OF_STORED_TENSOR
    if len(header) > MAX_DOCUMENT_BYTES or needed > MAX_DOCUMENT_MEMORY:
        raise CaptureError(
            f"{path} has a header of {size} bytes, whose tensors would take {needed} bytes of memory beside their "
            f"elements: it may have {MAX_DOCUMENT_BYTES}, and take {MAX_DOCUMENT_MEMORY}."
        )
