"""The buffers that a step may change: those of the model, and of other networks that the step function runs through."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchnan._load import _C
from torchnan.detection import shards, signal_handlers
from torchnan.detection.pause import detection_paused
from torchnan.training.guard.step.gradients import nonfinite_among
from torchnan.training.guard.step.networks import networks_named_by


@dataclasses.dataclass
class _Copy:
    """A buffer as it was before the step.

    Attributes:
        held_in: the ``_buffers`` of its module, ``None`` if it is not known.
        key: its name there.
        is_of_model: whether it is a buffer of the model, and not of another network.
        live: the tensor that was copied.
        tensor: the copy, ``None`` of an empty buffer; ``version``: of the tensor when it was copied.
    """

    held_in: dict[str, torch.Tensor | None] | None
    key: str
    is_of_model: bool
    live: torch.Tensor | None
    tensor: torch.Tensor | None = None
    version: int = 0

    def now(self) -> torch.Tensor | None:
        """Returns the buffer as it is: a step may have put another tensor in its place."""
        return self.live if self.held_in is None else self.held_in.get(self.key)


class Buffers:
    """Copies of buffers in memory that is reused from step to step.

    Args:
        model: its buffers have their names in it.
        also: further modules by name.
        step_fn: networks in training mode that it names in its code are saved too; ``None`` for none.
    """

    def __init__(self, model: nn.Module, also: Iterable[tuple[str, nn.Module]], step_fn: Callable[..., Any] | None):
        self._model = model
        self._also = list(also)
        self._step_fn = step_fn
        self._others: list[tuple[str, nn.Module]] = []  # parts with buffers of networks that the step function names
        self._steps = 0
        self._next_search = 1
        self._copies: dict[str, _Copy] = {}
        self._of_model: dict[str, torch.Tensor] = {}
        self._expected: frozenset[str] | None = None

    def save(self) -> None:
        """Copies the buffers as they are before a step. Copies those again that may have changed."""
        self._steps += 1
        if self._steps == self._next_search:  # ever more rarely: a step function may name another network later
            self._next_search *= 8
            self._others = self._find_others()
        copies: dict[str, _Copy] = {}
        if _C.may_have_buffers(self._model):
            copies.update(_buffers_of(self._model, None))
        for name, module in self._also:
            copies.update(_buffers_of(module, name))
        for name, module in self._others:
            if module.training:  # others change nothing
                copies.update(_buffers_of(module, name, with_children=False))
        if not copies:
            self._copies = copies
            return
        stale, targets = [], []
        for name, one in copies.items():
            if one.live is None or is_lazy(one.live):  # it gets its shape in the first forward pass
                continue
            live = shards.local(one.live).detach()
            before = self._copies.get(name)
            one.tensor, one.version = (None, 0) if before is None else (before.tensor, before.version)
            is_same = before is not None and before.live is one.live and not _may_change_unseen(live)
            if one.tensor is None or not _alike(one.tensor, live):
                one.tensor = torch.empty_like(live)
            elif is_same and one.version == live._version:
                continue
            stale.append(live)
            targets.append(one.tensor)
            one.version = 0 if live.is_inference() else live._version
        if stale:
            with detection_paused(), torch.no_grad():
                torch._foreach_copy_(targets, stale)
        self._copies = copies

    def restore(self) -> None:
        """Puts the buffers back, so that a discarded step leaves no trace in running statistics."""
        with detection_paused(), torch.no_grad():
            for one in self._copies.values():
                now = one.now()
                if one.tensor is not None and now is not None and _alike(one.tensor, shards.local(now)):
                    shards.local(now).detach().copy_(one.tensor)
                elif one.held_in is not None and (one.live is None or one.tensor is not None):
                    one.held_in[one.key] = None if one.tensor is None else one.tensor.clone()

    def changed(self) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
        """Returns the buffers with their copies from before the step; ``None`` if the step has put another tensor in
        the place of one, so that a copy cannot be put back into it."""
        changed = []
        for one in self._copies.values():
            if one.now() is not one.live or (one.live is not None and one.tensor is None):
                return None
            if one.live is not None and one.tensor is not None:
                changed.append((shards.local(one.live), one.tensor))
        return changed

    def of_model(self) -> dict[str, torch.Tensor]:
        """Returns the saved buffers of the model by name."""
        return {name: one.tensor for name, one in self._copies.items() if one.tensor is not None and one.is_of_model}

    def outside(self) -> list[str]:
        """Returns the names of the networks outside of the model that the step runs through."""
        return sorted({name.partition(".")[0] for name, _ in (*self._also, *self._others)})

    def bytes_in_memory(self) -> int:
        """Memory taken by the copies."""
        tensors = (one.tensor for one in self._copies.values() if one.tensor is not None)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def to_check(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the floating-point buffers as they are now, by name."""
        if not self._copies:
            return []
        return [
            (name, shards.local(now))
            for name, one in self._copies.items()
            if (now := one.now()) is not None and now.is_floating_point() and now.layout is torch.strided
        ]

    def spoiled(self, nonfinite: Iterable[str]) -> list[str]:
        """Returns those of the buffers that the step has made non-finite.

        Args:
            nonfinite: names of buffers that are non-finite now.
        """
        before = [(name, one.tensor) for name in nonfinite if (one := self._copies[name]).tensor is not None]
        were = nonfinite_among(before)
        return [name for name in nonfinite if name not in were]

    def is_expected(self, name: str) -> bool:
        """Returns whether a buffer of the model held infinities, and no NaN, when it was first looked at: a mask."""
        if self._expected is None:
            with detection_paused(), torch.no_grad():
                infinite = set(nonfinite_among(self._model.named_buffers()))
                self._expected = frozenset(
                    name
                    for name, buffer in self._model.named_buffers()
                    if name in infinite and not bool(shards.local(buffer).isnan().any())
                )
        return name in self._expected

    def _find_others(self) -> list[tuple[str, nn.Module]]:
        if self._step_fn is None:
            return []
        known = {
            id(part) for module in (self._model, *(module for _, module in self._also)) for part in module.modules()
        }
        found: dict[int, tuple[str, nn.Module]] = {}
        with signal_handlers.suppressed():  # it looks into objects of the user's, whatever they are
            for name, network in networks_named_by(self._step_fn):
                for path, part in network.named_modules():
                    if id(part) not in known and part._buffers:
                        found.setdefault(id(part), (f"{name}.{path}" if path else name, part))
        return list(found.values())


def _buffers_of(module: nn.Module, outside: str | None, *, with_children: bool = True) -> Iterator[tuple[str, _Copy]]:
    """Yields the buffers of a module by name.

    Args:
        module: the module.
        outside: its name, if it is not the model.
        with_children: whether to yield those of the modules in it.
    """
    before, after = ("", "") if outside is None else (f"{outside}.", " (outside of the model)")
    places: dict[int, tuple[dict[str, torch.Tensor | None], str]] = {}
    for path, part in module.named_modules() if with_children else [("", module)]:
        held_in = part._buffers
        for key, buffer in held_in.items():
            if buffer is not None:
                places.setdefault(id(buffer), (held_in, key))
            elif isinstance(held_in, dict):  # empty now: named_buffers() leaves it out
                name = f"{path}.{key}" if path else key
                yield f"{before}{name}{after}", _Copy(held_in, key, outside is None, None)
    for name, buffer in module.named_buffers(recurse=with_children) if outside is not None else module.named_buffers():
        of, key = places.get(id(buffer), (None, name))
        yield f"{before}{name}{after}", _Copy(of if isinstance(of, dict) else None, key, outside is None, buffer)


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def _may_change_unseen(buffer: torch.Tensor) -> bool:
    """Returns whether the version of a buffer says nothing about its values.

    Only integer buffers, such as large masks, can be trusted by version: kernels update running statistics without
    incrementing it.
    """
    return buffer.is_floating_point() or buffer.is_complex() or buffer.is_inference()
