"""Converts nested values to a document of strict JSON and a dict of tensors, and back.

A document is ``{"value": node, "tensors": [...], "memory": [...]}``. A node is null, a boolean, an integer below 2**53,
a finite number, a string, a list of nodes, or an object with one key that says the kind: ``{"tuple": [...]}``,
``{"tensor": 3}``. ``tensors`` says how each tensor lies in its memory (dtype, shape, strides, offset), and ``memory``
from which device each piece of memory came. Tensors that share memory name the same piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from torchnan.training.storage import decoder, encoder
from torchnan.training.storage import tensors as _tensors
from torchnan.training.storage.schema_checks import require_key


def encode(value: Any, *, name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Returns a value as a document, with copies of its tensors.

    Kept exactly, types included: None, bool, int, float, complex, str, bytes, list, tuple, namedtuple, dict with keys
    of str, int, float, bool or None, OrderedDict with its attributes, subclasses of collections.UserDict by their
    ``data``, dataclass instances by the fields that are compared or given to the constructor, torch.dtype,
    torch.device, torch.layout, torch.memory_format, torch.Size, NumPy arrays (numbers and booleans; in C or Fortran
    order) and NumPy scalars.

    For a tensor, the document keeps every element bit for bit, dtype, shape, strides, device, requires_grad, whether it
    is a Parameter, and which other tensors share its memory. It does not keep the gradient, the autograd history or
    attributes that were set on it. Tensors that share memory are kept as the one stretch of memory from the first to
    the last element of any of them. A DTensor is kept as its local tensor, with placements, mesh and global shape as
    text in the document.

    Args:
        value: any of the above.
        name: its name in messages: ``"batch"`` gives ``batch['images'][2]``.

    Returns:
        The document, and contiguous one-dimensional CPU tensors that share no memory with the value or each other.
        They have dtypes that every version of safetensors can store; where it cannot, they are bytes (uint8).

    Raises:
        UnkeepableError: a part of the value has another type, contains itself, or lies more than 100 levels deep.
        RuntimeError: from PyTorch, if there is not enough memory for the copies.
    """
    walk = encoder.Walk()
    node = encoder.node(value, name, walk)
    tensors, memory, kept = _tensors.pack(walk.tensors)
    kept.update(encoder.array_bytes(walk.arrays))
    return {"value": node, "tensors": tensors, "memory": memory}, kept


def check(value: Any, *, name: str) -> None:
    """Raises the error that `encode` would raise, without reading elements of tensors or arrays.

    Raises:
        UnkeepableError: as `encode`.
    """
    encoder.node(value, name, encoder.Walk())


def decode(
    document: Any,
    tensors: Mapping[str, torch.Tensor],
    *,
    types: Iterable[type] = (),
    map_location: Callable[[str], torch.device | str] | None = None,
) -> Any:
    """Returns the value in new memory: tensors that shared memory share it again, but not with ``tensors``.

    Args:
        document: from `encode`, or the same read from JSON.
        tensors: by key, as `encode` returned them.
        types: dataclasses, namedtuples and UserDicts that the value may hold. One whose module was renamed is found
            here by its qualified name. Others are looked up in modules that are already imported; nothing is imported.
        map_location: maps the device of a tensor (``"cuda:0"``) to the new one. Default: all on the CPU.

    Raises:
        CaptureError: the document is damaged, or names a class that is not known here.
    """
    node = require_key(document, "value", object, "document")
    held = _tensors.unpack(document, tensors, map_location)
    return decoder.value(node, "document['value']", decoder.Build(held, tensors, tuple(types)))
