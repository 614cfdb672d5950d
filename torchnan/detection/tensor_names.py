"""The names of a model's parameters and buffers. One walk over the modules finds all; each is checked when used."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from torchnan._load import _C
from torchnan.detection import shards
from torchnan.detection.containment import contained

IN_QUERY = "asking a module for its parts"


class Owned(NamedTuple):
    """A parameter or a buffer of a model."""

    is_buffer: bool
    name: str


class _Names(NamedTuple):
    root: weakref.ref[torch.nn.Module]
    by_storage: dict[int, Owned]
    by_id: dict[int, Owned]


_known: dict[int, _Names] = {}  # by the id of the root: some modules cannot be compared


def known_owner_of_storage(root: torch.nn.Module, storage: int) -> Owned | None:
    """Returns what the last walk over a model found on a storage, if that is still there."""
    names = _names_of(root)
    owned = names.by_storage.get(storage) if names is not None else None
    if owned is not None and (tensor := _tensor_at(root, owned)) is not None and _storage_of(tensor) == storage:
        return owned
    return None


def known_owner_of_tensor(root: torch.nn.Module, tensor: torch.Tensor) -> Owned | None:
    """Returns the name under which the last walk over a model found a tensor, if that is still there."""
    names = _names_of(root)
    owned = names.by_id.get(id(tensor)) if names is not None else None
    return owned if owned is not None and _tensor_at(root, owned) is tensor else None


def walk(root: torch.nn.Module) -> None:
    """Finds the tensors of a model, parameters first, each under the first of its names."""
    names = _Names(weakref.ref(root, lambda _: _known.pop(key, None)), {}, {})
    key = id(root)
    _known[key] = names
    with contained(IN_QUERY):
        modules = list(within(root))
        for is_buffer in (False, True):
            for path, module in modules:
                for name, tensor in parts(module, _kind(is_buffer)):
                    owned = Owned(is_buffer, joined(path, name))
                    names.by_storage.setdefault(_storage_of(tensor), owned)
                    names.by_id.setdefault(id(tensor), owned)


def _names_of(root: torch.nn.Module) -> _Names | None:
    known = _known.get(id(root))
    return known if known is not None and known.root() is root else None


def _storage_of(tensor: torch.Tensor) -> int:
    return _C.storage_of(shards.local(tensor))


def _kind(is_buffer: bool) -> str:
    return "_buffers" if is_buffer else "_parameters"


def _tensor_at(root: torch.nn.Module, owned: Owned) -> torch.Tensor | None:
    path, _, name = owned.name.rpartition(".")
    module = module_at(root, path)
    return None if module is None else module.__dict__.get(_kind(owned.is_buffer), {}).get(name)


# -- the tree of modules


def parts(module: torch.nn.Module, kind: str) -> list[tuple[str, Any]]:
    """Returns the entries of ``_modules``, ``_parameters`` or ``_buffers`` of a module.

    Reads ``__dict__``: methods may be overridden by arbitrary code, and a module whose constructor failed may lack
    even these attributes.
    """
    with contained(IN_QUERY):
        return [(name, part) for name, part in list(module.__dict__.get(kind, {}).items()) if part is not None]
    return []


def joined(path: str, name: str) -> str:
    """Returns the dotted path of a part."""
    return f"{path}.{name}" if path else name


def within(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields a module and all modules inside it, parents first, each under every name that it has."""
    above: set[int] = set()  # modules may be nested deeper than Python's stack, and in themselves
    pending: list[tuple[str, torch.nn.Module | None]] = [("", root)]
    entered: list[int] = []
    while pending:
        path, module = pending.pop()
        if module is None:  # all inside the module entered last has been visited
            above.discard(entered.pop())
            continue
        yield path, module
        above.add(id(module))
        entered.append(id(module))
        pending.append(("", None))
        children = [(joined(path, name), child) for name, child in parts(module, "_modules")]
        pending.extend(child for child in reversed(children) if id(child[1]) not in above)


def module_at(root: torch.nn.Module, name: str) -> torch.nn.Module | None:
    """Returns the module of a dotted path; ``None`` if there is none."""
    module: torch.nn.Module | None = root
    for part in name.split(".") if name else ():
        module = module.__dict__.get("_modules", {}).get(part) if module is not None else None
    return module
