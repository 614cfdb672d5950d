"""Computes a short digest of a batch: the same for the same data, in every process."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torchnan._load import _C
from torchnan.detection import shards
from torchnan.detection.nested import items_of
from torchnan.detection.pause import detection_paused

MAX_ELEMENTS = 4096  # read of one tensor, evenly spread
MAX_LEAVES = 256  # of a batch; of further ones only the number counts
MAX_DEPTH = 16


class BatchDigest:
    """Digest of one batch: its structure, and the dtype, shape and bytes of its contents.

    Of a tensor with more than 4,096 elements, about that many are read, evenly spread over all dimensions. The keys of
    a mapping count, their order does not. Of objects other than tensors, arrays, strings and numbers, only the type
    counts.
    """

    def __init__(self) -> None:
        self._parts: list[bytes | str] = []  # a str is the name of a sample, for its bytes
        self._samples: dict[str, torch.Tensor] = {}
        self._sampled = 0
        self._has_content = False

    def add(self, batch: Any) -> dict[str, torch.Tensor]:
        """Adds the batch, or one of several micro-batches.

        Args:
            batch: nested mappings, sequences and dataclasses. It may be modified afterwards.

        Returns:
            samples of tensors on devices, to be copied to the CPU and passed to :meth:`hexdigest`.
        """
        self._samples = {}
        with detection_paused():
            for i, (path, leaf) in enumerate(_leaves(batch, "", 0)):
                if i < MAX_LEAVES:
                    self._add(path, leaf)
                else:
                    self._parts.append(b"|more")
        return self._samples

    def hexdigest(self, samples: Mapping[str, torch.Tensor]) -> str | None:
        """Returns 16 hexadecimal digits, or ``None`` if the batch has no contents to distinguish it by.

        Args:
            samples: those that :meth:`add` returned, on the CPU.
        """
        if not self._has_content:
            return None
        hashed = hashlib.sha256()
        for part in self._parts:
            hashed.update(_bytes_of(samples[part]) if isinstance(part, str) else part)
        return hashed.hexdigest()[:16]

    def _add(self, path: str, leaf: Any) -> None:
        self._parts.append(f"|{path}:".encode(errors="surrogatepass"))
        if isinstance(leaf, torch.Tensor):
            self._add_tensor(shards.local(leaf))
        elif type(leaf).__module__ == "numpy" and hasattr(leaf, "tobytes"):
            flat = leaf.reshape(-1)
            self._add_content(f"{leaf.dtype.str}{leaf.shape}".encode(), flat[:: _stride(flat.size)].tobytes())
        elif isinstance(leaf, str | bytes | int | float | complex):
            self._add_content(type(leaf).__name__.encode(), repr(leaf).encode(errors="surrogatepass"))
        else:
            self._parts.append(type(leaf).__qualname__.encode(errors="surrogatepass"))

    def _add_content(self, header: bytes, content: bytes | str) -> None:
        self._parts += [header, content]
        self._has_content = True

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        header, stride = _header_and_stride(tensor.dtype, tensor.shape)
        if tensor.layout != torch.strided or tensor.is_meta or tensor.numel() == 0:
            self._parts.append(header)
            return
        sample: bytes | str | None = _C.host_sample(tensor, stride)
        if sample is None:
            self._sampled += 1
            sample = str(self._sampled)
            self._samples[sample] = tensor.detach().reshape(-1)[::stride]
        self._add_content(header, sample)


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > MAX_DEPTH:
        return
    items = None if isinstance(value, torch.Tensor) else items_of(value)
    if items is None:
        yield path, value
        return
    if isinstance(value, Mapping):
        items.sort(key=lambda item: item[0])  # the order of the keys does not count
    for part, item in items:
        yield from _leaves(item, f"{path}{part}", depth + 1)


@functools.lru_cache(maxsize=256)
def _header_and_stride(dtype: torch.dtype, shape: torch.Size) -> tuple[bytes, int]:
    return f"{dtype}{tuple(shape)}".encode(), _stride(shape.numel())


def _stride(elements: int) -> int:
    """Returns a stride with no factor in common with the number of elements, hence with no dimension: rows that are
    mostly padding are not sampled in the same few columns.
    """
    stride = max(1, math.ceil(elements / MAX_ELEMENTS))
    while math.gcd(stride, elements) > 1:
        stride += 1
    return stride


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Returns the bytes of a copy: asking a tensor of shared memory for its address may write to it."""
    copy = tensor.clone(memory_format=torch.contiguous_format)
    return ctypes.string_at(copy.data_ptr(), copy.nbytes)
