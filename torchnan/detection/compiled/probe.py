"""Distinguishes calls of a region with non-finite results by the nodes of the traced graph where the values begin."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

from torchnan._load import _C
from torchnan.detection.compiled import time_limit
from torchnan.detection.compiled.compiled_autograd import nodes_of_pass
from torchnan.detection.compiled.graph import as_list, copy_graph, plain_parts
from torchnan.detection.compiled.torch_internals import is_transform

# Nodes that made a kind which none of their arguments had: name and kinds. Or the same kinds: name, kinds, whether at
# other elements, and whether without those of the arguments.
Sources = list[Hashable]
# For each output, the names of the sources and inputs whose non-finite values reach it; none if it is finite.
Reached = tuple[frozenset[str], ...]

NAN, NEGINF = 1, 4  # as in kinds_of()


class Probe:
    """Runs a graph as plain eager code, and finds the nodes where its non-finite values begin.

    Args:
        graph: the graph that Dynamo traced.
        own: names of its own tensors, which come first among its inputs.
    """

    def __init__(self, graph: fx.GraphModule, own: Sequence[str]) -> None:
        self._graph = copy_graph(graph)
        self._own = own
        nodes = (node for body in graph.modules() if isinstance(body, fx.GraphModule) for node in body.graph.nodes)
        self.has_transforms = any(is_transform(node.target) for node in nodes)  # of torch.func, which differentiate
        self._thread = threading.local()
        for body in self._graph.modules():
            if isinstance(body, fx.GraphModule) and body is not self._graph:
                body.forward = self._runner_of(body)

    def run(self, inputs: Sequence[Any], passed: Sequence[Any], is_random: bool) -> tuple[list[Any], Sources, Reached]:
        """Returns the outputs, where non-finite values begin, and which outputs they reach.

        Args:
            inputs: the graph's own tensors, and arguments.
            passed: the arguments as the graph takes them.
            is_random: whether the graph draws random numbers, so that no operation may run twice.
        """
        self._thread.sources = sources = Sources()
        self._thread.is_random = is_random
        self._thread.own = dict(zip(self._own, inputs, strict=False))
        whole = self._interpreter(self._graph)
        try:
            outputs = as_list(whole.run(*passed))
        finally:
            self._thread.__dict__.clear()  # the tensors of the call
        return outputs, sources, whole.reached_outputs()

    def _runner_of(self, body: fx.GraphModule) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            return self._interpreter(body).run(*args)

        return run

    def _interpreter(self, module: fx.GraphModule) -> _Interpreter:
        return _Interpreter(module, self._thread.own, self._thread.sources, self._thread.is_random)


class _Interpreter(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, own: dict[str, torch.Tensor], sources: Sources, is_random: bool) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._own, self._sources, self._is_random = own, sources, is_random
        self._kinds: dict[fx.Node, int] = {}
        self._reached: dict[fx.Node, frozenset[str]] = {}  # by the sources with these names

    def reached_outputs(self) -> Reached:
        """Returns by which sources and inputs each output of the graph is reached."""
        (returned,) = next(node for node in self.graph.nodes if node.op == "output").args
        nodes: Any = returned if isinstance(returned, list | tuple) else [returned]
        return tuple(self._reached.get(node, frozenset()) for node in nodes)

    def run_node(self, n: fx.Node) -> Any:
        time_limit.check()
        bad = [argument for argument in n.all_input_nodes if argument in self._kinds]
        # before the node may overwrite them
        masks = {argument: [~torch.isfinite(part) for part in plain_parts(self.env[argument])] for argument in bad}
        result = super().run_node(n)
        kinds = kinds_in(result)
        if kinds:
            is_source = not n.op.startswith("call") or self._add_source(n, result, kinds, masks)
            self._kinds[n] = kinds
            reaching = [argument for argument in bad if _reaches(masks[argument], result)]
            if not reaching and not is_source:  # not element by element
                reaching = bad
            names = frozenset[str]().union(*(self._reached[argument] for argument in reaching))
            self._reached[n] = names | {n.name} if is_source else names
        return result

    def _add_source(self, n: fx.Node, result: Any, kinds: int, masks: dict[fx.Node, list[torch.Tensor]]) -> bool:
        """Adds an operation to the sources if non-finite values begin there. Returns whether they do.

        Args:
            n: the operation.
            result: its result.
            kinds: of the result.
            masks: where its arguments were non-finite.
        """
        given = functools.reduce(operator.or_, (self._kinds[argument] for argument in masks), 0)
        if kinds & ~given:
            self._sources.append((n.name, kinds & ~given))
            return True
        is_elsewhere = _has_own_elements(result, [mask for parts in masks.values() for mask in parts])
        is_own = not given & NAN and self._is_made_without(n, result)
        if is_elsewhere or is_own:
            self._sources.append((n.name, kinds, is_elsewhere, is_own))
        return is_elsewhere or is_own

    def _is_made_without(self, n: fx.Node, result: Any) -> bool:
        """Whether elements of a result are non-finite without the infinities among the arguments, too.

        They are an overflow beside a mask, in another row.
        """
        if self._is_random or not _may_run_again(n):
            return False
        masks = [~torch.isfinite(part) for part in plain_parts(result)]
        for number in (0.0, 1.0):  # an operation may be undefined at one of them
            args, kwargs = tree_map(functools.partial(_filled, number), self.fetch_args_kwargs_from_env(n))
            try:
                parts = plain_parts(getattr(self, n.op)(n.target, args, kwargs))
                masks = [mask & ~torch.isfinite(part) for mask, part in zip(masks, parts, strict=True)]
            except (RuntimeError, TypeError, ValueError):  # the shapes depend on the values
                return False
        return any(bool(mask.any()) for mask in masks)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._own[target] if target in self._own else super().get_attr(target, args, kwargs)


def _has_own_elements(result: Any, given: Sequence[torch.Tensor]) -> bool:
    """Whether a result has non-finite elements where no argument has any: it was computed element by element.

    Args:
        result: the result.
        given: where each argument is non-finite.
    """
    if not given:  # they are in lists
        return False
    try:
        return any(bool((~torch.isfinite(part) & ~_any_of(given, part.shape)).any()) for part in plain_parts(result))
    except RuntimeError:  # the shapes do not fit
        return False


def _reaches(given: Sequence[torch.Tensor], result: Any) -> bool:
    """Whether non-finite elements of an argument may be those of a result: at the same places, if it has places alike.

    Args:
        given: where the argument is non-finite.
        result: the result.
    """
    if not given:  # it is a list
        return True
    try:
        return any(bool((~torch.isfinite(part) & _any_of(given, part.shape)).any()) for part in plain_parts(result))
    except RuntimeError:  # the shapes do not fit
        return True


def _may_run_again(n: fx.Node) -> bool:
    """Whether a node is an operation of PyTorch that writes only new memory."""
    if n.op == "call_method":
        return not str(n.target).endswith("_")
    if isinstance(n.target, torch._ops.OperatorBase) and getattr(n.target, "namespace", "") not in ("aten", "prims"):
        return False
    module = getattr(n.target, "__module__", None) or "torch"  # none for functions in C
    name = str(getattr(n.target, "__name__", ""))
    is_in_place = name.endswith("_") or name in ("setitem", "getattr") or n.kwargs.get("inplace") or "out" in n.kwargs
    return n.op == "call_function" and module.startswith(("torch", "_operator")) and not is_in_place


def _filled(number: float, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return torch.nan_to_num(value.detach(), number, number, number)


def _any_of(masks: Sequence[torch.Tensor], shape: torch.Size) -> torch.Tensor:
    return functools.reduce(operator.or_, (mask.expand(shape) for mask in masks))


def sources_of_gradients(run: Callable[[], Any], outputs: Sequence[Any]) -> Sources:
    """Returns the nodes of a backward pass where non-finite gradients begin.

    Args:
        run: runs the pass.
        outputs: the values that it begins with.
    """
    sources = Sources()
    roots = [value.grad_fn for value in outputs if isinstance(value, torch.Tensor)]
    for number, node in enumerate(nodes_of_pass(roots)):
        node.register_hook(_noting(node.name(), number, sources))
    run()
    return sources


def _noting(name: str, number: int, sources: Sources) -> Callable[[Any, Any], None]:
    def note(made: Any, given: Any) -> None:
        kinds = kinds_in(made) & ~kinds_in(given)
        if kinds:
            sources.append((name, number, kinds))

    return note


def kinds_in(value: Any) -> int:
    """Returns the bits of the kinds of non-finite values in a tensor or in several."""
    kinds = 0
    for part in plain_parts(value):
        kinds |= _C.kinds_of(part.detach() if part.requires_grad else part)
    if isinstance(value, list | tuple):
        for item in value:
            kinds |= kinds_in(item)
    return kinds
