"""The classes that a document names: their kinds, and how to find one without importing anything."""

from __future__ import annotations

import collections
import dataclasses
import sys
import types
from collections.abc import Iterable
from typing import Any

from torchnan.training.storage.errors import CaptureError
from torchnan.training.storage.schema_checks import require_key


def is_dataclass(cls: type) -> bool:
    return dataclasses.is_dataclass(cls)


def is_namedtuple(cls: type) -> bool:
    names = getattr(cls, "_fields", None)
    return issubclass(cls, tuple) and isinstance(names, tuple) and all(type(name) is str for name in names)


def is_userdict(cls: type) -> bool:
    return issubclass(cls, collections.UserDict)


KINDS = {"dataclass": is_dataclass, "namedtuple": is_namedtuple, "userdict": is_userdict}


def title(cls: type) -> str:
    """Returns ``"train.Batch"``; without the module for a builtin."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def describe(cls: type) -> dict[str, str]:
    return {"module": cls.__module__, "qualname": cls.__qualname__}


def find(node: Any, kind: str, known: Iterable[type], path: str) -> type:
    """Returns the class that `describe` described.

    Raises:
        CaptureError: there is no class of this name, or it is not of this kind.
    """
    module, qualname = require_key(node, "module", str, path), require_key(node, "qualname", str, path)
    found = _among(known, module, qualname) or _imported(module, qualname)
    if found is None:
        raise CaptureError(
            f"{path}: the value holds a {module}.{qualname}, and no such class is known here: import its module "
            "first or pass it in `types`."
        )
    if not KINDS[kind](found):
        raise CaptureError(f"{path}: {module}.{qualname} was a {kind} and no longer is one.")
    return found


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
