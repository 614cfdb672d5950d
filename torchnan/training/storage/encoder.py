"""Converts a value to the nodes of its document, and collects its tensors and arrays."""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import inspect
import math
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torchnan.training.storage import classes
from torchnan.training.storage import tensors as _tensors
from torchnan.training.storage.errors import UnkeepableError

MAX_DEPTH = 100  # nested containers
# per value: as many as fit into a document of 64 MiB. Stops values whose shared parts grow exponentially
MAX_PARTS = 2**22
SUPPORTED = (
    "the types that can be kept are None, bool, int, float, complex, str, bytes, list, tuple, namedtuple, dict, "
    "OrderedDict, UserDict, "
    "dataclasses, torch.Tensor, dtype, device, layout, memory_format and Size, and NumPy arrays and scalars of numbers"
)


@dataclasses.dataclass
class Walk:
    """The state of one encoding: the tensors and arrays found so far, once each, by their number in nodes."""

    tensors: list[_tensors.StoredTensor] = dataclasses.field(default_factory=list)
    arrays: list[Any] = dataclasses.field(default_factory=list)
    numbers: dict[int, int] = dataclasses.field(default_factory=dict)
    met: list[Any] = dataclasses.field(default_factory=list)  # kept alive, so that an id identifies one object
    inside: set[int] = dataclasses.field(default_factory=set)
    parts: int = 0


def node(value: Any, path: str, walk: Walk) -> Any:
    """Returns the node of a value.

    Raises:
        UnkeepableError: the value cannot be stored.
    """
    walk.parts += 1
    if walk.parts > MAX_PARTS:
        raise UnkeepableError(
            f"{path} is part {MAX_PARTS + 1:,} of its value, and at most {MAX_PARTS:,} can be kept: make "
            "tensors of long lists of numbers."
        )
    plain = PLAIN.get(type(value))
    if plain is not None:
        return plain(value)
    if isinstance(value, torch.Tensor):
        return {"tensor": _number(value, walk.tensors, lambda: _tensors.describe_tensor(value, path), walk)}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray):
        return _numpy(value, path, walk, numpy)
    with _inside(value, path, walk):
        return _container(value, path, walk)


def _number(value: Any, held: list[Any], hold: Callable[[], Any], walk: Walk) -> int:
    if id(value) not in walk.numbers:
        held.append(hold())
        walk.met.append(value)
        walk.numbers[id(value)] = len(held) - 1
    return walk.numbers[id(value)]


@contextlib.contextmanager
def _inside(value: Any, path: str, walk: Walk) -> Iterator[None]:
    if id(value) in walk.inside:
        raise UnkeepableError(f"{path} contains itself (a {classes.title(type(value))}), which cannot be kept.")
    if len(walk.inside) >= MAX_DEPTH:
        raise UnkeepableError(f"{path} lies more than {MAX_DEPTH} levels deep, which cannot be kept.")
    walk.inside.add(id(value))
    try:
        yield
    finally:
        walk.inside.discard(id(value))


# -- single values


def _integer(value: int) -> Any:
    return value if abs(value) < 2**53 else {"int": hex(value)}  # exact in every reader of JSON, and never slow


def _float(value: float) -> Any:
    if math.isfinite(value):
        return value
    bits = struct.pack(">d", value)
    usual = repr(value)
    return {"float": usual if struct.pack(">d", float(usual)) == bits else bits.hex()}


def _text(value: str) -> Any:
    # JSON joins surrogate halves that Python keeps separate
    if any("\ud800" <= character <= "\udfff" for character in value):
        return {"str": value.encode("utf-8", "surrogatepass").hex()}
    return value


PLAIN: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _integer,
    float: _float,
    str: _text,
    complex: lambda value: {"complex": [_float(value.real), _float(value.imag)]},
    bytes: lambda value: {"bytes": base64.b64encode(value).decode()},
    torch.dtype: lambda value: {"torch": str(value).removeprefix("torch.")},
    torch.layout: lambda value: {"torch": str(value).removeprefix("torch.")},
    torch.memory_format: lambda value: {"torch": str(value).removeprefix("torch.")},
    torch.device: lambda value: {"device": str(value)},
    torch.Size: lambda value: {"size": list(value)},
}


def _numpy(value: Any, path: str, walk: Walk, numpy: Any) -> Any:
    if value.dtype.kind not in "biufc" or numpy.dtype(value.dtype.str) != value.dtype:
        what = "scalar" if isinstance(value, numpy.generic) else "array"
        raise UnkeepableError(
            f"{path} is a NumPy {what} of dtype {value.dtype}, which cannot be kept: only numbers and booleans can."
        )
    if isinstance(value, numpy.generic):
        return {"numpy": {"dtype": value.dtype.str, "bytes": value.tobytes().hex()}}
    if type(value) is not numpy.ndarray:
        raise UnkeepableError(
            f"{path} is a {classes.title(type(value))}, which cannot be kept: make it a plain array, "
            "numpy.array(value)."
        )
    number = _number(value, walk.arrays, lambda: value, walk)
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return {"array": {"number": number, "dtype": value.dtype.str, "shape": list(value.shape), "order": order}}


def array_bytes(arrays: list[Any]) -> dict[str, torch.Tensor]:
    """Returns the elements of NumPy arrays, in the order in which nodes name them."""
    kept = {}
    for i, array in enumerate(arrays):
        held = bytearray(array.tobytes(order="A"))
        nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
        kept[array_key(i)] = torch.frombuffer(held, dtype=torch.uint8) if held else nothing
    return kept


def array_key(number: int) -> str:
    return f"array.{number}"


# -- containers


def _container(value: Any, path: str, walk: Walk) -> Any:
    cls = type(value)
    if cls is list:
        return _listed(value, path, walk)
    if cls is tuple:
        return {"tuple": _listed(value, path, walk)}
    if cls is dict:
        return {"dict": _pairs(value, path, walk)}
    if cls is collections.OrderedDict:  # the attribute _metadata of a state dict holds the versions of its modules
        attributes = {name: node(held, f"{path}.{name}", walk) for name, held in vars(value).items()}
        return {"ordereddict": {"items": _pairs(value, path, walk), "attributes": attributes}}
    if classes.is_dataclass(cls):
        return {"dataclass": {"class": classes.describe(cls), "fields": _fields(value, path, walk)}}
    if classes.is_namedtuple(cls) and len(value) == len(cls._fields):
        return {"namedtuple": {"class": classes.describe(cls), "values": _named(value, path, walk)}}
    if classes.is_userdict(cls):
        return {"userdict": {"class": classes.describe(cls), **_userdict(value, path, walk)}}
    raise UnkeepableError(f"{path} is a {classes.title(cls)}, which cannot be kept: {SUPPORTED}.")


def _listed(values: Iterable[Any], path: str, walk: Walk) -> list[Any]:
    return [node(value, f"{path}[{i}]", walk) for i, value in enumerate(values)]


def _pairs(values: dict[Any, Any], path: str, walk: Walk) -> list[list[Any]]:
    pairs = []
    for key, value in values.items():
        if type(key) not in (str, int, float, bool, type(None)):
            raise UnkeepableError(
                f"{path} has the key {key!r}, a {classes.title(type(key))}, which cannot be kept: keys can be str, "
                "int, float, bool and None."
            )
        pairs.append([PLAIN[type(key)](key), node(value, f"{path}[{key!r}]", walk)])
    return pairs


def _named(value: Any, path: str, walk: Walk) -> list[Any]:
    return [node(held, f"{path}.{name}", walk) for name, held in zip(type(value)._fields, value, strict=True)]


def _fields(value: Any, path: str, walk: Walk) -> list[list[Any]]:
    cls = type(value)
    is_more = not classes.is_plain(cls) or issubclass(cls, NOT_BY_FIELDS)
    if is_more or (issubclass(cls, dict) and not _holds_its_fields(value)):
        raise UnkeepableError(
            f"{path} is a {classes.title(cls)}, a dataclass that holds more than its fields, which cannot be kept: "
            f"{SUPPORTED}."
        )
    kept = [field for field in dataclasses.fields(value) if field.init or field.compare]
    missing = next((field.name for field in kept if not hasattr(value, field.name)), None)
    if missing is not None:
        raise UnkeepableError(f"{path} is a {classes.title(cls)} without its field '{missing}', which cannot be kept.")
    _check_constructible(cls, path, **{field.name: None for field in kept if field.init})
    return [[field.name, node(getattr(value, field.name), f"{path}.{field.name}", walk)] for field in kept]


NOT_BY_FIELDS = (collections.UserDict, torch.nn.Module)


def _holds_its_fields(value: Any) -> bool:
    """Returns whether a dict has exactly its fields that are not None, like the outputs of transformers."""
    fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    kept = {name: held for name, held in fields.items() if held is not None}
    return dict.keys(value) == kept.keys() and all(kept[name] is held for name, held in dict.items(value))


def _userdict(value: Any, path: str, walk: Walk) -> dict[str, Any]:
    """Returns the items, and the other attributes; ``None`` for one that cannot be kept, such as the encodings of a
    fast tokenizer."""
    if type(value.data) is not dict:
        raise UnkeepableError(
            f"{path}.data is a {classes.title(type(value.data))}, which cannot be kept: that of a UserDict must be a "
            "dict."
        )
    _check_constructible(type(value), path, {})
    attributes: dict[str, Any] = {}
    for name, held in vars(value).items():
        if name != "data":
            attributes[name] = None
            with contextlib.suppress(UnkeepableError):
                attributes[name] = node(held, f"{path}.{name}", walk)
    return {"items": _pairs(value.data, path, walk), "attributes": attributes}


def _check_constructible(cls: type, path: str, /, *args: Any, **kwargs: Any) -> None:
    """Raises ``UnkeepableError`` for a class whose constructor takes more than its contents: it may hold more."""
    try:
        inspect.signature(cls).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise UnkeepableError(
            f"{path} is a {classes.title(cls)}, which cannot be kept: it cannot be made from its contents ({error})."
        ) from error
