"""Replays the call of a compiled region under the session that watches it, and finds where its results came from."""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchnan._load import _C
from torchnan.detection.compiled import random_numbers
from torchnan.detection.compiled.graph import Modules, copy_graph, framed, stack_of, with_tensors
from torchnan.detection.compiled.graph import run as interpret
from torchnan.detection.compiled.stack import Entry, call_under, calling_stack

Tangents = list[tuple[int, torch.Tensor]]  # index among the graph's outputs, and the gradient of that output
_thread_state = threading.local()


def is_running() -> bool:
    """Whether this thread replays a region: regions inside of it are not checked."""
    return getattr(_thread_state, "running", False)


@dataclasses.dataclass(frozen=True)
class Modes:
    """The modes of a thread that change what operations do."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def current(cls) -> Modes:
        """Returns those of this thread."""
        devices = ("cpu", "cuda")
        autocast = tuple((d, torch.get_autocast_dtype(d)) for d in devices if torch.is_autocast_enabled(d))
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Makes them those of this thread for a while."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype))
            yield


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """A call of a region, with all that running it again needs.

    Attributes:
        graph: the graph that Dynamo traced.
        own: names of the graph's own tensors, which come first in ``args``.
        modules: those that nodes were traced in, by their key in ``nn_module_stack``.
        is_random: whether the call drew random numbers.
        args: the graph's own tensors and the arguments.
        before: what arguments held that the call has overwritten, by index in ``args``.
        random_state: of the CPU's generator, before the call.
        modes: of the thread that made the call.
        stack: id of the stack that it was made on.
    """

    graph: torch.fx.GraphModule
    own: list[str]
    modules: Modules
    is_random: bool
    args: tuple[Any, ...]
    before: dict[int, torch.Tensor]
    random_state: torch.Tensor | None
    modes: Modes
    stack: int


def find(call: RecordedCall, bad: list[int], tangents: Tangents | None) -> dict[int, Any]:
    """Finds the provenance of non-finite results of a call.

    The replay runs on a thread of its own: what is on the stack of this one (a backward pass, the compiled code) is no
    part of the program that was compiled. Random numbers, inputs and modes are those of the call.

    Args:
        call: the call.
        bad: indices of the results: of the graph's outputs followed by the arguments it wrote, or of its gradients.
        tangents: gradients of the outputs, if the results are gradients.

    Returns:
        for each index that the replay found non-finite too, its provenance.
    """
    session = _C.current_session()
    callers = calling_stack(_C.stack_frames(call.stack))
    replays: list[Callable[..., dict[int, Any]]] = [_as_traced, _as_lowered, _in_inductors_arithmetic]
    if call.is_random:
        replays.remove(_as_traced)  # other random numbers would be drawn
    found: dict[int, Any] = {}
    for run in replays:
        found = _on_own_thread(session, functools.partial(_under_states, call, run, callers, bad, tangents))
        if found:
            break
    return found


def _on_own_thread(session: Any, run: Callable[[], dict[int, Any]]) -> dict[int, Any]:
    done = threading.Lock()
    done.acquire()
    outcome: list[Any] = [{}, None]

    def body() -> None:
        _thread_state.running = True
        _C.enter_session(session)
        try:
            outcome[0] = run()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that asked
            outcome[1] = error
        finally:
            _C.leave_session(session)
            done.release()

    _thread.start_new_thread(body, ())
    done.acquire()
    if outcome[1] is not None:
        raise outcome[1]
    found: dict[int, Any] = outcome[0]
    return found


def _under_states(call: RecordedCall, run: Callable[..., dict[int, Any]], *how: Any) -> dict[int, Any]:
    with torch.random.fork_rng([]), call.modes.restored():
        if call.random_state is not None:
            torch.set_rng_state(call.random_state)
        return run(call, *how)


def _inputs(call: RecordedCall) -> list[Any]:
    """Returns the region's inputs as they were: leaves of their own, in the same memory where nothing was written."""
    made: list[Any] = []
    for i, value in enumerate(call.args):
        fresh = value
        if isinstance(value, torch.Tensor):
            fresh = call.before[i].clone() if i in call.before else value.detach()
            if value.requires_grad:
                fresh.requires_grad_()
        made.append(fresh)
    return made


def _as_traced(call: RecordedCall, callers: list[Entry], bad: list[int], tangents: Tangents | None) -> dict[int, Any]:
    made, own = _inputs(call), len(call.own)
    module = with_tensors(call.graph, dict(zip(call.own, made, strict=False)))
    args = [
        value.clone() if isinstance(value, torch.Tensor) and value.requires_grad and i in call.before else value
        for i, value in enumerate(made)
    ][own:]  # a leaf cannot be written in place
    outputs = interpret(framed(module, callers, call.modules), *args)
    if tangents is None:
        return _provenances([*_as_list(outputs), *([*made[:own], *args][i] for i in call.before)], bad)
    return _provenances(_gradients(outputs, made, tangents), bad)


def _gradients(outputs: Any, inputs: list[Any], tangents: Tangents) -> list[Any]:
    pairs = [(outputs[i], tangent) for i, tangent in tangents if outputs[i].requires_grad]
    leaves = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.requires_grad]
    roots, weights = [root for root, _ in pairs], [weight for _, weight in pairs]
    made = torch.autograd.grad(roots, [inputs[i] for i in leaves], weights, allow_unused=True)
    gradients: list[Any] = [None] * len(inputs)
    for i, gradient in zip(leaves, made, strict=True):
        gradients[i] = gradient
    return gradients


@dataclasses.dataclass(frozen=True)
class _Lowered:
    """The graph that Inductor gets, forward or backward, its inputs and the state of the generator before it."""

    module: torch.fx.GraphModule
    inputs: list[Any]
    random_state: torch.Tensor


def _lower(call: RecordedCall, tangents: Tangents | None) -> _Lowered:
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    runs: list[_Lowered] = []

    def keep(module: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Any:
        def run(inputs: list[Any]) -> Any:
            copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
            runs.append(_Lowered(module, copies, torch.get_rng_state()))
            return interpret(module, *inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    made = _inputs(call)
    own = len(call.own)
    module = with_tensors(call.graph, dict(zip(call.own, made, strict=False)))
    with config.patch(enable_autograd_cache=False):
        lowered: Any = compile_fx(module, made[own:], inner_compile=keep)
        outputs = lowered(*made[own:])
    if tangents is not None:
        _gradients(outputs, made, tangents)
    return runs[0 if tangents is None else -1]


def _as_lowered(call: RecordedCall, callers: list[Entry], bad: list[int], tangents: Tangents | None) -> dict[int, Any]:
    """Runs the graph that Inductor gets, with the random numbers that generated code draws."""
    lowered = _lower(call, tangents)
    torch.set_rng_state(lowered.random_state)
    module = framed(copy_graph(lowered.module), callers, call.modules)
    with torch.no_grad():
        results = _as_list(interpret(module, *lowered.inputs))
    return _first_for_all(_provenances(results, list(range(len(results)))), bad)


def _in_inductors_arithmetic(
    call: RecordedCall, callers: list[Entry], bad: list[int], tangents: Tangents | None
) -> dict[int, Any]:
    """Lets Inductor compute every node as an output, and runs the first that is non-finite on what it was given.

    For values that are finite when operations run one by one: fused kernels round, and contract, otherwise.
    """
    lowered = _lower(call, tangents)
    graph = copy_graph(lowered.module, keep=("val",)).graph
    module = torch.fx.GraphModule(lowered.module, graph)
    nodes = [n for n in graph.nodes if n.op == "call_function" and isinstance(n.meta.get("val"), torch.Tensor)]
    graph.output_node().args = (tuple(nodes),)
    module.recompile()
    torch.set_rng_state(lowered.random_state)
    with torch.no_grad():
        results = random_numbers.compile_alone(module, lowered.inputs)(list(lowered.inputs))
    values = dict(zip(nodes, results, strict=True))
    values.update(zip((n for n in graph.nodes if n.op == "placeholder"), lowered.inputs, strict=True))
    for node in nodes:
        if torch.ops.torchnan.all_finite(values[node]) or not all(n in values for n in node.all_input_nodes):
            continue
        args, options = torch.fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        with torch.no_grad():
            target: Any = node.target
            run = functools.partial(target, *args, **options)
            result = call_under(stack_of(node, callers, call.modules), run)
        return _first_for_all(_provenances([result], [0]), bad)
    return {}


def _first_for_all(found: dict[int, Any], bad: list[int]) -> dict[int, Any]:
    """Outputs of a lowered graph are in another order, with values for the backward pass among them."""
    return dict.fromkeys(bad, next(iter(found.values()))) if found else {}


def _as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]


def _provenances(values: list[Any], bad: list[int]) -> dict[int, Any]:
    found = {}
    for i in bad:
        value = values[i] if i < len(values) else None
        provenance = _C.provenance_of(value.detach()) if isinstance(value, torch.Tensor) else None
        if provenance is not None:
            found[i] = provenance
    return found
