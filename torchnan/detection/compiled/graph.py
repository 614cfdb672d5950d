"""The graph that Dynamo traced, kept for a replay, and its interpreter."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torchnan._load import _C
from torchnan.detection.compiled import higher_order, random_numbers
from torchnan.detection.compiled.stack import (
    Engine,
    Entry,
    Line,
    Modules,
    call_under,
    joined,
    traced_lines,
)
from torchnan.detection.errors import NonFiniteError
from torchnan.detection.graph_code import module_stack

BACKWARD_NODE = "torchnan_backward_node"  # in the ``meta`` of the nodes of a backward pass
_KEPT_META = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "steal_arg")


def copy_graph(module: fx.GraphModule, keep: tuple[str, ...] = ()) -> fx.GraphModule:
    """Copies a graph; parameters are shared. Inductor changes the graph that it is given.

    Args:
        module: the graph.
        keep: what of the nodes' ``meta`` to keep besides the user's stack and modules. Fake tensors are left out.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    for node, copy in copies.items():
        copy.meta = {key: node.meta[key] for key in (*_KEPT_META, *keep) if key in node.meta}
    copied = fx.GraphModule(module, graph)
    for name, child in module._modules.items():
        if isinstance(child, fx.GraphModule):
            copied._modules[name] = copy_graph(child, keep)
    return copied


def put_numbers(module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Replaces what a graph reads from its inputs with ``item()`` by the numbers: it cannot be lowered otherwise.

    Dynamo passes a ``float`` that has varied among the calls as a tensor.
    """
    for placeholder, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=False):
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() == 1:
            for read in [user for user in placeholder.users if user.op == "call_method" and user.target == "item"]:
                _put_number(read, value.item())
    module.recompile()


def _put_number(read: fx.Node, number: complex) -> None:
    for user in list(read.users):
        user.args, user.kwargs = fx.map_arg((user.args, user.kwargs), lambda one: number if one is read else one)
    read.graph.erase_node(read)


def tensors_of(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Returns the parameters and buffers of a graph by name: a compiled optimizer has its state there."""
    parameters, buffers = module.named_parameters, module.named_buffers
    return {**dict(parameters(remove_duplicate=False)), **dict(buffers(remove_duplicate=False))}


def release_tensors(module: fx.GraphModule) -> None:
    """Removes parameters and buffers from a copy, which its nodes refer to: only the collector would free them."""
    for part in module.modules():
        part._parameters.update(dict.fromkeys(part._parameters))
        part._buffers.update(dict.fromkeys(part._buffers))


def device_of_results(module: fx.GraphModule) -> str:
    """Returns the device of a graph's results, the first one that is not the host; empty if there is none."""
    nodes = as_list(module.graph.output_node().args[0])
    values = (node.meta.get("example_value") for node in nodes if isinstance(node, fx.Node))
    devices = (value.device for value in values if isinstance(value, torch.Tensor) and not value.is_cpu)
    return str(next(devices, ""))


def has_collectives(module: fx.GraphModule) -> bool:
    """Whether running a graph waits for other ranks: a replay on one rank alone would wait forever."""
    graphs = (m.graph for m in module.modules() if isinstance(m, fx.GraphModule))
    return any("c10d" in str(node.target) or _is_distributed(node.target) for graph in graphs for node in graph.nodes)


def _is_distributed(target: Any) -> bool:
    return str(getattr(target, "__module__", "")).startswith("torch.distributed")


def compared_inputs(module: fx.GraphModule, own: Sequence[str]) -> list[int]:
    """Returns the indices of the inputs that comparisons in a graph depend on.

    Args:
        module: the graph.
        own: names of its own tensors, which come before its arguments.
    """
    pending = [node for node in module.graph.nodes if _compares(module, node)]
    reached: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending.extend(node.all_input_nodes)
    return [i for i, nodes in enumerate(_input_nodes(module, own)) if not reached.isdisjoint(nodes)]


def _input_nodes(module: fx.GraphModule, own: Sequence[str]) -> list[list[fx.Node]]:
    """Returns the nodes of each input: those of the graph's own tensors come before its arguments."""
    tensors: dict[str, list[fx.Node]] = {name: [] for name in own}
    for node in module.graph.nodes:
        if node.op == "get_attr" and node.target in tensors:
            tensors[node.target].append(node)
    return [*tensors.values(), *([node] for node in module.graph.nodes if node.op == "placeholder")]


def _compares(module: fx.GraphModule, node: fx.Node) -> bool:
    inside = (inner for body in _bodies(module, node) for inner in body.graph.nodes if _compares(body, inner))
    return _C.is_comparison(_operator_name(node)) or next(inside, None) is not None


def unread_inputs(module: fx.GraphModule, own: Sequence[str], overwritten: Sequence[int]) -> list[int]:
    """Returns the indices of overwritten inputs on whose previous values no other result of a graph depends.

    They are the running statistics of batch norms in training, and counters.

    Args:
        module: the graph.
        own: names of its own tensors, which come before its arguments.
        overwritten: the indices of the inputs that a call overwrites.
    """
    inputs = dict(enumerate(_input_nodes(module, own)))  # fewer than a call has if one of them is a list
    uses = {i: [(user, node) for node in inputs.get(i, ()) for user in node.users] for i in overwritten}
    return [i for i in overwritten if uses[i] and all(_only_updates(user, node) for user, node in uses[i])]


def _only_updates(user: fx.Node, node: fx.Node) -> bool:
    """Whether a user of an input overwrites it, and its result does not depend on it."""
    given: dict[Any, Any] = {**dict(enumerate(user.args)), **user.kwargs}
    places = {place for place, value in given.items() if value is node}
    if user.op == "call_method" and user.target == "add_":
        return places == {0} and not user.users
    is_training = given.get("training", given.get(5)) is True
    is_batch_norm = user.target is torch.nn.functional.batch_norm
    return is_batch_norm and is_training and places <= {1, 2, "running_mean", "running_var"}


def unwritten_outputs(module: fx.GraphModule) -> dict[int, fx.Node]:
    """Returns the outputs of a graph that are memory which it allocates and neither writes nor reads."""
    output = module.graph.output_node()
    nodes = as_list(output.args[0])
    alone = {n for n in nodes if isinstance(n, fx.Node) and list(n.users) == [output] and allocates(n)}
    return {i: node for i, node in enumerate(nodes) if node in alone}


def allocates(node: fx.Node) -> bool:
    """Whether a node returns uninitialized memory."""
    return _C.allocates(_operator_name(node))


def allocator_of(node: fx.Node) -> str:
    """Returns the operator of a node that :func:`allocates`."""
    return f"aten::{_operator_name(node)}"


def _operator_name(node: fx.Node) -> str:
    if node.op not in ("call_function", "call_method"):
        return ""
    name = node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))
    return name.partition(".")[0].strip("_")


def run(module: fx.GraphModule, *inputs: Any) -> Any:
    """Runs a graph, releasing each value after its last use; an error keeps its original text."""
    interpreter = fx.Interpreter(module)
    interpreter.extra_traceback = False
    return interpreter.run(*inputs)


def values_before_error(module: fx.GraphModule, *inputs: Any) -> list[Any]:
    """Runs a graph until an operation raises an error; returns the values that exist then, none without an error."""
    interpreter = fx.Interpreter(module)
    interpreter.extra_traceback = False
    try:
        interpreter.run(*inputs)
    except NonFiniteError:
        raise
    except Exception:  # noqa: BLE001 - as expected
        return list(interpreter.env.values())
    return []


def as_list(results: Any) -> list[Any]:
    """Returns what a graph returned as a list: it may be one value, or several in a list or tuple."""
    return list(results) if isinstance(results, list | tuple) else [results]


def plain_parts(value: Any) -> list[torch.Tensor]:
    """Returns the plain tensors that a value consists of: a wrapper subclass has them inside."""
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        return [plain for name in names for plain in plain_parts(getattr(value, name))]
    return [value] if isinstance(value, torch.Tensor) else []


class Framing:
    """Changes copies of graphs for one replay: they get its tensors, and each operation runs on the stack of the user's
    program. At the end of the block, they release both.

    Args:
        unwritten_is_nan: whether memory that nobody has written is to hold NaN: it may, as it may anything else.
    """

    def __init__(self, unwritten_is_nan: bool = False) -> None:
        self._unwritten_is_nan = unwritten_is_nan
        self._made: list[fx.GraphModule] = []
        self._calls: list[_FramedCall] = []

    def copy(self, module: fx.GraphModule, tensors: dict[str, torch.Tensor] | None = None) -> fx.GraphModule:
        """Returns a copy of a graph that may be changed. These tensors replace its own."""
        made = copy_graph(module)
        self._made.append(made)
        for name, tensor in (tensors or {}).items():
            path, _, leaf = name.rpartition(".")
            owner = made.get_submodule(path)
            for held in (owner._parameters, owner.__dict__):  # in the latter without a tensor: see release_tensors()
                held.pop(leaf, None)
            owner._buffers[leaf] = tensor  # without the hooks of the program on registrations
        return made

    def __enter__(self) -> Framing:
        return self

    def __exit__(self, *raised: object) -> None:
        for made in self._made:
            release_tensors(made)
        for call in self._calls:
            call.release()

    def frame(
        self, module: fx.GraphModule, callers: list[Entry], modules: Modules, outside: Sequence[Line] = ()
    ) -> fx.GraphModule:
        """Changes a copy so that its operations run on the stack of the user's program, whoever runs it.

        Args:
            module: the copy, with the bodies of its higher-order operators.
            callers: the stack on which the region was called, outermost first.
            modules: those that nodes run in, by their key in ``nn_module_stack``.
            outside: lines that lead to where the graph is called, which it is not to show again.
        """
        inside = set()  # bodies that run on the stack of their node, or where the engine calls them
        for node in module.graph.nodes:
            is_unwritten = self._unwritten_is_nan and allocates(node)
            if node.op == "call_method":
                node.op, node.target = "call_function", _method(node.target)
            if node.op != "call_function":
                continue
            bodies = _bodies(module, node)
            if higher_order.is_function(node) or higher_order.is_hook(node):
                inside.update(bodies)
                for body in bodies:
                    self.frame(body, [], {}, traced_lines(node))
            if higher_order.is_function(node):
                node.target = higher_order.applied(node, bodies, run)
            elif higher_order.is_nested_region(node) and bodies:
                (body,) = bodies
                inside.add(body)
                parts = higher_order.modules_in_call(node, body, modules)
                lines = higher_order.lines_of_call(node, body)
                node.target = higher_order.inlined(self.frame(self.copy(body), [], parts, lines))
            elif bodies and not _computes_itself(node):
                continue
            if node.target in random_numbers.REPLACED:
                node.target = random_numbers.replaced(node.target)
            else:
                if is_unwritten:
                    node.target = _filled(node.target)
                self._calls.append(_FramedCall(stack_of(node, callers, modules, outside), node.target))
                node.target = self._calls[-1]
        for child in module.children():
            if isinstance(child, fx.GraphModule) and child not in inside:
                self.frame(child, callers, modules, outside)
        module.forward = functools.partial(run, module)
        type(module).__call__ = _call_graph  # type: ignore[method-assign]  # each GraphModule has a class to itself
        return module


def _call_graph(module: fx.GraphModule, *args: Any) -> Any:
    """Calls the graph of a branch or a loop; through ``nn.Module.__call__`` it would count as a module of the user."""
    return module.forward(*args)


def _method(name: str) -> Callable[..., Any]:
    def call_method(owner: Any, *args: Any, **options: Any) -> Any:
        return getattr(owner, name)(*args, **options)

    return call_method


def _filled(allocate: Callable[..., Any]) -> Callable[..., Any]:
    def allocate_filled(*args: Any, **options: Any) -> Any:
        made = allocate(*args, **options)
        if isinstance(made, torch.Tensor) and made.is_cpu and (made.is_floating_point() or made.is_complex()):
            storage = made.untyped_storage()  # without an operation, so that it still counts as uninitialized
            ctypes.memset(storage.data_ptr(), 0xFF, storage.nbytes())
        return made

    return allocate_filled


class _FramedCall:
    """Calls what a node of a graph calls, on a stack of the user's program."""

    def __init__(self, stack: list[Entry], target: Any) -> None:
        self._stack, self._target = stack, target
        self.__name__ = str(getattr(target, "__name__", target))  # a node's target has one

    def __call__(self, *args: Any, **options: Any) -> Any:
        return call_under(self._stack, functools.partial(self._target, *args, **options))

    def release(self) -> None:
        self._stack, self._target = [], None


def _bodies(module: fx.GraphModule, node: fx.Node) -> list[fx.GraphModule]:
    """Returns the inner graphs of a higher-order operator: operations in them carry the whole stack themselves."""
    given = (getattr(module, str(n.target), None) for n in node.all_input_nodes if n.op == "get_attr")
    return [body for body in given if isinstance(body, fx.GraphModule)]


def _computes_itself(node: fx.Node) -> bool:
    """Whether it is a higher-order operator that runs operations around its inner graphs."""
    return str(node.target).startswith("flex_attention")


def stack_of(node: fx.Node, callers: list[Entry], modules: Modules, outside: Sequence[Line] = ()) -> list[Entry]:
    """Returns the stack of a node's operation, as it would be in an uncompiled program; outermost first."""
    if (inside_node := node.meta.get(BACKWARD_NODE)) is not None:
        return [*callers, Engine(), inside_node]
    node = _of_program(node)
    traced = traced_lines(node)
    if outside and traced[: len(outside)] == list(outside):
        traced = traced[len(outside) :]
    inside = [modules[key] for key in module_stack(node) if key in modules]
    joint = joined(callers, traced)
    length = len(joint) - len(traced)
    return [*joint[:length], *inside, *joint[length:]]


def _of_program(node: fx.Node) -> fx.Node:
    """Returns the node, or the first after it that has lines of the program: those of Inductor's patterns have none."""
    one = node
    while not traced_lines(one) and one.users:
        one = next(iter(one.users))
    return one if traced_lines(one) else node
