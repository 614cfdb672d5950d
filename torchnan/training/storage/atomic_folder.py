"""Writes a folder of documents and tensors that appears whole or not at all.

It is written beside its final path as ``.<name>.partial-<pid>``, synced to disk, and renamed. ``contents.json`` holds
the format version and the size and CRC-32 of every other file, so that :mod:`folder_reader` detects damage.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchnan.config.text import brief, printable
from torchnan.training.storage.errors import CaptureError
from torchnan.training.storage.folder_reader import (
    CONTENTS,
    FORMAT,
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENT_MEMORY,
    STEM,
    crc32_of,
    memory_of,
    safetensors,
)


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


def _partial(target: Path) -> Path:
    return target.parent / f".{target.name}.partial-{os.getpid()}"


def _check_stem(stem: str) -> str:
    if not STEM.fullmatch(stem) or f"{stem}.json" == CONTENTS:
        raise ValueError(f"{stem!r} cannot be a file name: use letters, digits, '_', '-' and '.', and not 'contents'.")
    return stem


def _to_json(stem: str, document: Any) -> bytes:
    text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    if b"\\ud" in text:  # a surrogate: strict JSON does not have a lone one
        json.dumps(document, ensure_ascii=False).encode()
    bounds = ("have", len(text), MAX_DOCUMENT_BYTES), ("take in memory", memory_of(text), MAX_DOCUMENT_MEMORY)
    for does, needed, most in bounds:
        if needed > most:
            raise CaptureError(
                f"{stem}.json would {does} {needed} bytes, and at most {most} can be read again: keep long lists of "
                "numbers as tensors."
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
        files.append({"name": path.name, "bytes": path.stat().st_size, "crc32": crc32_of(path)})
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
