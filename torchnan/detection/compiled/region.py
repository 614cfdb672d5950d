"""A compiled region: its results are checked at its border, and a call that made a non-finite one is replayed."""

from __future__ import annotations

import gc
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor.output_code import CompiledFxGraph
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torchnan._load import _C
from torchnan.detection import shards
from torchnan.detection.compiled import replay
from torchnan.detection.compiled.graph import has_collectives
from torchnan.detection.compiled.stack import modules_of
from torchnan.detection.containment import contained

MAX_COPIED = 64 << 20  # bytes of arguments that a region overwrites, copied before each call
MAX_REPLAYS = 3  # of one region for outputs of the same kinds; later ones have the provenance that was found first
_RECORD = "torchnan"  # of a call, in the metadata of the autograd node that it made


class Region:
    """What Inductor made of one graph of Dynamo's.

    Args:
        graph: a copy of the graph, see :func:`graph.copy_graph`.
        tensors: the graph's own parameters and buffers by name.
        compiled: runs the region.
    """

    def __init__(self, graph: fx.GraphModule, tensors: dict[str, torch.Tensor], compiled: Any) -> None:
        self.graph = graph
        self.tensors = tensors
        self.compiled = compiled
        self.modules = modules_of(graph.graph)
        self.has_collectives = has_collectives(graph)
        self.is_random: bool | None = None  # not known before the first call
        self.mutated = sorted({i for made in _reachable(compiled, CompiledFxGraph) for i in _mutated_by_forward(made)})
        self._known: dict[tuple[bool, int, tuple[bool, ...]], tuple[int, Any]] = {}

    def __call__(self, *args: Any) -> Any:
        if replay.is_running() or _C.current_session() is None:
            return self.compiled(*args)
        call = None
        with contained("preparing the call of a compiled region"):
            call = Call(self, args)
        results = self.compiled(*args)
        if call is not None:
            call.check_results(results)
        return results

    def provenances(self, call: Call, values: Sequence[Any], bad: list[int], tangents: Any) -> dict[int, Any]:
        """Finds the provenance of non-finite results, by a replay or from an earlier one; by index in ``values``."""
        is_backward = tangents is not None
        keys = {i: (is_backward, i, _kinds(values[i])) for i in bad}
        known = {i: self._known[key] for i, key in keys.items() if key in self._known}
        if len(known) == len(bad) and all(count >= MAX_REPLAYS for count, _ in known.values()):
            return {i: provenance for i, (_, provenance) in known.items() if provenance is not None}
        found = replay.find(call.recorded(), bad, tangents)
        for i, key in keys.items():
            count = self._known.get(key, (0, None))[0]
            self._known[key] = (count + 1, found.get(i))
        return found


class Call:
    """One call of a region: what its replay needs, until its results are known to be good."""

    def __init__(self, region: Region, args: tuple[Any, ...]) -> None:
        self.region = region
        is_boxed = len(args) == 1 and type(args[0]) is list  # compiled autograd empties such a list
        self.args = (*region.tensors.values(), *(args[0] if is_boxed else args))
        self.before = {} if is_boxed else self._copies_of_mutated()
        waits = region.has_collectives or any(map(shards.is_sharded, _tensors(self.args)))
        self.is_replayable = not waits and (is_boxed or self.before is not None)
        self.versions: list[int | None] = []
        self.outputs: list[tuple[int, int]] = []  # index in the graph's outputs, and of the autograd node
        self.random_state = torch.get_rng_state() if region.is_random is not False else None
        self.modes = replay.Modes.current()
        self.stack = 0

    def recorded(self) -> replay.RecordedCall:
        """Returns what a replay needs."""
        region = self.region
        return replay.RecordedCall(
            graph=region.graph,
            own=list(region.tensors),
            modules=region.modules,
            is_random=bool(region.is_random),
            args=self.args,
            before=self.before or {},
            random_state=self.random_state,
            modes=self.modes,
            stack=self.stack,
        )

    def _copies_of_mutated(self) -> dict[int, torch.Tensor] | None:
        mutated = [i for i in self.region.mutated if i < len(self.args) and isinstance(self.args[i], torch.Tensor)]
        if sum(self.args[i].nbytes for i in mutated) > MAX_COPIED:
            return None
        return {i: self.args[i].detach().clone() for i in mutated}

    def check_results(self, results: Any) -> None:
        """Checks what the region returned and the arguments that it wrote."""
        with contained("checking the results of a compiled region"):
            if self.region.is_random is None and self.random_state is not None:
                self.region.is_random = not torch.equal(self.random_state, torch.get_rng_state())
            outputs = list(results) if isinstance(results, list | tuple) else [results]
            written = [self.args[i] for i in self.before or ()]
            values = [*outputs, *written]
            if not all_finite(values):
                self.stack = _C.capture_stack()
                self._explain(values, None)
                return
            if self.is_replayable:  # else nothing would be done with what is held
                self._follow_into_backward(outputs)

    def _follow_into_backward(self, outputs: list[Any]) -> None:
        nodes = [value.grad_fn if isinstance(value, torch.Tensor) else None for value in outputs]
        node: Any = next((n for n in nodes if type(n).__name__ == "CompiledFunctionBackward"), None)
        if node is None:
            return
        self.outputs = [(i, outputs[i].output_nr) for i, n in enumerate(nodes) if n is node]
        self.versions = [_version(value) for value in self.args]
        self.stack = _C.capture_stack()
        node.metadata[_RECORD] = self
        _check_in_backward(type(node)._forward_cls)

    def check_gradients(self, gradients: Sequence[Any], tangents: Sequence[Any]) -> None:
        """Checks what the region's backward pass returned."""
        with contained("checking the gradients of a compiled region"):
            if self.args and not all_finite(gradients):
                before = self.before or {}
                untouched = (i in before or v == _version(self.args[i]) for i, v in enumerate(self.versions))
                self.is_replayable = self.is_replayable and all(untouched)
                pairs = [(i, tangents[number]) for i, number in self.outputs if tangents[number] is not None]
                self._explain(gradients, pairs)
            self.args, self.before = (), None  # held no longer than the backward pass

    def _explain(self, values: Sequence[Any], tangents: Any) -> None:
        if not self.is_replayable:
            return
        bad = [i for i, value in enumerate(values) if not all_finite([value])]
        for i, provenance in self.region.provenances(self, values, bad, tangents).items():
            for plain in _plain(values[i]):
                if not all_finite([plain]):
                    _C.set_provenance(plain, provenance)


def _check_in_backward(function: Any) -> None:
    """Lets ``CompiledFunction.backward`` check what it returns; compiled autograd would trace a hook on the node."""
    backward = vars(function)["backward"].__func__
    if hasattr(backward, "_torchnan_checks"):
        return

    def checked(ctx: Any, *grads: Any) -> Any:
        tangents = list(grads[0]) if len(grads) == 1 and type(grads[0]) is list else grads  # boxed from 2.13 on
        gradients = backward(ctx, *grads)
        call = ctx.metadata.get(_RECORD)
        if call is not None and _C.current_session() is not None and not replay.is_running():
            call.check_gradients(gradients if isinstance(gradients, list | tuple) else [gradients], tangents)
        return gradients

    checked._torchnan_checks = True  # type: ignore[attr-defined]
    function.backward = staticmethod(checked)


def all_finite(values: Sequence[Any]) -> bool:
    """Whether all floating-point and complex tensors among these are finite."""
    tensors = [p.detach() for v in values for p in _plain(v) if p.is_floating_point() or p.is_complex()]
    return not tensors or bool(torch.ops.torchnan.all_finite.list(tensors))


def _kinds(value: Any) -> tuple[bool, ...]:
    counts = torch.ops.torchnan.count_nonfinite.list([p.detach() for p in _plain(value)]).sum(0)
    return tuple(count > 0 for count in counts.tolist())


def _plain(value: Any) -> list[torch.Tensor]:
    """Returns the plain tensors that a value consists of: a wrapper subclass has them inside."""
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        return [plain for name in names for plain in _plain(getattr(value, name))]
    return [value] if isinstance(value, torch.Tensor) else []


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def _version(value: Any) -> int | None:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None


def _mutated_by_forward(made: Any) -> Sequence[int]:
    return () if made.fx_kwargs.get("is_backward") else made.mutated_input_idxs


def _reachable(root: Any, kind: type, limit: int = 20_000) -> list[Any]:
    """Finds the objects of a class behind a callable: PyTorch hands out no reference to them."""
    seen: set[int] = {id(root)}
    pending: list[Any] = [root]
    found: list[Any] = []
    while pending and len(seen) < limit:
        for item in gc.get_referents(pending.pop(0)):
            if id(item) in seen or isinstance(item, types.ModuleType | torch.Tensor | fx.Graph | str | int):
                continue
            if isinstance(item, type) and item.__name__ != "CompiledFunction":
                continue
            if isinstance(item, dict) and "__builtins__" in item:
                continue
            seen.add(id(item))
            (found if isinstance(item, kind) else pending).append(item)
    return found
