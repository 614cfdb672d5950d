"""The classes that a document names: their kinds, how to find one without importing anything, and how to make an
instance without running its code."""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from torchnan.training.storage.errors import CaptureError
from torchnan.training.storage.schema_checks import require_key


def is_dataclass(cls: type) -> bool:
    return type(_attribute(cls, "__dataclass_fields__")) is dict


def is_namedtuple(cls: type) -> bool:
    names = _attribute(cls, "_fields")
    return tuple in _bases(cls) and type(names) is tuple and all(type(name) is str for name in names)


def is_userdict(cls: type) -> bool:
    return collections.UserDict in _bases(cls)


def _attribute(cls: type, name: str) -> Any:
    """Returns an attribute as the class stores it: a metaclass may run code when it is asked."""
    return next((vars(base)[name] for base in _bases(cls) if name in vars(base)), None)


def _bases(cls: type) -> tuple[type, ...]:
    return type.__dict__["__mro__"].__get__(cls)  # type: ignore[no-any-return]


KINDS = {"dataclass": is_dataclass, "namedtuple": is_namedtuple, "userdict": is_userdict}


def title(cls: type) -> str:
    """Returns ``"train.Batch"``; without the module for a builtin."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def describe(cls: type) -> dict[str, str]:
    return {"module": cls.__module__, "qualname": cls.__qualname__}


def find(node: Any, kind: str, known: Iterable[type], path: str) -> type:
    """Returns the class that `describe` described.

    Raises:
        CaptureError: there is no class of this name, it is not of this kind, or it has a finalizer and is not among
            the known ones.
    """
    module, qualname = require_key(node, "module", str, path), require_key(node, "qualname", str, path)
    allowed = _among(known, module, qualname)
    found = allowed or _imported(module, qualname)
    if found is None:
        raise CaptureError(
            f"{path}: the value holds a {module}.{qualname}, and no such class is known here: import its module "
            "first or pass it in `types`."
        )
    if not KINDS[kind](found):
        raise CaptureError(f"{path}: {module}.{qualname} was a {kind} and no longer is one.")
    if allowed is None and _attribute(found, "__del__") is not None:
        raise CaptureError(
            f"{path}: {module}.{qualname} has a finalizer, which would run with values of the document: pass the class "
            "in `types` if you trust them."
        )
    return found


def is_plain(cls: type) -> bool:
    """Returns whether an instance has no state but its attributes, slots and the items of a dict."""
    return all(_is_python_class(base) or base in (object, dict, collections.OrderedDict) for base in _bases(cls))


def _is_python_class(cls: type) -> bool:
    return bool(cls.__flags__ & 1 << 9)  # Py_TPFLAGS_HEAPTYPE


def instance_of(cls: Any, attributes: Mapping[str, Any], items: Mapping[Any, Any]) -> Any:
    """Returns an instance with these attributes and, of a dict, these items. Runs no code of the class: no constructor,
    no property, no ``__setattr__``.

    Raises:
        TypeError: an instance has more state than these, or the class is abstract.
        AttributeError: an instance cannot have an attribute.
    """
    base: Any = next(base for base in (collections.OrderedDict, dict, object) if base in _bases(cls))
    if not is_plain(cls):
        raise TypeError("it holds more than attributes")
    made = base.__new__(cls)
    for key, item in items.items():
        base.__setitem__(made, key, item)
    for name, held in attributes.items():
        slot = _attribute(cls, name)
        if isinstance(slot, types.MemberDescriptorType):
            slot.__set__(made, held)
        else:
            object.__getattribute__(made, "__dict__")[name] = held
    return made


def _among(known: Iterable[type], module: str, qualname: str) -> type | None:
    named = [cls for cls in known if cls.__qualname__ == qualname]
    exact = [cls for cls in named if cls.__module__ == module]
    return next(iter(exact or named), None)


def _imported(module: str, qualname: str) -> type | None:
    """Looks only at existing entries of namespaces: getattr on a module may import, and on a class run code."""
    holder: Any = sys.modules.get(module)
    if not isinstance(holder, types.ModuleType):
        return None
    for part in qualname.split("."):
        holder = vars(holder).get(part)
        if not isinstance(holder, type):
            return None
    return holder if isinstance(holder, type) else None
