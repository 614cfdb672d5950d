"""Takes part in ``torch.compile``: wraps Inductor's result for a graph in a :class:`region.Region`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from torchnan._load import _C
from torchnan.detection import graph_code
from torchnan.detection.containment import contained

if TYPE_CHECKING:
    from torchnan.detection.compiled.stack import Line


def recording(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the call of Inductor so that each graph is kept before Inductor changes it."""
    return _recording(compile_graph, lambda compiled: True)


def recording_other(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the call of another backend, which may let Inductor compile the graph."""
    return _recording(compile_graph, is_code_of_inductor)


def _recording(compile_graph: Callable[..., Any], is_region: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(compile_graph)
    def compile_and_keep(self: Any, model_: Any, inputs_: Any, *args: Any, **options: Any) -> Any:
        region_of = None
        with contained("storing the graph of a compiled region"):
            from torchnan.detection.compiled import called_modules, torch_internals

            graph_code.remember_names(torch_internals.traced_code())
            if isinstance(model_, torch.fx.GraphModule) and not _C.is_replaying():
                site = torch_internals.site_of_traced_function()
                region_of = kept(model_, site, len(tree_leaves(inputs_)), called_modules.names_of_arguments(model_))
        compiled = compile_graph(self, model_, inputs_, *args, **options)
        if region_of is None or not isinstance(compiled, types.FunctionType):  # AOTInductor returns a file
            return compiled
        with contained("storing the graph of a compiled region"):
            if is_region(compiled):
                return region_of(compiled)
        return compiled

    return compile_and_keep


def kept(
    model: torch.fx.GraphModule, site: Line, arguments: int, names: Sequence[str]
) -> Callable[[types.FunctionType], Any]:
    """Keeps a graph, and returns what makes a checked function of the one that Inductor compiles of it.

    Args:
        model: the graph, as Dynamo has traced it.
        site: the function that Dynamo has compiled.
        arguments: the number of the graph's arguments.
        names: Dynamo's names for them; empty if they are unknown.
    """
    from torchnan.detection.compiled import called_modules, compiled_autograd, graph, stack

    copy = graph.copy_graph(model)
    is_backward_pass = compiled_autograd.is_pass(site.file)
    if is_backward_pass:
        compiled_autograd.keep_modules(copy, site.file)
    site = stack.site_of(copy, site, is_backward_pass)
    sources = called_modules.sources_among(names), called_modules.gradient_of_optimizer(names)
    device = graph.device_of_results(model)
    graph.release_tensors(copy)
    return functools.partial(_checked, copy, graph.tensors_of(model), sources, device, site, arguments)


def is_code_of_inductor(compiled: types.FunctionType) -> bool:
    """Whether Inductor has generated code for what a function runs, and no region around it checks that."""
    from torchnan.detection.compiled import torch_internals
    from torchnan.detection.compiled.region import Region

    return bool(torch_internals.compiled_graphs(compiled)) and not torch_internals.found_behind(compiled, Region)


def _checked(
    graph: Any,
    tensors: dict[str, torch.Tensor],
    sources: tuple[list[Any], Any],
    device: str,
    site: Any,
    arguments: int,
    compiled: types.FunctionType,
) -> Any:
    from torchnan.detection.compiled import called_modules, torch_internals
    from torchnan.detection.compiled.region import Region
    from torchnan.detection.compiled.replay import Traced

    overwritten = torch_internals.overwritten_inputs(compiled, len(tensors) + arguments)
    weights, gradient = sources
    modules = called_modules.modules_of(graph)
    traced = Traced(graph, tensors, modules, overwritten, weights=weights, optimizer_gradient=gradient, device=device)
    call = Region(traced, torch_internals.undisabled(compiled), site).checked()
    public = {name: value for name, value in vars(compiled).items() if not name.startswith("_")}
    call.__dict__.update(public)
    return call
