"""The names of a model's parameters and buffers. One walk over the modules finds all; each is checked when used."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
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


class Memory(NamedTuple):
    """Memory of a tensor: a range of bytes of a storage."""

    storage: int  # address of the StorageImpl
    begin: int
    end: int


class _Location(NamedTuple):
    """Where a walk has found a parameter or a buffer."""

    owned: Owned
    steps: tuple[str, ...]  # names of the modules on the way, which may contain dots
    name: str  # in the last of them

    def tensor(self, root: torch.nn.Module) -> torch.Tensor | None:
        """Returns the tensor that is there now, ``None`` if there is none."""
        module = _module_after(root, self.steps)
        if module is None:
            return None
        tensor: torch.Tensor | None = module.__dict__.get(_kind(self.owned.is_buffer), {}).get(self.name)
        return tensor


class _Names(NamedTuple):
    root: weakref.ref[torch.nn.Module]
    by_storage: dict[int, list[_Location]]
    by_id: dict[int, _Location]


_known: dict[int, _Names] = {}  # by the id of the root: some modules cannot be compared


def known_owner_of_memory(root: torch.nn.Module, memory: Memory) -> Owned | None:
    """Returns what the last walk over a model found in a storage, if that is still there; of several that share it, the
    first that is in the memory and not finite."""
    names = _names_of(root)
    locations = names.by_storage.get(memory.storage, []) if names is not None else []
    there = [(one, tensor) for one in locations if (tensor := one.tensor(root)) is not None]
    owners = [(one.owned, tensor) for one, tensor in there if _storage_of(tensor) == memory.storage]
    if len(owners) > 1:  # parts of a flat parameter
        owners = [(owned, tensor) for owned, tensor in owners if _is_in(tensor, memory)] or owners
        owners = [(owned, tensor) for owned, tensor in owners if not _is_finite(tensor)] or owners
    return owners[0][0] if owners else None


def known_owner_of_tensor(root: torch.nn.Module, tensor: torch.Tensor) -> Owned | None:
    """Returns the name under which the last walk over a model found a tensor, if that is still there."""
    names = _names_of(root)
    location = names.by_id.get(id(tensor)) if names is not None else None
    return location.owned if location is not None and location.tensor(root) is tensor else None


def walk(root: torch.nn.Module) -> None:
    """Finds the tensors of a model, parameters first, each under the first of its names."""
    names = _Names(weakref.ref(root, lambda _: _known.pop(key, None)), {}, {})
    key = id(root)
    _known[key] = names
    with contained(IN_QUERY):
        modules = list(_within(root))
        for is_buffer in (False, True):
            for path, steps, module in modules:
                for name, tensor in parts(module, _kind(is_buffer)):
                    location = _Location(Owned(is_buffer, joined(path, name)), steps, name)
                    names.by_storage.setdefault(_storage_of(tensor), []).append(location)
                    names.by_id.setdefault(id(tensor), location)


def _names_of(root: torch.nn.Module) -> _Names | None:
    known = _known.get(id(root))
    return known if known is not None and known.root() is root else None


def _storage_of(tensor: torch.Tensor) -> int:
    return _C.storage_of(shards.local(tensor))


def _is_in(tensor: torch.Tensor, memory: Memory) -> bool:
    """Whether a tensor in the same storage has elements in the memory."""
    with torch._C.DisableTorchFunction():
        local = shards.local(tensor)
        if local.numel() == 0:
            return False
        last = sum((size - 1) * stride for size, stride in zip(local.size(), local.stride(), strict=True))
        begin = local.storage_offset() * local.element_size()
        return begin < memory.end and memory.begin < begin + (last + 1) * local.element_size()


def _is_finite(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():  # inspecting a tensor is not a call by user code
        return tensor.numel() == 0 or _C.magnitudes([shards.local(tensor)]) != [None]


def _kind(is_buffer: bool) -> str:
    return "_buffers" if is_buffer else "_parameters"


# -- the tree of modules


def parts(module: torch.nn.Module, kind: str) -> list[tuple[str, Any]]:
    """Returns the entries of ``_modules``, ``_parameters`` or ``_buffers`` of a module.

    Reads ``__dict__``: methods may be overridden by arbitrary code, and a module whose constructor failed may lack
    even these attributes.
    """
    try:  # a context manager would take most of the time of a walk over many modules
        held = module.__dict__.get(kind)
        return [(name, part) for name, part in list(held.items()) if part is not None] if held else []
    except Exception:
        with contained(IN_QUERY):
            raise
        return []


def joined(path: str, name: str) -> str:
    """Returns the dotted path of a part."""
    return f"{path}.{name}" if path else name


def within(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields a module and all modules inside it with their paths, parents first, each under all its names."""
    for path, _, module in _within(root):
        yield path, module


def _within(root: torch.nn.Module) -> Iterator[tuple[str, tuple[str, ...], torch.nn.Module]]:
    """Yields the same modules with their paths, and the names that the paths consist of."""
    above: set[int] = set()  # modules may be nested deeper than Python's stack, and in themselves
    pending: list[tuple[str, tuple[str, ...], torch.nn.Module | None]] = [("", (), root)]
    entered: list[int] = []
    while pending:
        path, steps, module = pending.pop()
        if module is None:  # all inside the module entered last has been visited
            above.discard(entered.pop())
            continue
        yield path, steps, module
        above.add(id(module))
        entered.append(id(module))
        pending.append(("", (), None))
        children = [(joined(path, name), (*steps, name), child) for name, child in parts(module, "_modules")]
        pending.extend(child for child in reversed(children) if id(child[2]) not in above)


def module_at(root: torch.nn.Module, name: str) -> torch.nn.Module | None:
    """Returns the module of a dotted path; ``None`` if there is none."""
    return _module_after(root, name.split(".") if name else ())


def _module_after(root: torch.nn.Module, steps: Iterable[str]) -> torch.nn.Module | None:
    module: torch.nn.Module | None = root
    for step in steps:
        module = module.__dict__.get("_modules", {}).get(step) if module is not None else None
    return module
