"""The graphs of AOTInductor packages that were made while detection was on, found again by the contents of a
package."""

from __future__ import annotations

import dataclasses
import os
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from torchnan.detection.compiled.called_modules import TracedModule
from torchnan.detection.compiled.graph import copy_graph

_Identity = tuple[str, int]  # name and checksum of the shared library in a package

_made: dict[_Identity, PackagedGraph] = {}


class _Exported(torch.nn.Module):
    """A stand-in for an exported module: only the names of its parts are known."""


@dataclasses.dataclass(frozen=True)
class PackagedGraph:
    """The sources of a package.

    Attributes:
        graph: the graph that was exported; its arguments are its weights and then the tensors of a call.
        weights: its parameters, buffers and constants while they are alive, and their versions.
        overwritten: indices of the arguments that it overwrites.
        modules: those that nodes were traced in, by their key in ``nn_module_stack``.
        root: holds these modules.
    """

    graph: fx.GraphModule
    weights: list[tuple[weakref.ref[torch.Tensor], int]]
    overwritten: list[int]
    modules: dict[str, TracedModule]
    root: torch.nn.Module

    def keeps_state(self) -> bool:
        """Whether it overwrites its own buffers, whose current contents only the package has."""
        return any(i < len(self.weights) for i in self.overwritten)

    def alive_weights(self) -> list[torch.Tensor] | None:
        """Returns the weights if they are unchanged since the package was made."""
        alive = [weight() for weight, _ in self.weights]
        found = [weight for weight in alive if weight is not None]
        versions = [version for _, version in self.weights]
        return found if [_version(weight) for weight in found] == versions else None


def remember(files: list[Any], graph: PackagedGraph) -> None:
    """Records the sources of a package.

    Args:
        files: the files that Inductor made for it.
        graph: its sources.
    """
    libraries = [file for file in files if isinstance(file, str) and file.endswith(".so")]
    if len(libraries) == 1:
        _made[_identity_of(libraries[0])] = graph


def find(path: str, model: str) -> PackagedGraph | None:
    """Returns the sources of a model in a package; ``None`` if it was not made in this process under detection."""
    if not _made or not os.path.isfile(path):
        return None
    with zipfile.ZipFile(path) as package:
        for file in package.infolist():
            if f"/aotinductor/{model}/" in file.filename and file.filename.endswith(".so"):
                return _made.get((os.path.basename(file.filename), file.CRC))
    return None


def _identity_of(library: str) -> _Identity:
    checksum = 0
    with open(library, "rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return os.path.basename(library), checksum


def _version(weight: torch.Tensor) -> int:
    return -1 if weight.is_inference() else weight._version


def graph_of(exported: fx.GraphModule) -> PackagedGraph | None:
    """Keeps the graph of an exported program; ``None`` where it computes with more than tensors."""
    copied = copy_graph(exported, keep=("val",))
    graph = copied.graph
    if hasattr(copied, "_guards_fn"):  # checks of the arguments
        for node in graph.find_nodes(op="call_module", target="_guards_fn"):
            graph.erase_node(node)
    weights = _lift_weights(copied)
    for node in graph.find_nodes(op="placeholder"):
        if not isinstance(node.meta.get("val"), torch.Tensor) and node not in weights:
            if node.users:
                return None  # a package gets only tensors
            graph.erase_node(node)
    arguments = graph.find_nodes(op="placeholder")
    overwritten = _overwritten(graph)
    for node in graph.nodes:
        node.meta.pop("val", None)
    root = _Exported()
    return PackagedGraph(
        fx.GraphModule(copied, graph),
        [(weakref.ref(weight), _version(weight)) for weight in weights.values()],
        [i for i, node in enumerate(arguments) if node in overwritten],
        dict(_modules_of(graph, root)),
        root,
    )


def _lift_weights(module: fx.GraphModule) -> dict[fx.Node, torch.Tensor]:
    """Makes the graph's own tensors its first arguments, so that they are not kept alive."""
    weights = {}
    before = next(node for node in module.graph.nodes if node.op != "get_attr")
    for node in module.graph.find_nodes(op="get_attr"):
        value: Any = module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if isinstance(value, torch.Tensor):
            with module.graph.inserting_before(before):
                argument = module.graph.placeholder(node.name)
            node.replace_all_uses_with(argument)
            module.graph.erase_node(node)
            weights[argument] = value
    return weights


def _overwritten(graph: fx.Graph) -> set[fx.Node]:
    """Returns the arguments of a graph that its operations overwrite, directly or through a view."""
    overwritten: set[fx.Node] = set()
    bases: dict[fx.Node, set[fx.Node]] = {}  # the arguments that a value may share memory with
    for node in graph.nodes:
        bases[node] = {node} if node.op == "placeholder" else set()
        for value, is_written in _aliased(node):
            bases[node] |= bases[value]
            if is_written:
                overwritten |= bases[value]
    return overwritten


def _aliased(node: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    """Yields the values that a result may share memory with, and whether they are written."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        yield from ((value, False) for value in node.all_input_nodes)
        return
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
    for argument in schema.arguments:
        if argument.alias_info is None:
            continue
        values = given.get(argument.name)
        for value in values if isinstance(values, list | tuple) else [values]:
            if isinstance(value, fx.Node):
                yield value, argument.alias_info.is_write


def _modules_of(graph: fx.Graph, root: torch.nn.Module) -> Iterator[tuple[str, TracedModule]]:
    stacks = (node.meta.get("nn_module_stack") or {} for node in graph.nodes)
    paths = {key: str(path) for stack in stacks for key, (path, _) in stack.items()}
    for key, path in paths.items():
        module = root
        for name in filter(None, path.split(".")):
            module = module._modules.setdefault(name, _Exported()) or root
        yield key, TracedModule(weakref.ref(module), _Exported, ())
