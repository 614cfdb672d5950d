"""Converts the nodes of a document to the value. Whatever the nodes are, the only error is a CaptureError."""

from __future__ import annotations

import base64
import binascii
import collections
import dataclasses
import inspect
import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchnan.training.storage import classes, encoder
from torchnan.training.storage import tensors as _tensors
from torchnan.training.storage.errors import CaptureError
from torchnan.training.storage.schema_checks import damaged, require_index, require_key, require_sizes, require_type


@dataclasses.dataclass
class Build:
    """The tensors, classes and arrays that nodes refer to."""

    held: list[torch.Tensor]
    tensors: Mapping[str, torch.Tensor]
    types: tuple[type, ...]
    arrays: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)  # their layouts, and they
    depth: int = 0


def value(node: Any, path: str, build: Build) -> Any:
    """Returns the value of a node.

    Raises:
        CaptureError: the node is invalid.
    """
    if node is None or type(node) in (bool, int, str):
        return node
    if type(node) is float:
        return _finite(node, path)
    if build.depth > encoder.MAX_DEPTH + 1:  # a complex number adds a level
        raise damaged(path, f"at most {encoder.MAX_DEPTH} levels deep", node)
    build.depth += 1
    made = _made(node, path, build)
    build.depth -= 1
    return made


def _made(node: Any, path: str, build: Build) -> Any:
    if type(node) is list:
        return _listed(node, path, build)
    if type(node) is not dict or len(node) != 1 or next(iter(node)) not in MAKERS:
        raise damaged(path, f"a value, a list, or an object with one of {', '.join(MAKERS)}", node)
    name, content = next(iter(node.items()))
    return MAKERS[name](content, f"{path}['{name}']", build)


def _listed(nodes: Any, path: str, build: Build) -> list[Any]:
    return [value(node, f"{path}[{i}]", build) for i, node in enumerate(require_type(nodes, list, path))]


# -- single values


def _finite(node: float, path: str) -> float:
    if not math.isfinite(node):  # 1e999
        raise damaged(path, "a finite number", node)
    return node


def _integer(content: Any, path: str, build: Build) -> int:
    if not re.fullmatch("-?0x[0-9a-f]+", require_type(content, str, path)):
        raise damaged(path, "a hexadecimal number such as '0x1f'", content)
    return int(content, 16)


def _float(content: Any, path: str, build: Build) -> float:
    if content in ("nan", "inf", "-inf"):
        return float(content)
    (made,) = struct.unpack(">d", _bytes_of_hex(content, path, 8))
    return float(made)


def _bytes_of_hex(content: Any, path: str, length: int | None = None) -> bytes:
    if not re.fullmatch("([0-9a-f]{2})*", require_type(content, str, path)) or length not in (None, len(content) // 2):
        raise damaged(path, "bytes in hexadecimal" + (f", {length} of them" if length is not None else ""), content)
    return bytes.fromhex(content)


def _text(content: Any, path: str, build: Build) -> str:
    try:
        return _bytes_of_hex(content, path).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise damaged(path, "a text", content) from error


def _bytes(content: Any, path: str, build: Build) -> bytes:
    try:
        return base64.b64decode(require_type(content, str, path), validate=True)
    except (binascii.Error, ValueError) as error:
        raise damaged(path, "bytes in base64", content) from error


def _complex(content: Any, path: str, build: Build) -> complex:
    parts = _listed(content, path, build)
    if len(parts) != 2 or any(type(part) is not float for part in parts):
        raise damaged(path, "two floating-point numbers", content)
    return complex(*parts)


def _constant(content: Any, path: str, build: Build) -> Any:
    made = vars(torch).get(require_type(content, str, path))
    if type(made) not in (torch.dtype, torch.layout, torch.memory_format):
        raise damaged(path, "the name of a torch.dtype, torch.layout or torch.memory_format", content)
    return made


def _device(content: Any, path: str, build: Build) -> torch.device:
    try:
        return torch.device(require_type(content, str, path))
    except RuntimeError as error:
        raise damaged(path, "the name of a torch.device", content) from error


def _size(content: Any, path: str, build: Build) -> torch.Size:
    return torch.Size(require_sizes({"size": content}, "size", path))


def _tensor(content: Any, path: str, build: Build) -> torch.Tensor:
    return build.held[require_index(content, len(build.held), path)]


def _numpy_dtype(node: Any, path: str) -> tuple[Any, Any]:
    name = require_key(node, "dtype", str, path)
    try:
        import numpy

        if not re.fullmatch(r"[<>|][biufc]\d{1,2}", name):
            raise damaged(f"{path}['dtype']", "the name of a NumPy dtype of numbers", name)
        return numpy, numpy.dtype(name)
    except ImportError as error:
        raise CaptureError(f"{path} is a NumPy value, and NumPy is not installed: pip install numpy") from error
    except TypeError as error:
        raise CaptureError(f"{path}['dtype'] is {name!r}, a dtype that NumPy does not have on this machine.") from error


def _scalar(content: Any, path: str, build: Build) -> Any:
    numpy, dtype = _numpy_dtype(content, path)
    held = _bytes_of_hex(require_key(content, "bytes", str, path), f"{path}['bytes']", dtype.itemsize)
    return numpy.frombuffer(held, dtype=dtype)[0]


def _array(content: Any, path: str, build: Build) -> Any:
    numpy, dtype = _numpy_dtype(content, path)
    shape, order = require_sizes(content, "shape", path), require_key(content, "order", str, path)
    key = encoder.array_key(require_key(content, "number", int, path))
    held = _tensors.stored_bytes(build.tensors, key, path)
    elements = math.prod(shape[:64])
    if len(shape) > 64 or order not in ("C", "F") or elements * dtype.itemsize != len(held):
        raise damaged(path, f"an array of {len(held)} bytes in order C or F", content)
    layout = (dtype.str, shape, order)
    if key not in build.arrays:
        try:
            flat = numpy.frombuffer(bytearray(held.numpy()), dtype=dtype) if elements else numpy.empty(0, dtype)
            build.arrays[key] = layout, flat.reshape(shape, order=order)
        except ValueError as error:  # more dimensions than NumPy has
            raise damaged(f"{path}['shape']", "the shape of an array", shape) from error
    if build.arrays[key][0] != layout:
        raise damaged(path, f"the same as where array {key} first occurred", layout)
    return build.arrays[key][1]  # nodes with the same array get the same array again


# -- containers


def _tuple(content: Any, path: str, build: Build) -> tuple[Any, ...]:
    return tuple(_listed(content, path, build))


def _dict(content: Any, path: str, build: Build) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for i, (key, held) in enumerate(_pairs(content, path)):
        where = f"{path}[{i}]"
        made_key = value(key, f"{where}[0]", build)
        if type(made_key) not in (str, int, float, bool, type(None)) or made_key in made:
            raise damaged(f"{where}[0]", "a unique key: str, int, float, bool or None", key)
        made[made_key] = value(held, f"{where}[1]", build)
    return made


def _pairs(content: Any, path: str) -> list[Any]:
    for i, pair in enumerate(require_type(content, list, path)):
        if type(pair) is not list or len(pair) != 2:
            raise damaged(f"{path}[{i}]", "a list of two", pair)
    return list(content)


def _ordered(content: Any, path: str, build: Build) -> collections.OrderedDict[Any, Any]:
    made = collections.OrderedDict(_dict(require_key(content, "items", list, path), f"{path}['items']", build))
    for name, node in require_key(content, "attributes", dict, path).items():
        vars(made)[name] = value(node, f"{path}['attributes']['{name}']", build)
    return made


def _namedtuple(content: Any, path: str, build: Build) -> Any:
    cls: Any = _class(content, "namedtuple", path, build)
    values = _listed(require_key(content, "values", list, path), f"{path}['values']", build)
    if len(values) != len(cls._fields):
        raise damaged(f"{path}['values']", f"as long as the fields of {classes.title(cls)}, {len(cls._fields)}", values)
    return tuple.__new__(cls, values)


def _dataclass(content: Any, path: str, build: Build) -> Any:
    cls: Any = _class(content, "dataclass", path, build)
    if issubclass(cls, encoder.NOT_BY_FIELDS):
        raise CaptureError(f"{path}: {classes.title(cls)} could not be made from its stored fields: it holds more.")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    given = {}
    for i, (name, node) in enumerate(_pairs(require_key(content, "fields", list, path), f"{path}['fields']")):
        where = f"{path}['fields'][{i}]"
        if type(name) is not str or name not in fields:
            raise CaptureError(f"{where}: {classes.title(cls)} has no field {name!r}; it has {', '.join(fields)}.")
        given[name] = value(node, f"{where}[1]", build)
    for name, field in fields.items():
        if name in given or inspect.getattr_static(cls, name, None) is field.default:
            continue  # an attribute of the class
        if field.default is not dataclasses.MISSING:
            given[name] = field.default
        elif field.default_factory in (list, dict, set):
            given[name] = field.default_factory()
        elif field.init or field.compare:
            raise CaptureError(f"{path}: the document has no value for the field {name!r} of {classes.title(cls)}.")
    items = {name: held for name, held in given.items() if held is not None} if issubclass(cls, dict) else {}
    return _instance(cls, path, given, items)


def _userdict(content: Any, path: str, build: Build) -> Any:
    cls = _class(content, "userdict", path, build)
    items = _dict(require_key(content, "items", list, path), f"{path}['items']", build)
    attributes = {}
    if "attributes" in content:  # documents of earlier versions have none
        for name, node in require_key(content, "attributes", dict, path).items():
            attributes[name] = value(node, f"{path}['attributes']['{name}']", build)
    attributes.pop("data", None)
    return _instance(cls, path, {"data": items, **attributes}, {})


def _class(content: Any, kind_of_class: str, path: str, build: Build) -> type:
    return classes.find(require_key(content, "class", dict, path), kind_of_class, build.types, f"{path}['class']")


def _instance(cls: type, path: str, attributes: dict[str, Any], items: dict[str, Any]) -> Any:
    try:
        return classes.instance_of(cls, attributes, items)
    except (TypeError, AttributeError) as error:
        raise CaptureError(f"{path}: {classes.title(cls)} could not be made from its stored fields: {error}") from error


MAKERS: dict[str, Callable[[Any, str, Build], Any]] = {
    "int": _integer,
    "float": _float,
    "str": _text,
    "complex": _complex,
    "bytes": _bytes,
    "torch": _constant,
    "device": _device,
    "size": _size,
    "tensor": _tensor,
    "numpy": _scalar,
    "array": _array,
    "tuple": _tuple,
    "dict": _dict,
    "ordereddict": _ordered,
    "namedtuple": _namedtuple,
    "dataclass": _dataclass,
    "userdict": _userdict,
}
