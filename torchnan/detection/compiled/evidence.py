"""Distinguishes calls of a region with non-finite results by the nodes of the traced graph where the values begin."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import fx

from torchnan._load import _C
from torchnan.detection.compiled.compiled_autograd import nodes_of_pass
from torchnan.detection.compiled.graph import as_list, copy_graph, plain_parts
from torchnan.detection.compiled.torch_internals import is_transform

# Nodes that made a kind which none of their arguments had: name and kinds. The same and True: only at other elements.
Sources = list[Hashable]


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

    def run(self, inputs: Sequence[Any], passed: Sequence[Any]) -> tuple[list[Any], Sources]:
        """Returns the outputs and where non-finite values begin.

        Args:
            inputs: the graph's own tensors, and arguments.
            passed: the arguments as the graph takes them.
        """
        self._thread.sources = sources = Sources()
        self._thread.own = dict(zip(self._own, inputs, strict=False))
        return as_list(self._run(self._graph, *passed)), sources

    def _runner_of(self, body: fx.GraphModule) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            return self._run(body, *args)

        return run

    def _run(self, module: fx.GraphModule, *args: Any) -> Any:
        return _Interpreter(module, self._thread.own, self._thread.sources).run(*args)


class _Interpreter(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, own: dict[str, torch.Tensor], sources: Sources) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._own, self._sources = own, sources
        self._kinds: dict[fx.Node, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        bad = [argument for argument in n.all_input_nodes if argument in self._kinds]
        parts = [part for argument in bad for part in plain_parts(self.env[argument])]
        masks = [~torch.isfinite(part) for part in parts]  # before the node may overwrite them
        result = super().run_node(n)
        kinds = kinds_in(result)
        if kinds:
            given = functools.reduce(operator.or_, (self._kinds[argument] for argument in bad), 0)
            if n.op.startswith("call") and kinds & ~given:
                self._sources.append((n.name, kinds & ~given))
            elif n.op.startswith("call") and _has_own_elements(result, masks):
                self._sources.append((n.name, kinds, True))
            self._kinds[n] = kinds
        return result

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
