"""Runs one operator on one sample and writes down everything that a program could notice."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torchnan


def bits(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor, so that NaN payloads and -0.0 count."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return bits(tensor._indices()), bits(tensor._values())
    if tensor.layout != torch.strided:
        return str(tensor)
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    no_numpy = {torch.bfloat16: torch.int16, torch.complex32: torch.int32}
    return dense.view(no_numpy.get(tensor.dtype, tensor.dtype)).numpy().tobytes()


def storage(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else None


def describe(thing: Any, inputs: list[Any]) -> Any:
    """A tensor by its bits and by all that surrounds them; anything else by its repr."""
    if not isinstance(thing, torch.Tensor):
        return repr(thing)
    mine = storage(thing)
    aliases = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and mine and storage(x) == mine]
    return (
        bits(thing),
        tuple(thing.shape),
        thing.stride() if thing.layout == torch.strided else None,
        thing.dtype,
        thing._version,
        aliases,
        thing.requires_grad,
        type(thing.grad_fn).__name__,
    )


def is_finite(thing: Any) -> bool:
    if not isinstance(thing, torch.Tensor) or not (thing.is_floating_point() or thing.is_complex()):
        return True
    thing = thing.detach()
    return bool(torch.isfinite(thing if thing.layout == torch.strided else thing.to_dense()).all())


class Run:
    """One run of an operator: what came out, and the operations it was made of."""

    def __init__(self, op: Any, sample: Any, *, watched: bool, listed: bool = False) -> None:
        def fresh(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            return x.detach().clone().requires_grad_(x.requires_grad)

        torch.manual_seed(0)
        self.input, self.args, self.kwargs = tree_map(fresh, (sample.input, sample.args, sample.kwargs))
        self.inputs = tree_leaves((self.input, self.args, self.kwargs))
        self.watch = torchnan.detect(action="log") if watched else None
        self.list = _List() if listed else contextlib.nullcontext()
        self.noticed: dict[str, Any] = {}
        self.finite = True
        with self.watch or contextlib.nullcontext():
            with self.list:
                self._run(op)
        self.noticed["random state"] = torch.random.get_rng_state().numpy().tobytes()
        self.noticed["inputs after"] = [describe(x, []) for x in self.inputs]

    def _run(self, op: Any) -> None:
        try:
            outputs = tree_leaves(op(self.input, *self.args, **self.kwargs))
        except Exception as error:  # noqa: BLE001 - whatever it raises is what is compared
            self.noticed["error"] = (type(error), str(error))
            return
        self.noticed["outputs"] = [describe(x, self.inputs) for x in outputs]
        gradients = self._gradients(outputs)
        self.noticed["gradients"] = [describe(x, self.inputs) for x in gradients]
        self.finite = all(map(is_finite, [*self.inputs, *outputs, *gradients]))

    def _gradients(self, outputs: list[Any]) -> list[Any]:
        roots = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
        leaves = [x for x in self.inputs if isinstance(x, torch.Tensor) and x.requires_grad]
        if not roots or not leaves:
            return []
        scalars = [x.abs().sum() if x.is_complex() else x.sum() for x in roots]
        try:
            return [g for g in torch.autograd.grad(scalars, leaves, allow_unused=True) if g is not None]
        except Exception as error:  # noqa: BLE001 - likewise
            self.noticed["error in backward"] = (type(error), str(error))
            return []


class _List(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


# Operators that differ between any two runs, detection or not.
VARYING = {
    **dict.fromkeys(
        ("empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "new_empty_strided"),
        "memory that nobody has written",
    ),
    "linalg.lstsq": "LAPACK's gelsy depends on how its memory is aligned",
}


def differences(op: Any, sample: Any) -> list[str]:
    """What differs between a run with detection off and one with it on; empty if nothing does."""
    off, on = Run(op, sample, watched=False), Run(op, sample, watched=True)
    found = [name for name in {**off.noticed, **on.noticed} if off.noticed.get(name) != on.noticed.get(name)]
    if op.name in VARYING:
        found = [name for name in found if name not in ("outputs", "gradients")]
    listed_off, listed_on = (Run(op, sample, watched=watched, listed=True) for watched in (False, True))
    if listed_off.list.ops != listed_on.list.ops:
        found.append("dispatched operations")
    if on.finite and any(finding.level == "error" for finding in on.watch.findings):
        found.append(f"false alarm: {on.watch.first}")
    if on.watch.stats()["internal_errors"]:
        found.append("internal error")
    return found
