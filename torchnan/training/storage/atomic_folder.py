"""A folder of documents and tensors that appears whole or not at all.

It is written beside its final path as ``.<name>.partial-<pid>``, synced to disk, and renamed. ``contents.json`` holds
the format version and the size and CRC-32 of every other file, so a reader detects damage.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchnan.config.text import brief, printable
from torchnan.training.storage.errors import CaptureError
from torchnan.training.storage.schema_checks import damaged, require_key

FORMAT = 1
CONTENTS = "contents.json"
MAX_DOCUMENT_BYTES = 64 * 2**20  # bytes
_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_CHUNK = 2**22  # bytes


def write(target: Path, documents: Mapping[str, Any], tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> int:
    """Writes ``<stem>.json`` for each document and ``<stem>.safetensors`` for each dict of tensors.

    Only its owner can read the folder (0700, files 0600). When this returns, the folder is on disk and complete.

    Args:
        target: the folder, which must not exist; its parent must.
        documents: by stem; values of strict JSON.
        tensors: by stem, then by key; contiguous, not sharing memory, of dtypes that safetensors can store, as returned
            by `tree.encode`.

    Returns:
        The number of bytes in its files.

    Raises:
        OSError: it cannot be written; the message says why and how many bytes were needed. Nothing is left behind.
        ValueError: a document has a number or a text that JSON cannot represent, or a stem is not a file name.
        TypeError: a document holds a type that JSON does not have.
        CaptureError: a document is too large to be read again, or safetensors is not installed.
    """
    library = safetensors()
    texts = {f"{_check_stem(stem)}.json": _to_json(stem, document) for stem, document in documents.items()}
    for stem in tensors:
        _check_stem(stem)
    needed = 4096 + sum(map(len, texts.values())) + sum(map(_max_bytes, tensors.values()))
    partial = _partial(target)
    with _describing_errors(target, needed):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "it exists already")
        _check_free_space(target.parent, needed)
        shutil.rmtree(partial, ignore_errors=True)  # left by an earlier process with the same number
        os.mkdir(partial, 0o700)
        try:
            written = _write_files(partial, texts, tensors, library)
            _sync(partial)
            os.rename(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _sync(target.parent)
    return written


def make_private_dirs(path: Path) -> None:
    """Makes a folder and its missing parents, readable by their owner only (0700). Existing folders stay as they are.

    Raises:
        OSError: it cannot be made.
    """
    missing = itertools.takewhile(lambda above: not above.is_dir(), [path, *path.parents])
    for above in reversed(list(missing)):
        above.mkdir(mode=0o700, exist_ok=True)


def make_option_dir(option: str, path: Path) -> None:
    """Makes a folder that an option names, like :func:`make_private_dirs`.

    Raises:
        OSError: it cannot be made; names the option.
    """
    try:
        make_private_dirs(path)
    except OSError as error:
        raise OSError(error.errno, f"{option}={brief(str(path))} cannot be used: {error.strerror}") from None


def remove_partial(parent: Path, prefix: str) -> None:
    """Removes the partial folders that killed processes have left in a folder.

    This removes every partial folder of a target whose name begins with the prefix, if the process that wrote it does
    not run here or is this one. Processes are those of this machine: if several machines write into one folder, the
    prefix must distinguish them. Nothing happens if the folder does not exist.

    Raises:
        OSError: a partial folder cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        for found in os.scandir(parent):
            named = re.fullmatch(r"\.(.*)\.partial-(\d{1,10})", found.name, re.DOTALL)
            if not named or not named[1].startswith(prefix) or not found.is_dir(follow_symlinks=False):
                continue
            if int(named[2]) == os.getpid() or not _process_exists(int(named[2])):
                with contextlib.suppress(FileNotFoundError):  # another process removes it too
                    shutil.rmtree(found.path)


def remove(target: Path) -> None:
    """Removes a folder that `write` made. A concurrent reader finds it complete or not at all.

    Raises:
        OSError: it cannot be removed, or does not exist.
    """
    partial = _partial(target)
    shutil.rmtree(partial, ignore_errors=True)
    os.rename(target, partial)
    shutil.rmtree(partial)


def is_capture_folder(target: Path) -> bool:
    """Returns whether a folder has any file that `write` makes; it may be damaged."""
    return any(target.glob("*.safetensors")) or os.path.lexists(target / CONTENTS)


def read(target: Path) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
    """Returns the documents and the tensors of a folder, by stem, as they were given to `write`.

    Sizes are compared with the recorded ones, and documents with 64 MiB, before anything is loaded. The format of the
    folder is checked, and that of each document with a number under ``"format"``.

    Raises:
        CaptureError: the folder or a file of it is missing, damaged or truncated, it was made by a newer torchnan, or
            safetensors is not installed.
    """
    library = safetensors()
    documents: dict[str, Any] = {}
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    if not target.is_dir():
        what = "it is a file, and not a folder" if target.exists() else "there is no such folder"
        raise CaptureError(f"{target} cannot be read: {what}.")
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


# -- writing


def _partial(target: Path) -> Path:
    return target.parent / f".{target.name}.partial-{os.getpid()}"


def _check_stem(stem: str) -> str:
    if not _STEM.fullmatch(stem) or f"{stem}.json" == CONTENTS:
        raise ValueError(f"{stem!r} cannot be a file name: use letters, digits, '_', '-' and '.', and not 'contents'.")
    return stem


def _to_json(stem: str, document: Any) -> bytes:
    text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    if b"\\ud" in text:  # a surrogate: strict JSON does not have a lone one
        json.dumps(document, ensure_ascii=False).encode()
    if len(text) > MAX_DOCUMENT_BYTES:
        raise CaptureError(
            f"{stem}.json would have {len(text)} bytes, and at most {MAX_DOCUMENT_BYTES} can be read again: keep "
            "long lists of numbers as tensors."
        )
    return text


def _max_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Returns an upper limit of the bytes of a safetensors file."""
    return 4096 + sum(tensor.numel() * tensor.dtype.itemsize + len(key) + 256 for key, tensor in tensors.items())


@contextlib.contextmanager
def _describing_errors(target: Path, needed: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            error.errno, f"{printable(str(target))} cannot be written: {reason} ({needed} bytes are needed)"
        ) from error


def _check_free_space(parent: Path, needed: int) -> None:
    disk = os.statvfs(parent)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise OSError(errno.ENOSPC, f"the disk has {free} bytes free")


def _write_files(
    partial: Path, texts: Mapping[str, bytes], tensors: Mapping[str, Mapping[str, torch.Tensor]], library: ModuleType
) -> int:
    files = []
    for stem, named in tensors.items():
        path = partial / f"{stem}.safetensors"
        _write_tensors(path, named, library)
        os.chmod(path, 0o600)
        _sync(path)
        files.append({"name": path.name, "bytes": path.stat().st_size, "crc32": _crc32(path)})
    for name, text in texts.items():
        _write_synced(partial / name, text)
        files.append({"name": name, "bytes": len(text), "crc32": zlib.crc32(text)})
    contents = json.dumps({"format": FORMAT, "files": files}, indent=1).encode()
    _write_synced(partial / CONTENTS, contents)
    return len(contents) + sum(int(str(file["bytes"])) for file in files)


def _write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], library: ModuleType) -> None:
    from safetensors import SafetensorError

    try:
        library.save_file(dict(tensors), path)
    except SafetensorError as error:  # only its text has the system's error number
        number = re.search(r"(?:os error|code:) (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, f"{path.name}: {printable(str(error))}") from error


def _write_synced(path: Path, text: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    """Waits until a file, or the contents of a folder, are on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # a file system that cannot sync folders
            raise
    finally:
        os.close(number)


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # owned by another user
        return True
    return True


# -- reading


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
        is_one = dot and _STEM.fullmatch(stem) and suffix in ("json", "safetensors") and name != CONTENTS
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
    if _crc32(path, size) != crc32:
        raise _crc_error(path)


def _crc32(path: Path, size: int | None = None) -> int:
    crc = 0
    with _open_regular(path, size) as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc


def _parse_document(path: Path, text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_reject_constant, object_pairs_hook=_object_of_distinct_names)
    except RecursionError as error:
        raise CaptureError(f"{path} is damaged: it is nested too deep.") from error
    except ValueError as error:
        raise CaptureError(f"{path} is damaged: it is not JSON ({error}).") from error


def _object_of_distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):  # readers disagree on which of them counts
        raise ValueError("an object has the same name twice")
    return made


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _load_tensors(path: Path, library: ModuleType) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError

    try:
        loaded: dict[str, torch.Tensor] = library.load_file(path)
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CaptureError(f"{path} is damaged: {error}") from error
    return loaded
