"""Tensors as stretches of memory: shared memory is stored once, and shared again when it is read."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchnan.training.storage.classes import title
from torchnan.training.storage.errors import CaptureError, UnkeepableError
from torchnan.training.storage.schema_checks import damaged, require_index, require_key, require_sizes, require_type

ALIGNMENT = 64  # bytes: a tensor keeps its address modulo this, so that vectorised kernels behave the same again

# The dtypes that safetensors has stored since 0.4; others are stored as bytes.
STORABLE = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor, its range of bytes in its storage, and its entry in the document."""

    tensor: torch.Tensor
    storage: torch.UntypedStorage
    low: int
    high: int
    note: dict[str, Any]


def describe_tensor(value: torch.Tensor, path: str) -> StoredTensor:
    """Returns layout and memory range of a tensor; reads none of its elements.

    Raises:
        UnkeepableError: it is not a strided tensor with memory.
    """
    note: dict[str, Any] = {"requires_grad": value.requires_grad, "parameter": isinstance(value, torch.nn.Parameter)}
    local = _local(value, note)
    _refuse(local, path)
    # bypasses the method that detection replaces: this code does not write there
    storage = torch._C.TensorBase.untyped_storage(local)
    size = local.dtype.itemsize
    low, high = 0, 0
    if local.numel() > 0:
        low = int(local.storage_offset())
        high = 1 + low + sum((n - 1) * stride for n, stride in zip(local.shape, local.stride(), strict=True))
    if high * size > storage.nbytes():
        raise UnkeepableError(
            f"{path} is a tensor whose memory was taken away ({storage.nbytes()} of {high * size} bytes are there), "
            "which cannot be kept: keep it while it has its memory."
        )
    note.update(
        dtype=str(local.dtype).removeprefix("torch."),
        shape=list(local.shape),
        strides=list(local.stride()),
        conj=local.is_conj(),
        neg=local.is_neg(),
    )
    return StoredTensor(local, storage, low * size, high * size, note)


def _local(value: Any, note: dict[str, Any]) -> Any:
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None or type(value) is not distributed.DTensor:
        return value
    note["dtensor"] = {
        "placements": str(value.placements),
        "mesh": str(tuple(value.device_mesh.shape)),
        "shape": str(tuple(value.shape)),
    }
    with torch.no_grad():
        return value.to_local()


def _refuse(value: Any, path: str) -> None:
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise UnkeepableError(
            f"{path} is a {title(type(value))}, a kind of tensor that cannot be kept: keep plain tensors "
            "(torch.Tensor, torch.nn.Parameter) or a DTensor."
        )
    refused = (
        (value.is_nested, "nested", "keep a list of its parts, unbind()"),
        (value.is_meta, "meta", "it has no elements"),
        (value.is_quantized, "quantized", "keep its dequantize()"),
        ("sparse" in str(value.layout), "sparse", "keep its to_dense()"),
        (value.layout != torch.strided, str(value.layout), "keep its to_dense()"),
        (value._is_zerotensor(), "zero", "it has no memory; keep its clone()"),
        (torch._C._functorch.is_functorch_wrapped_tensor(value), "torch.func", "keep the one outside of vmap or grad"),
    )
    for so, what, advice in refused:
        if so:
            raise UnkeepableError(f"{path} is a {what} tensor, which cannot be kept: {advice}.")


def pack(held: list[StoredTensor]) -> tuple[list[dict[str, Any]], list[dict[str, str]], dict[str, torch.Tensor]]:
    """Returns the entries for tensors and memory, and the memory: copies on the CPU, one piece per storage."""
    sharing: dict[tuple[str, int], list[StoredTensor]] = {}
    for one in held:
        address = one.storage.data_ptr() if one.high else id(one)  # a tensor without elements shares nothing
        sharing.setdefault((f"{one.storage.device} {one.high > 0}", address), []).append(one)
    entries: dict[int, dict[str, Any]] = {}
    devices: list[dict[str, str]] = []
    kept: dict[str, torch.Tensor] = {}
    for group in sharing.values():
        low = min(one.low for one in group) // ALIGNMENT * ALIGNMENT
        # if several have the same address
        storage = max((one.storage for one in group), key=torch.UntypedStorage.nbytes)
        piece = _copied(storage, low, max(one.high for one in group))
        dtypes = {one.tensor.dtype for one in group}
        if len(dtypes) == 1 and dtypes <= STORABLE:
            piece = piece.view(*dtypes)
        for one in group:
            offset = (one.low - low) // one.tensor.dtype.itemsize
            entries[id(one)] = {"memory": len(devices), "offset": offset, **one.note}
        kept[memory_key(len(devices))] = piece
        devices.append({"device": str(storage.device)})
    return [entries[id(one)] for one in held], devices, kept


def memory_key(number: int) -> str:
    return f"memory.{number}"


def _copied(storage: torch.UntypedStorage, low: int, high: int) -> torch.Tensor:
    with torch.no_grad():
        seen = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, low, (high - low,), (1,))
        return seen.to("cpu", copy=True)


def unpack(
    document: Any, tensors: Mapping[str, torch.Tensor], map_location: Callable[[str], torch.device | str] | None
) -> list[torch.Tensor]:
    """Returns the tensors of a document, each checked against the available memory.

    Raises:
        CaptureError: the document is damaged, or belongs to other tensors.
    """
    pieces = []
    for i, node in enumerate(require_key(document, "memory", list, "document")):
        device = require_key(node, "device", str, f"document['memory'][{i}]")
        stored = stored_bytes(tensors, memory_key(i), f"document['memory'][{i}]")
        where = map_location(device) if map_location else "cpu"
        try:
            piece = torch.empty(len(stored), dtype=torch.uint8, device=where)
        except RuntimeError as error:  # more than there is memory
            raise CaptureError(f"document['memory'][{i}] cannot be read: {error}") from error
        pieces.append(piece.copy_(stored))
    listed = require_key(document, "tensors", list, "document")
    return [_tensor(node, pieces, f"document['tensors'][{i}]") for i, node in enumerate(listed)]


def stored_bytes(tensors: Mapping[str, torch.Tensor], key: str, path: str) -> torch.Tensor:
    """Returns a stored tensor as bytes, one-dimensional and contiguous."""
    stored = tensors.get(key)
    if not isinstance(stored, torch.Tensor):
        raise CaptureError(
            f"{path}: there is no tensor '{key}' beside the document: it is damaged, or of another file."
        )
    try:
        return stored.detach().reshape(-1).view(torch.uint8)
    except RuntimeError as error:  # a dtype of less than a byte
        raise CaptureError(f"{path} cannot be read: {error}") from error


def _tensor(node: Any, pieces: list[torch.Tensor], path: str) -> torch.Tensor:
    piece = pieces[require_index(require_key(node, "memory", int, path), len(pieces), f"{path}['memory']")]
    dtype = dtype_of(require_key(node, "dtype", str, path), f"{path}['dtype']")
    shape, strides = require_sizes(node, "shape", path), require_sizes(node, "strides", path)
    offset = require_key(node, "offset", int, path)
    flags = {name: require_key(node, name, bool, path) for name in ("conj", "neg", "requires_grad", "parameter")}
    if len(shape) != len(strides):
        raise damaged(f"{path}['strides']", f"{len(shape)} numbers", strides)
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if offset < 0 or (0 not in shape and (last + 1) * dtype.itemsize > len(piece)):
        raise CaptureError(
            f"{path} reaches from element {offset} to {last} of {len(piece) // dtype.itemsize} that were kept: the "
            "document is damaged, or of another file."
        )
    try:
        made = torch.empty(0, dtype=dtype, device=piece.device)
        made.set_(piece.untyped_storage(), offset if 0 not in shape else 0, shape, strides)
        if flags["conj"]:
            made = made.conj()
        if flags["neg"]:
            made = torch._neg_view(made)
        if flags["parameter"]:
            return torch.nn.Parameter(made, requires_grad=flags["requires_grad"])
        return made.requires_grad_(flags["requires_grad"])
    except RuntimeError as error:  # a dtype without gradients, or sizes whose product overflows
        raise CaptureError(f"{path} cannot be made: {error}") from error


def dtype_of(name: Any, path: str) -> torch.dtype:
    """Returns torch.float32 for ``"float32"``. Excludes the quantized dtypes, whose tensors need more than memory."""
    dtype = vars(torch).get(require_type(name, str, path))
    if not isinstance(dtype, torch.dtype) or name.startswith("q"):
        raise damaged(path, "the name of a torch.dtype", name)
    return dtype
