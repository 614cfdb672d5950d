"""Runs one call and records everything that a program could notice about it. Does not use torchnan."""

from __future__ import annotations

import contextlib
import ctypes
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

COMPRESSED = {torch.sparse_csr: "c", torch.sparse_bsr: "c", torch.sparse_csc: "r", torch.sparse_bsc: "r"}


class Copies:
    """Copies of arguments that keep strides, the gaps between elements, and shared memory."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._tensors: dict[int, torch.Tensor] = {}

    def __call__(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in self._tensors:
            self._tensors[id(x)] = self._copy(x)
        return self._tensors[id(x)]

    def _copy(self, x: torch.Tensor) -> torch.Tensor:
        if x.layout != torch.strided or x.device.type != "cpu":
            return x.detach().clone().requires_grad_(x.requires_grad)
        storage = x.untyped_storage()
        twin = self._storages.get(storage._cdata)
        if twin is None:
            twin = self._storages[storage._cdata] = storage.clone()
        copy = torch.empty(0, dtype=x.dtype).set_(twin, x.storage_offset(), x.shape, x.stride())
        copy = copy.conj() if x.is_conj() else copy
        copy = torch._neg_view(copy) if x.is_neg() else copy
        return copy.requires_grad_(x.requires_grad)

    def storages(self) -> list[torch.UntypedStorage]:
        return list(self._storages.values())


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a tensor consists of."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in COMPRESSED:
        rows = COMPRESSED[tensor.layout] == "c"
        pointers = (
            (tensor.crow_indices(), tensor.col_indices()) if rows else (tensor.ccol_indices(), tensor.row_indices())
        )
        return [*pointers, tensor.values()]
    assert tensor.layout == torch.strided, f"cannot compare {tensor.layout}"
    return [tensor]


def bits(tensor: torch.Tensor) -> bytes | None:
    """The bytes of the elements, so that NaN payloads and -0.0 count; ``None`` if there is no memory."""
    if tensor._is_zerotensor() or tensor.device.type != "cpu":
        return None
    dense = tensor if tensor.is_contiguous() else tensor.contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.numel() * dense.element_size()) if dense.numel() else b""


def memory(storage: torch.UntypedStorage) -> bytes:
    """All of the storage, so that a write beside the elements of a tensor counts."""
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def is_finite(thing: Any) -> bool:
    if not isinstance(thing, torch.Tensor) or not (thing.is_floating_point() or thing.is_complex()):
        return True
    # A clone, because views of sparse tensors have no real and imaginary part, and float8 has none either.
    values = [part.double() if part.element_size() == 1 else part.clone() for part in parts(thing)]
    return all(bool(torch.isfinite(x).all()) for x in values)


def graph(tensor: torch.Tensor) -> tuple[str, ...]:
    """The names of the nodes that its gradient goes through."""
    names, todo, seen = [], [tensor.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        names.append(node.name())
        todo.extend(next_node for next_node, _ in node.next_functions)
    return tuple(names)


class Seen(NamedTuple):
    """A tensor: its bits, and its metadata."""

    bits: list[bytes | None]
    shape: torch.Size
    dtype: torch.dtype
    layout: torch.layout
    strides: list[tuple[int, ...]]
    offset: list[int]
    flags: tuple[bool, ...]
    version: int
    requires_grad: bool
    graph: tuple[str, ...]
    storage: list[int]  # the first of all tensors of this run that has the same memory
    object: int  # the first that is the same object


class Album:
    """Describes tensors one after the other, each in terms of those before it."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}
        self._objects: dict[int, int] = {}

    def describe(self, things: Iterable[Any]) -> list[Any]:
        return [self._tensor(x) if isinstance(x, torch.Tensor) else repr(x) for x in things]

    def _tensor(self, x: torch.Tensor) -> Seen:
        pieces = parts(x)
        return Seen(
            bits=[bits(piece) for piece in pieces],
            shape=x.shape,
            dtype=x.dtype,
            layout=x.layout,
            strides=[piece.stride() for piece in pieces],
            offset=[piece.storage_offset() for piece in pieces],
            flags=(x.is_conj(), x.is_neg(), x._is_zerotensor(), x.is_leaf, x.is_sparse and x.is_coalesced()),
            version=x._version,
            requires_grad=x.requires_grad,
            graph=graph(x),
            storage=[self._first(self._storages, piece.untyped_storage()._cdata) for piece in pieces],
            object=self._first(self._objects, id(x)),
        )

    @staticmethod
    def _first(known: dict[int, int], key: int) -> int:
        return known.setdefault(key, len(known))


def cotangent(x: torch.Tensor) -> torch.Tensor:
    """The inputs of the backward pass: values that differ, without random numbers."""
    if x.layout != torch.strided:
        return torch.ones_like(x)
    return torch.linspace(0.25, 1, x.numel(), dtype=x.dtype).reshape(x.shape)


class Call(NamedTuple):
    """A function with its arguments; each run gets copies."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Run:
    """One run of a call, forward, backward and, if ``twice``, through the backward pass: ``noticed`` by facet."""

    def __init__(
        self,
        call: Call,
        *,
        scope: contextlib.AbstractContextManager[Any],
        twice: bool = True,
        printed: Callable[[], Any] = lambda: None,
        warned: str = "always",
    ) -> None:
        self.noticed: dict[str, Any] = {}
        self.tensors: list[torch.Tensor] = []
        copies = Copies()
        args, kwargs = tree_map(copies, (call.args, call.kwargs))
        arguments = tree_leaves((args, kwargs))
        torch.default_generator.manual_seed(0)
        pythons_state = random.getstate()
        kept: dict[str, list[Any]] = {"arguments": arguments}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter(warned)
            with scope:
                for name, things in self._stages(call.function, args, kwargs, twice):
                    kept[name] = things
        album = Album()
        self.noticed.update((name, album.describe(things)) for name, things in kept.items())
        self.noticed["warnings"] = [(w.category, str(w.message), w.filename, w.lineno) for w in said]
        self.noticed["memory"] = [memory(storage) for storage in copies.storages()]
        self.noticed["printed"] = printed()
        self.noticed["random state"] = bits(torch.default_generator.get_state())
        self.noticed["Python's random state"] = random.getstate() == pythons_state
        self.tensors = [x for things in kept.values() for x in things if isinstance(x, torch.Tensor)]

    def _stages(
        self, function: Callable[..., Any], args: Any, kwargs: Any, twice: bool
    ) -> Iterator[tuple[str, list[Any]]]:
        """All results are kept until the end, as a program would; an error ends the run, and is recorded too."""
        stage = "forward"
        try:
            outputs = tree_leaves(function(*args, **kwargs))
            yield "outputs", outputs
            roots = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
            leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
            if not roots or not leaves:
                return
            stage = "backward"
            seeds = [cotangent(x).requires_grad_(twice) for x in roots]
            torch.autograd.backward(roots, [seed.detach() for seed in seeds], retain_graph=twice)
            yield "gradients", [x.grad for x in leaves]
            if not twice:
                return
            stage = "double backward"
            gradients = torch.autograd.grad(roots, leaves, seeds, create_graph=True, allow_unused=True)
            yield "gradients with a graph", list(gradients)
            roots = [x for x in gradients if x is not None and x.requires_grad]
            if roots:
                seeds_of_roots = [cotangent(x) for x in roots]
                yield (
                    "second gradients",
                    list(torch.autograd.grad(roots, [*leaves, *seeds], seeds_of_roots, allow_unused=True)),
                )
        except Exception as error:  # noqa: BLE001 - whatever it raises is what is compared
            self.noticed["error"] = (stage, type(error), str(error))


def facets(noticed: dict[str, Any]) -> dict[str, Any]:
    """Everything that was recorded, one entry each: ``{"outputs[0].version": 0}``."""
    flat = {}
    for name, value in noticed.items():
        entries = {f"{name}[{i}]": x for i, x in enumerate(value)} if isinstance(value, list) else {name: value}
        for entry, x in entries.items():
            flat.update({f"{entry}.{k}": y for k, y in x._asdict().items()} if isinstance(x, Seen) else {entry: x})
    return flat


def differences(one: Run, other: Run) -> dict[str, str]:
    """By facet: ``{"outputs[0].version": "0 and 1"}``."""
    if one.noticed == other.noticed:
        return {}
    a, b = facets(one.noticed), facets(other.noticed)
    return {
        k: f"{a.get(k)!r:.200} and {b.get(k)!r:.200}" for k in {**a, **b} if k not in a or k not in b or a[k] != b[k]
    }
