"""Replays the call of a compiled region under its session, and finds the origin of its results."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

import torch

from torchnan._load import _C
from torchnan.config.text import printable
from torchnan.detection.apart import in_modes, without_warnings
from torchnan.detection.compiled import compiled_autograd, kernels, random_numbers, time_limit, torch_internals
from torchnan.detection.compiled.called_modules import (
    Gradient,
    Path,
    Source,
    TracedModule,
    arguments_of,
    modules_of_call,
)
from torchnan.detection.compiled.explanations import Signature
from torchnan.detection.compiled.graph import (
    Framing,
    allocates,
    as_list,
    copy_graph,
    plain_parts,
    put_numbers,
    stack_of,
    values_before_error,
)
from torchnan.detection.compiled.graph import run as interpret
from torchnan.detection.compiled.probe import NEGINF, Probe, Reached, Sources, kinds_in, sources_of_gradients
from torchnan.detection.compiled.received import AsReceived, Received, as_received, is_functional_collective
from torchnan.detection.compiled.stack import Entry, Line, Modules, call_under, calling_stack
from torchnan.detection.containment import describe
from torchnan.detection.errors import NonFiniteError

T = TypeVar("T")
Tangents = list[tuple[int, torch.Tensor]]  # index among the graph's outputs, and the gradient of that output


@dataclasses.dataclass(frozen=True)
class Traced:
    """The sources of a region.

    Attributes:
        graph: a copy of the graph, see :func:`graph.copy_graph`.
        tensors: the graph's own parameters and buffers by name.
        modules: those in which nodes were traced, by their key in ``nn_module_stack``.
        overwritten: indices of the inputs that a call overwrites, its own tensors first; ``None`` if unknown.
        has_kernels: whether the kernels of the generated code can be observed.
        weights: the parameters and buffers among the arguments, as far as their sources are known.
        optimizer_gradient: one of the gradients of an optimizer step; ``None`` if it is not such a step.
        device: of its results, if that is not the host; else empty.
    """

    graph: torch.fx.GraphModule
    tensors: dict[str, torch.Tensor]
    modules: dict[str, TracedModule]
    overwritten: list[int] | None
    has_kernels: bool = True
    weights: Sequence[Source] = ()
    optimizer_gradient: Gradient | None = None
    device: str = ""


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """A call of a region, with everything that is needed to run it again.

    Attributes:
        made: what the core has recorded of it.
        args: the graph's own tensors and the arguments; copies of those that the call has overwritten.
        border: of the region. It knows whether calls draw random numbers.
        traced: the sources of the region.
        compiled: runs the region; ``None`` if its kernels cannot be observed.
        probe: of the graph.
        stream: of the device that it ran on; ``None`` on the host.
        region: the function that was compiled.
    """

    made: Any
    args: list[Any]
    border: Any
    traced: Traced
    compiled: Callable[..., Any] | None
    probe: Probe
    stream: torch.Stream | None
    region: Line

    @property
    def weights(self) -> list[tuple[Path, int]]:
        """The ids of the parameters and buffers that it was given, with their paths in the compiled function."""
        ids = self.made.ids[len(self.traced.tensors) :]
        return [(source.path, ids[source.argument]) for source in self.traced.weights]


@dataclasses.dataclass
class ReplayResult:
    """The result of a replay.

    Attributes:
        found: by index, the provenance of each result that was non-finite in the replay, too.
        kernels: the kernels of the generated code that wrote non-finite values.
        obstacle: why not all were found, if they were not.
    """

    found: dict[int, Any]
    kernels: kernels.Kernels
    obstacle: str


def find(
    call: RecordedCall,
    bad: dict[int, int],
    values: Sequence[Any],
    tangents: Tangents | None,
    signature: Signature,
    obstacle: str,
) -> ReplayResult:
    """Finds the provenance of non-finite results of a call.

    The replay runs apart from the program, see :func:`apart`: the stack of this thread (a backward pass, the compiled
    code) does not belong to the compiled program. Random numbers, inputs and modes are those of the call.

    Args:
        call: the call.
        bad: the bits of the kinds of the non-finite results, by index.
        values: the graph's outputs followed by the arguments it wrote, ``None`` for one that does not exist any more;
            empty if the results are gradients.
        tangents: gradients of the outputs, if the results are gradients.
        signature: of the call.
        obstacle: why the call is not replayed: then only its kernels are looked for. Empty if it is.
    """
    if obstacle:
        return ReplayResult({}, signature.kernels or _observed_kernels(call, tangents), obstacle)
    # no variable: a frame that refers to itself is garbage
    one = _in_session(call, sys._getframe() if tangents is None else None, bad, tangents, values)
    return apart(functools.partial(one.run, signature))


def find_saved(call: RecordedCall, saved: list[torch.Tensor]) -> list[tuple[torch.Tensor, Any]]:
    """Finds the provenance of values that a call has kept for its backward pass.

    Args:
        call: the call.
        saved: non-finite values, of which the call may have kept some.

    Returns:
        Those that it has kept, and their provenances.
    """
    return apart(functools.partial(_in_session(call, None).find_saved, saved))


def find_before_error(call: RecordedCall) -> list[torch.Tensor]:
    """Finds the provenance of the non-finite values that existed when an operation raised the error of a call.

    Returns:
        These values.
    """
    return apart(_in_session(call, sys._getframe()).before_error)


def appearance(call: RecordedCall, tangents: Tangents | None) -> tuple[Hashable, Hashable]:
    """Returns what is known of a call, or of its backward pass, before it runs: which modules or weights it was called
    with, and the rest.

    Args:
        call: the call.
        tangents: as for :func:`find`.
    """
    given = tuple(kinds_in(value) for value in (*call.args, *(tangent for _, tangent in tangents or ())))
    ids = [weight for _, weight in call.weights]
    if call.traced.modules and tangents is None:
        ids += [id(module) for _, module in arguments_of(sys._getframe(), call.region)]
    return tuple(ids), (tangents is None, call.made.stack, given)


def signature(call: RecordedCall, tangents: Tangents | None) -> Signature:
    """Finds the signature of a call, for little more than an eager run.

    Args:
        call: the call.
        tangents: as for :func:`find`.
    """
    return apart(_Replay(call, tangents).signature)


def _observed_kernels(call: RecordedCall, tangents: Tangents | None) -> kernels.Kernels:
    """Returns the kernels of the generated code where the non-finite values of a call, or of its gradients, began."""
    return apart(_Replay(call, tangents).observed_kernels)


def _in_session(
    call: RecordedCall,
    frame: FrameType | None,
    bad: dict[int, int] | None = None,
    tangents: Tangents | None = None,
    values: Sequence[Any] = (),
) -> _Replay:
    """Returns a replay that the current session watches. ``frame`` leads to the call, if it still runs."""
    made = call.made
    callers = calling_stack(_C.stack_frames(made.stack), made.is_inside_node, is_backward_pass=made.boxed > 0)
    stack_of_pass = 0 if tangents is None else made.stack_of_pass or _C.current_stack()
    passing = calling_stack(_C.stack_frames(stack_of_pass)) if stack_of_pass else []
    modules = modules_of_call(call.traced.modules, call.weights, callers, call.region, frame)
    return _Replay(call, tangents, bad, values, _C.current_session(), callers, passing, modules)


def apart(run: Callable[[], T]) -> T:
    """Runs a function on this thread without anything that the program has set there: modes, hooks, autocast, sessions,
    profilers, the functions that call it, generators, warnings. The thread has its locks, and settings of the compiler,
    still."""

    def body() -> T:
        with without_warnings(), torch_internals.without_dynamo():
            return run()

    return contextvars.copy_context().run(_C.run_apart, body, False)


def pattern_of(results: Sequence[Any], arguments: Sequence[Any]) -> Hashable:
    """Returns what tells where results are non-finite, and the boolean arguments; ``None`` if one is so everywhere."""

    def parts() -> list[torch.Tensor] | None:
        finite = [torch.isfinite(part.detach()) for result in results for part in plain_parts(result)]
        if not all(part.any() for part in finite):
            return None
        return finite + [one for one in arguments if isinstance(one, torch.Tensor) and one.dtype == torch.bool]

    compared = apart(parts)
    return None if compared is None else tuple((part.shape, hash(part.cpu().numpy().tobytes())) for part in compared)


@dataclasses.dataclass(frozen=True)
class _Lowered:
    """The graph that Inductor gets, forward or backward, its inputs and the states of generators before it.

    ``received`` is what its collectives bring. ``seed_counts`` are those of the forward pass.

    Inputs are those of the call, whose origins and names are known; overwritten inputs are copies.
    """

    module: torch.fx.GraphModule
    inputs: list[Any]
    written: list[bool]
    random_states: random_numbers.States
    received: Received | None
    seed_counts: random_numbers.SeedCounts = dataclasses.field(default_factory=dict)

    def arguments(self) -> list[Any]:
        return [value.clone() if new else value for value, new in zip(self.inputs, self.written, strict=True)]


class _Replay:
    def __init__(
        self,
        call: RecordedCall,
        tangents: Tangents | None,
        bad: dict[int, int] | None = None,
        values: Sequence[Any] = (),
        session: Any = None,
        callers: list[Entry] | None = None,
        passing: list[Entry] | None = None,
        modules: Modules | None = None,
    ) -> None:
        self.call, self.tangents, self.session = call, tangents, session
        self.bad, self.values = bad or {}, values
        self.callers = callers or []  # the stack of the call
        self.passing = passing or []  # that of the backward pass, on which its results were found bad
        self.modules = modules or {}
        self.is_beside_mask = False  # a result has non-finite elements that the mask in it does not explain
        self.roots = compiled_autograd.roots_of_pass() if call.made.boxed else []
        self._way, self._bad_kernels = "traced", kernels.Kernels()
        self._lowered_once: _Lowered | None = None

    def signature(self) -> Signature:
        """Returns where non-finite values begin when the graph runs as traced; otherwise in which kernels."""
        sources: Sources = []
        reached: Reached = ()
        with contextlib.suppress(Exception), torch._C.DisableTorchFunction(), self._states():
            made = self._inputs()
            args = self._writable(made)
            drawing = self._drawing()
            needs_graph = self.tangents is not None or self.call.probe.has_transforms
            with as_received(self.call.made.received):
                with drawing, torch.set_grad_enabled(needs_graph and torch.is_grad_enabled()):
                    inputs = [*made[: len(self.call.traced.tensors)], *args]
                    outputs, sources, reached = self.call.probe.run(
                        inputs, self._passed(args), bool(self.call.border.is_random)
                    )
                if self.tangents is not None:
                    reached = ()
                    run = functools.partial(_gradients, outputs, made, self.tangents)
                    sources += sources_of_gradients(run, outputs)
            if sources:
                return Signature(tuple(sources), reached, [])
        found = self.observed_kernels()
        return Signature(tuple(found), (), found)

    def observed_kernels(self) -> kernels.Kernels:
        """Returns the kernels where non-finite values began; none if they cannot be observed."""
        with contextlib.suppress(Exception), self._states():
            return self._kernels()
        return []

    def run(self, signature: Signature) -> ReplayResult:
        """Finds the provenance of the bad results."""
        self._bad_kernels = self.observed_kernels()
        outcome = ReplayResult({}, self._bad_kernels, "")
        ways: list[tuple[str, Callable[[], dict[int, Any]]]] = [
            ("traced", self._as_traced),
            ("traced", self._with_nan_in_unwritten_memory),
            ("lowered", self._as_lowered),
            ("fused", self._in_inductors_arithmetic),
        ]
        errors = []
        bad = self.bad
        for name, way in ways:
            self.bad = {i: kinds for i, kinds in bad.items() if i not in outcome.found}
            self._way = name
            try:
                with self._states():
                    outcome.found.update(way())
            except NonFiniteError:
                raise
            except Exception as error:  # noqa: BLE001 - the next way may succeed
                errors.append(printable(describe(error), 200))
            has_accident = any(not provenance.is_intentional for provenance in outcome.found.values())
            missing = [i for i in bad if i not in outcome.found]
            if not missing or (has_accident and not any(signature.is_finite(i) for i in missing)):
                break
        if len(outcome.found) == len(bad):
            return outcome
        outcome.obstacle = f"its replay failed: {errors[0]}" if errors else "its replay gave finite values"
        if self.tangents is not None and self.call.made.modes.packs_saved:
            outcome.obstacle += ", and calls no hook that packs or unpacks saved tensors"
        return outcome

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Makes the session see the operations inside as a part of the region."""
        region = self.call.region
        place = (region.function, region.file, region.line)
        is_backward, replays_gradients = self.call.made.boxed > 0, self.tangents is not None
        _C.begin_replay(*place, self._way, self._bad_kernels, is_backward, replays_gradients, self.call.made.step)
        _C.enter_session(self.session)
        self.call.made.enter_node()
        try:
            yield
        finally:
            _C.leave_session(self.session)
            _C.end_replay()

    @contextlib.contextmanager
    def _states(self) -> Iterator[None]:
        """Gives this thread the random numbers and modes of the call for a while."""
        time_limit.check()
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch_internals.without_open_transforms())
            stack.enter_context(in_modes(self.call.made.modes, cache_enabled=False))
            if self.call.stream is not None:
                stack.enter_context(_on_stream(self.call.stream))
                # The engine's thread of the device may wait for this replay. inference_mode() resets this.
                stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            if self.call.made.random_states:
                random_numbers.set_states(self.call.made.random_states)
            else:  # a branch that draws, and that no call has taken before
                devices = ["cpu"] if self.call.stream is None else ["cpu", str(self.call.stream.device)]
                note_drawn = functools.partial(setattr, self.call.border, "is_random", True)
                stack.enter_context(random_numbers.noting_draws(devices, note_drawn))
            yield

    def _drawing(self) -> contextlib.AbstractContextManager[None]:
        """Makes operations draw the random numbers of the call, and raises an error if they have drawn others."""
        if not self.call.border.is_random:
            return contextlib.nullcontext()
        is_on_device = any(device != "cpu" for device in self.call.made.random_states)
        counts = self._lowered().seed_counts if is_on_device else {}
        random_numbers.set_states(self.call.made.random_states)  # lowering has drawn, too
        return random_numbers.drawing_as_generated(counts, self.call.made.device_random_states_after)

    def _inputs(self) -> list[Any]:
        """Returns the inputs in their previous state: new leaves, in the same memory if it was not written."""
        made: list[Any] = []
        for i, value in enumerate(self.call.args):
            fresh = value
            if isinstance(value, torch.Tensor):
                fresh = value.detach()
                if i in self.call.made.copied_indices:
                    fresh = _clone(fresh)
                if value.requires_grad and (torch.is_inference_mode_enabled() or not fresh.is_inference()):
                    fresh.requires_grad_()
            made.append(fresh)
        return made

    def _writable(self, made: list[Any]) -> list[Any]:
        """Returns the arguments; written ones are not leaves, because a leaf cannot be written in place."""
        return [
            _clone(value)
            if isinstance(value, torch.Tensor) and value.requires_grad and i in self.call.made.copied_indices
            else value
            for i, value in enumerate(made)
        ][len(self.call.traced.tensors) :]

    def _prepared(self, framing: Framing) -> tuple[torch.fx.GraphModule, list[Any], list[Any], list[Any]]:
        """Returns a copy of the graph, its inputs, the arguments among them, and these as passed."""
        made = self._inputs()
        module = framing.copy(self.call.traced.graph, dict(zip(self.call.traced.tensors, made, strict=False)))
        args = self._writable(made)
        return module, made, args, self._passed(args)

    def _passed(self, args: list[Any]) -> list[Any]:
        boxed = self.call.made.boxed
        return [args[:boxed], *args[boxed:]] if boxed else args

    def _kernels(self) -> kernels.Kernels:
        """Runs the generated code on the inputs of the call."""
        if self.call.compiled is None:
            return []
        made = self._inputs()
        with kernels.recorded(self.tangents is not None) as found, as_received(self.call.made.received):
            # the region itself would overwrite the program's tensors
            if any(i < len(self.call.traced.tensors) for i in self.call.made.copied_indices):
                kernels.run_alone(self.call.compiled, made)
            else:
                args = self._writable(made)
                outputs = self.call.compiled(*self._passed(args))
                if self.tangents is not None:
                    _gradients(as_list(outputs), made, self.tangents)
        return found

    def _with_nan_in_unwritten_memory(self) -> dict[int, Any]:
        graphs = (
            module.graph for module in self.call.traced.graph.modules() if isinstance(module, torch.fx.GraphModule)
        )
        if not any(allocates(node) for graph in graphs for node in graph.nodes):
            return {}
        return self._as_traced(unwritten_is_nan=True)

    def _as_traced(self, unwritten_is_nan: bool = False) -> dict[int, Any]:
        with Framing(unwritten_is_nan) as framing:
            module, made, args, given = self._prepared(framing)
            if self.call.made.boxed:
                compiled_autograd.attach_nodes(module.graph, self.roots)
            framing.frame(module, self.callers, self.modules)
            drawing = self._drawing()
            with self._watched(), as_received(self.call.made.received):
                with drawing:
                    outputs = as_list(interpret(module, *given))
                if self.tangents is not None:
                    run = functools.partial(_gradients, outputs, made, self.tangents)
                    return _provenances(call_under(self.passing, run), self.bad)
                own = made[: len(self.call.traced.tensors)]
                results = [*outputs, *([*own, *args][i] for i in self.call.made.copied_indices)]
        found = _provenances(results, self.bad)
        for i in [i for i, one in found.items() if one.is_intentional and not _covers(results[i], self.values[i])]:
            self.is_beside_mask = True
            del found[i]
        if unwritten_is_nan:
            with self._watched():
                found.update(_unread(results, [i for i in self.bad if i not in found]))
        return found

    def find_saved(self, saved: list[torch.Tensor]) -> list[tuple[torch.Tensor, Any]]:
        """Returns those of some values that the call has kept for its backward pass, with their provenances."""
        self._way, self._bad_kernels = "lowered", self.observed_kernels()
        try:
            with self._states():
                results = self._run_lowered()
        except NonFiniteError:
            raise
        except Exception:  # noqa: BLE001 - the values are then those of an input
            return []
        found = _provenances(results, dict.fromkeys(range(len(results)), 0))
        pairs = ((part, next((i for i in found if _is_same(part, results[i])), None)) for part in saved)
        return [(part, found[i]) for part, i in pairs if i is not None]

    def before_error(self) -> list[torch.Tensor]:
        """Returns the non-finite values that exist when an operation raises an error, as traced."""
        with self._states(), Framing() as framing:
            drawing = self._drawing()
            module, _, _, given = self._prepared(framing)
            framing.frame(module, self.callers, self.modules)
            with self._watched(), as_received(self.call.made.received), drawing:
                values = values_before_error(module, *given)
        return [part.detach() for value in values for part in plain_parts(value) if _C.kinds_of(part.detach())]

    def _as_lowered(self) -> dict[int, Any]:
        return self._first_for_all(self._run_lowered())

    def _run_lowered(self) -> list[Any]:
        """Runs the graph that Inductor gets, with the random numbers that generated code draws."""
        lowered = self._lowered()
        random_numbers.set_states(lowered.random_states)
        with Framing() as framing, as_received(lowered.received):
            return self._run_watched(framing, lowered.module, lowered.arguments())

    def _run_watched(self, framing: Framing, module: torch.fx.GraphModule, inputs: list[Any]) -> list[Any]:
        framed = framing.frame(framing.copy(module), self.callers, self.modules)
        with torch.no_grad(), self._watched():
            return as_list(interpret(framed, *inputs))

    def _in_inductors_arithmetic(self) -> dict[int, Any]:
        """Makes Inductor compute every node as an output, and runs the first non-finite one on its inputs.

        For values that are finite when operations run one by one: generated code rounds, contracts and computes some
        functions differently.
        """
        lowered = self._lowered()
        graph = copy_graph(lowered.module, keep=("val", "original_aten")).graph
        module = torch.fx.GraphModule(lowered.module, graph)
        calls = [n for n in graph.nodes if n.op == "call_function" and n.target is not torch.ops.aten.copy_.default]
        nodes = [n for n in calls if isinstance(n.meta.get("val"), torch.Tensor)]
        graph.output_node().args = (tuple(nodes),)
        module.recompile()
        random_numbers.set_states(lowered.random_states)
        with torch.no_grad():
            compiled = random_numbers.compile_alone(module, lowered.inputs)
            with as_received(lowered.received):
                results = compiled(_copies(lowered.inputs))
        values = dict(zip(nodes, results, strict=True))
        values.update(zip((n for n in graph.nodes if n.op == "placeholder"), lowered.inputs, strict=True))
        made = [n for n in nodes if _new_kinds(n, values) and not is_functional_collective(n.target)]
        if any(kinds != NEGINF for kinds in self.bad.values()):  # a mask is not the cause
            made = [n for n in made if _new_kinds(n, values) != NEGINF] or made
        node = next((node for node in made if node.all_input_nodes), next(iter(made), None))
        if node is None:
            return {}
        args, options = torch.fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        target: Any = node.target
        stack = stack_of(node, self.callers, self.modules)
        with torch.no_grad(), self._watched():
            results = [call_under(stack, functools.partial(target, *args, **options))]
            if not kinds_in(results):  # it is finite alone
                op = node.meta.get("original_aten", target)
                call_under(stack, functools.partial(_C.record_fused, values[node], str(op._schema.name)))
                results = [values[node]]
        return self._first_for_all(results)

    def _first_for_all(self, results: list[Any]) -> dict[int, Any]:
        """Outputs of a lowered graph may be in another order, and include values for the backward pass."""
        found = self._causes(results, {i: kinds for i, kinds in self.bad.items() if self._is_returned(i, results)})
        first = {}  # by the kinds
        for kinds in {kinds for i, kinds in self.bad.items() if i not in found}:
            causes = self._causes(results, dict.fromkeys(range(len(results)), kinds))
            if causes:
                first[kinds] = next(iter(causes.values()))
        return {i: first[kinds] for i, kinds in self.bad.items() if kinds in first} | found

    def _causes(self, results: list[Any], bad: dict[int, int]) -> dict[int, Any]:
        """Returns the provenances of results, without masks that do not explain them."""
        found = _provenances(results, bad)
        return {i: one for i, one in found.items() if not (self.is_beside_mask and one.is_intentional)}

    def _is_returned(self, i: int, results: list[Any]) -> bool:
        """Whether a value of the lowered graph is the result of the call with this index."""
        if i >= len(results) or i >= len(self.values):
            return False
        lowered, returned = results[i], self.values[i]
        are_plain = type(lowered) is torch.Tensor and type(returned) is torch.Tensor
        return are_plain and _is_same_where_finite(lowered, returned)

    def _lowered(self) -> _Lowered:
        if self._lowered_once is None:
            self._lowered_once = self._lower()
        return self._lowered_once

    def _lower(self) -> _Lowered:
        runs: list[_Lowered] = []
        receiving = as_received(self.call.made.received)

        def keep(module: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Any:
            def run(inputs: list[Any]) -> Any:
                before, versions = _copies(inputs), list(map(_version, inputs))
                random_states = random_numbers.states(self.call.made.random_states)
                still = receiving.remaining() if isinstance(receiving, AsReceived) else None
                if self.tangents is not None and not runs:  # it makes values that the backward pass is given
                    results = self._run_watched(framing, module, inputs)
                else:
                    results = interpret(module, *inputs)
                written = [_version(value) != version for value, version in zip(inputs, versions, strict=True)]
                kept = [copy if new else value for value, copy, new in zip(inputs, before, written, strict=True)]
                runs.append(_Lowered(module, kept, written, random_states, still))
                return results

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        with Framing() as framing, torch_internals.unnoticed_compilation():
            module, made, args, given = self._prepared(framing)
            put_numbers(module, args)
            run = torch_internals.compile_graph(module, given, keep)
            with receiving:
                outputs = run(*given)
                if self.tangents is not None:
                    _gradients(as_list(outputs), made, self.tangents)
        wanted = runs[0 if self.tangents is None else -1]
        lowered = dataclasses.replace(wanted, seed_counts=random_numbers.seed_counts(runs[0].module.graph))
        runs.clear()  # what is compiled is in cycles
        return lowered


@contextlib.contextmanager
def _on_stream(stream: torch.Stream) -> Iterator[None]:
    before = torch.accelerator.current_stream()
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


def _gradients(outputs: list[Any], inputs: list[Any], tangents: Tangents) -> list[Any]:
    pairs = [(outputs[i], tangent) for i, tangent in tangents if outputs[i].requires_grad]
    leaves = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.requires_grad]
    roots, weights = [root for root, _ in pairs], [weight for _, weight in pairs]
    made = torch.autograd.grad(roots, [inputs[i] for i in leaves], weights, allow_unused=True)
    gradients: list[Any] = [None] * len(inputs)
    for i, gradient in zip(leaves, made, strict=True):
        gradients[i] = gradient
    return gradients


def _clone(value: torch.Tensor) -> torch.Tensor:
    """Clones a tensor; the clone gets the same provenance."""
    clone = value.clone()
    _C.record_copy(value.detach(), clone.detach())
    return clone


def _version(value: Any) -> object:
    """Returns a value that changes when a tensor is written; in inference mode writes are not counted."""
    if not isinstance(value, torch.Tensor):
        return None
    return object() if value.is_inference() else value._version


def _copies(values: list[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def _new_kinds(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> int:
    """Returns the bits of the kinds of values that a node of a graph has made and its arguments did not have."""
    if not all(argument in values for argument in node.all_input_nodes):
        return 0
    return kinds_in(values[node]) & ~kinds_in([values[argument] for argument in node.all_input_nodes])


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same values, up to the rounding of generated code; NaN is one value."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, equal_nan=True)


def _is_same_where_finite(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are non-finite at the same elements, and otherwise equal up to rounding."""
    finite = torch.isfinite(a)
    is_alike = a.shape == b.shape and a.dtype == b.dtype and torch.equal(finite, torch.isfinite(b))
    return is_alike and torch.allclose(torch.where(finite, a, 0), torch.where(finite, b, 0))


def _covers(replayed: Any, value: Any) -> bool:
    """Whether all non-finite elements of a value are in its replay, too; of a value that is gone, none are known."""
    if value is None:
        return True
    pairs = zip(plain_parts(replayed), plain_parts(value), strict=True)
    return all(not bool((~torch.isfinite(now) & torch.isfinite(then)).any()) for then, now in pairs)


def _unread(values: list[Any], bad: Iterable[int]) -> dict[int, Any]:
    """Finds the provenance of NaN in memory that a graph has partly written, not read, and returned."""
    plain = {i: values[i].detach() for i in bad if i < len(values) and isinstance(values[i], torch.Tensor)}
    found = {i: _C.input_provenance(value) for i, value in plain.items()}
    return {i: provenance for i, provenance in found.items() if provenance is not None}


def _provenances(values: list[Any], bad: dict[int, int]) -> dict[int, Any]:
    """Returns the provenances of replayed values, by index. A mask does not explain other kinds than it has."""
    found = {}
    for i, kinds in bad.items():
        parts = plain_parts(values[i]) if i < len(values) else []
        known = (_C.provenance_of(part.detach()) for part in parts)
        provenance = next((one for one in known if one is not None), None)
        if provenance is None or (provenance.is_intentional and kinds & ~kinds_in(values[i])):
            continue
        found[i] = provenance
    return found
