"""A compiled region: its results are checked at its border, and a call that made a non-finite one is replayed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from torchnan._load import _C
from torchnan.detection import introspection, shards, signal_handlers
from torchnan.detection.compiled import compiled_autograd, compiled_step, replay, torch_internals
from torchnan.detection.compiled.called_modules import Gradient, Source, TracedModule, modules_of_call
from torchnan.detection.compiled.explanations import Border, Explanation, Explanations, pattern_of
from torchnan.detection.compiled.graph import (
    allocator_of,
    as_list,
    compared_inputs,
    has_collectives,
    plain_parts,
    stack_of,
    unread_inputs,
    unwritten_outputs,
)
from torchnan.detection.compiled.probe import NEGINF, Probe
from torchnan.detection.compiled.stack import Line, call_under, calling_stack
from torchnan.detection.containment import contained
from torchnan.detection.errors import may_be_of_nonfinite

_RECORD = "torchnan"  # of a call, in the metadata of the autograd node that it made
_REGION = "_torchnan_region"  # an attribute of the backward function of such a node
_VALUES = "_torchnan_values"  # of an error: the session reports those that exist when it ends

Bad = list[tuple[int, int]]  # index of a non-finite value among those that were checked, and the bits of its kinds


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

    graph: fx.GraphModule
    tensors: dict[str, torch.Tensor]
    modules: dict[str, TracedModule]
    overwritten: list[int] | None
    has_kernels: bool = True
    weights: Sequence[Source] = ()
    optimizer_gradient: Gradient | None = None
    device: str = ""


class Region:
    """Inductor's result for one graph.

    Args:
        traced: the graph; ``None`` if it is not known.
        compiled: runs the region.
        site: the function that was compiled.
        obstacle: why no call can be replayed; empty if they can.
    """

    def __init__(self, traced: Traced | None, compiled: Callable[..., Any], site: Line, obstacle: str = "") -> None:
        self.traced = traced
        self.compiled = compiled
        self.site = site
        graph, tensors = (None, {}) if traced is None else (traced.graph, traced.tensors)
        if traced is not None and traced.overwritten is None:
            obstacle = "it is not known which of its arguments it overwrites"
        overwritten = (traced and traced.overwritten) or []
        self.unwritten = {} if graph is None else unwritten_outputs(graph)
        self.border = _C.RegionBorder(
            mutated=overwritten,
            unread=[] if graph is None else unread_inputs(graph, list(tensors), overwritten),
            own=tuple(tensors.values()),
            region=site.function,
            file=site.file,
            line=site.line,
            obstacle=obstacle,
            parts=plain_parts,
            is_distributed=shards.is_sharded,
            has_collectives=graph is not None and has_collectives(graph),
            device="" if traced is None else traced.device,
            compared=[] if graph is None else compared_inputs(graph, list(tensors)),
            unwritten=list(self.unwritten),
            note_unwritten=_weakly(self, Region._note_unwritten),
            follow=_weakly(self, _check_in_backward),
            explain_late=_weakly(self, Region._explain_late),
        )
        weakref.finalize(self, self.border.forget_own).atexit = False  # calls keep the border alive
        self._allocations: dict[int, list[int]] = {}  # by the stack of a call, those of what `unwritten` has
        self._known: weakref.WeakKeyDictionary[Any, Explanations] = weakref.WeakKeyDictionary()  # by session
        self._probe: Probe | None = None

    def checked(self) -> Callable[..., Any]:
        """Returns a function that runs the region and checks its results. It has no frame on the stack."""
        explain: Any = torch.compiler.disable(self._explain_results)  # type: ignore[no-untyped-call]
        gradient = None if self.traced is None else self.traced.optimizer_gradient
        step = (None, None) if gradient is None else compiled_step.checks(gradient)
        call = functools.partial(self.border.run, self.compiled, explain, self._explain_error, *step)
        call.__torchnan_region__ = self  # type: ignore[attr-defined]
        return call

    def _note_unwritten(self, results: Any) -> None:
        assert self.traced is not None  # else no result is known to be unwritten
        with _apart_from_handlers("recording memory that a compiled region has not written"):
            values, here = as_list(results), _C.capture_stack()
            if here not in self._allocations:
                callers = calling_stack(_C.stack_frames(here))
                modules = modules_of_call(self.traced.modules, (), callers, self.site)
                stacks = [stack_of(node, callers, modules) for node in self.unwritten.values()]
                capture = [functools.partial(call_under, stack, _C.capture_stack) for stack in stacks]
                self._allocations[here] = replay.apart(lambda: [run() for run in capture])
            for (i, node), stack in zip(self.unwritten.items(), self._allocations[here], strict=True):
                for part in plain_parts(values[i]):
                    _C.record_allocation(part, stack, allocator_of(node))

    def _explain_results(self, call: Any, bad: Bad, results: Any) -> None:
        with _apart_from_handlers("following a compiled region"):
            self._explain(call, bad, [*as_list(results), *call.written], None)
            _report_written(call.written)
        call.end_forward()

    def explain_gradients(self, call: Any, bad: Bad, gradients: Sequence[Any], tangents: Sequence[Any]) -> None:
        """Finds the provenance of the non-finite gradients of a call."""
        with _apart_from_handlers("following a compiled region into its backward pass"):
            self._explain(call, bad, gradients, _tangents(call, tangents))

    def _explain_error(self, call: Any, error: BaseException) -> None:
        """Finds the non-finite values that an error of a call may be about, with their provenance."""
        session = _C.current_session()
        if session is None or not may_be_of_nonfinite(error):
            return
        with _apart_from_handlers("following a compiled region that raised an error"):
            explanations = self._known.setdefault(session, Explanations())
            if not call.obstacle and not explanations.obstacle and not explanations.is_exhausted(None):
                explanations.count_replay(None)
                with explanations.limiting_time(session.max_explanation_seconds):
                    error.__dict__[_VALUES] = _ValuesOfError(replay.find_before_error(self._recorded(call)))

    def _explain_late(
        self, call: Any, bad: Bad, values: Sequence[Any], gradients: list[torch.Tensor | None] | None
    ) -> dict[int, Any]:
        """Returns the provenance of values that a device has found non-finite after the call, by index.

        Args:
            call: the call, which was kept.
            bad: as for an explanation at the border.
            values: the results, or the gradients; ``None`` for those that do not exist any more.
            gradients: those that the backward pass was given, if it made the values.
        """
        with _apart_from_handlers("following a compiled region on a device"):
            return self._provenances(call, bad, values, None if gradients is None else _tangents(call, gradients))
        return {}

    def _explain(self, call: Any, bad: Bad, values: Sequence[Any], tangents: replay.Tangents | None) -> None:
        for i, provenance in self._provenances(call, bad, values, tangents).items():
            _set_provenance(values[i], provenance)

    def _provenances(
        self, call: Any, bad: Bad, values: Sequence[Any], tangents: replay.Tangents | None
    ) -> dict[int, Any]:
        session = _C.current_session()
        assert session is not None  # else nothing is checked
        explanations = self._known.setdefault(session, Explanations())
        obstacle = call.obstacle or explanations.obstacle
        explanation: Explanation | None = None
        found: dict[int, Any] = {}
        if not obstacle:
            with explanations.limiting_time(session.max_explanation_seconds):
                explanation, found = self._find(call, bad, values, tangents, explanations)
            obstacle = explanations.obstacle
        if obstacle:
            explanation, found = (
                None,
                self._at_border(call, bad, values, tangents, replay.ReplayResult({}, [], obstacle)),
            )
        if tangents is not None:  # the forward pass was run again, and found the same
            found = {i: provenance.with_origins_of_forward_pass(call.provenances) for i, provenance in found.items()}
        if explanation is not None:
            explanation.latest = found
        if tangents is None:
            call.provenances = tuple(found.values())
        return found

    def _find(
        self, call: Any, bad: Bad, values: Sequence[Any], tangents: replay.Tangents | None, explanations: Explanations
    ) -> tuple[Explanation | None, dict[int, Any]]:
        """Returns the provenance of each non-finite value of a call: a replay finds it, or has found it before."""
        recorded = self._recorded(call)
        results = [part for i, _ in bad for part in plain_parts(values[i])]
        border = self._seen(recorded, bad, tangents)
        pattern = functools.partial(pattern_of, results, call.arguments)
        assumed = explanations.assumed(border, pattern)
        if assumed is not None:
            return assumed, _repeated(assumed, _given(call, tangents), is_checked=False)
        signature = replay.signature(recorded, tangents)
        known = explanations.known(border, signature, [i for i, _ in bad])
        if known is not None:
            explanations.confirm(border, known, pattern)
            return known, _repeated(known, _given(call, tangents), is_checked=True)
        if explanations.is_exhausted(border.modules, signature):
            obstacle = f"{explanations.replays} of its calls were replayed in this detection, as many as may be"
            kernels = signature.kernels or replay.observed_kernels(recorded, tangents)
            outcome = replay.ReplayResult({}, kernels, obstacle)
            return None, self._at_border(call, bad, values, tangents, outcome, signature)
        if call.boxed:
            _follow_saved_values(call)
        outcome = replay.find(recorded, dict(bad), values if tangents is None else (), tangents, signature)
        found = self._at_border(call, bad, values, tangents, outcome, signature)
        given = [_C.provenance_of(part) for part in _given(call, tangents)]
        explanations.count_replay(border.modules)
        return explanations.add(border, signature, found, given), found

    def _seen(self, call: replay.RecordedCall, bad: Bad, tangents: replay.Tangents | None) -> Border:
        session = _C.current_session()
        finite = self.border.finite_calls if tangents is None else self.border.finite_passes
        modules, rest = replay.border(call, tangents)
        return Border((modules, rest, tuple(bad)), modules, finite, 0 if session is None else session.step)

    def _at_border(
        self,
        call: Any,
        bad: Bad,
        values: Sequence[Any],
        tangents: replay.Tangents | None,
        outcome: replay.ReplayResult,
        signature: replay.Signature | None = None,
    ) -> dict[int, Any]:
        """Completes the provenances: other values came from non-finite arguments, or have the region as their
        origin. The gradients of a pass have one."""
        found = dict(outcome.found)
        missing = [(i, kinds) for i, kinds in bad if i not in found]
        accident, mask = self._given_causes(call, tangents) if missing else (None, None)
        made = None  # the region's own origin, of gradients
        for i, kinds in missing:
            is_own = signature is not None and signature.is_finite(i)
            given = None if is_own else accident or (mask if kinds == NEGINF else None) or made
            if given is not None:
                found[i] = given
                continue
            for part in plain_parts(values[i]):
                _C.record_border(part, i, self.border, outcome.obstacle, outcome.kernels)
                provenance = _C.provenance_of(part)
                if provenance is not None:
                    found[i] = provenance
            if tangents is not None:
                made = found.get(i)
        return found

    def _given_causes(self, call: Any, tangents: replay.Tangents | None) -> tuple[Any, Any]:
        """Returns the provenance of a non-finite argument, and of one that is a mask; ``None`` if there is none.

        A mask explains no other results than -inf, and no gradient.
        """
        of_inputs = (_C.input_provenance(part) for part in _given(call, tangents))
        of_forward_pass = (call.given,) if tangents is None else call.provenances
        known = [one for one in (*of_forward_pass, *of_inputs) if one is not None]
        accident = next((one for one in known if not one.is_intentional), None)
        mask = next((one for one in known if one.is_intentional and tangents is None), None)
        return accident, mask

    def _recorded(self, call: Any) -> replay.RecordedCall:
        assert self.traced is not None  # else no call is replayed
        if self._probe is None:
            self._probe = Probe(self.traced.graph, list(self.traced.tensors))
        weights, count = self.traced.weights, len(self.traced.tensors)
        stream = torch.accelerator.current_stream(call.device) if call.device else None
        return replay.RecordedCall(
            graph=self.traced.graph,
            compiled=self.compiled if self.traced.has_kernels and stream is None else None,
            graph_tensors=list(self.traced.tensors),
            modules=self.traced.modules,
            weights=[(source.path, call.ids[count + source.argument]) for source in weights],
            probe=self._probe,
            is_random=bool(self.border.is_random),
            args=call.arguments,
            copied_indices=call.copied_indices,
            received=call.received,
            random_states=call.random_states,
            device_random_states_after=call.device_random_states_after,
            note_drawn=functools.partial(setattr, self.border, "is_random", True),
            modes=call.modes,
            stream=stream,
            is_inside_node=call.is_inside_node,
            enter_node=call.enter_node,
            stack=call.stack,
            stack_of_pass=call.stack_of_pass,
            step=call.step,
            boxed=call.boxed,
            region=self.site,
        )


@contextlib.contextmanager
def _apart_from_handlers(part: str) -> Iterator[None]:
    """Contains failures of torchnan; the signal handlers of the program run after the block."""
    with signal_handlers.deferred(), contained(part):
        yield


class _ValuesOfError:
    """The values that an error is about, which exist as long as the error does. They are not pickled with it."""

    def __init__(self, values: list[torch.Tensor]) -> None:
        self._values = values

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, ()


def _weakly(region: Region, call: Callable[..., Any]) -> Callable[..., Any]:
    reference = weakref.ref(region)  # the core holds the called object, invisible to the garbage collector

    def call_of_alive(*given: Any) -> Any:
        alive = reference()
        return None if alive is None else call(alive, *given)

    return call_of_alive


def _tangents(call: Any, gradients: Sequence[torch.Tensor | None]) -> replay.Tangents:
    """Returns the gradients of the results of a call that its backward pass was given."""
    given = ((i, gradients[number]) for i, number in call.outputs)
    return [(i, gradient) for i, gradient in given if gradient is not None]


def _check_in_backward(region: Region, node: Any) -> None:
    """Makes ``CompiledFunction.backward`` check its results; compiled autograd would trace a hook on the node."""
    function = torch_internals.function_class(node)
    backward, run_graph = (vars(function)[name].__func__ for name in ("backward", "_backward_impl"))
    if hasattr(backward, _REGION):
        return

    def checked(ctx: Any, *grads: Any) -> Any:
        call = ctx.metadata.get(_RECORD)
        if call is None:
            return backward(ctx, *grads)
        tangents = list(grads[0]) if len(grads) == 1 and type(grads[0]) is list else grads  # boxed from 2.13 on
        call.begin_backward(grads)
        gradients = backward(ctx, *grads)
        bad = call.check_gradients(gradients)
        if bad:
            explain: Any = torch.compiler.disable(region.explain_gradients)  # type: ignore[no-untyped-call]
            explain(call, bad, as_list(gradients), tangents)
        call.release()
        return gradients

    # The backward function unpacks what was saved before it calls this: hooks of the program may compute it again, and
    # are watched.
    def run_unwatched(ctx: Any, all_args: list[Any]) -> Any:
        call = ctx.metadata.get(_RECORD)
        return run_graph(ctx, all_args) if call is None else call.run(run_graph, (ctx, all_args))

    for replacement in (checked, run_unwatched):
        torch_internals.skip_in_dynamo(replacement)  # like the functions that they replace
    setattr(checked, _REGION, region)
    function.backward, function._backward_impl = staticmethod(checked), staticmethod(run_unwatched)


def _follow_saved_values(call: Any) -> None:
    """Finds the provenance of the values that compiled forward passes have kept for a pass of compiled autograd.

    Operations of a backward pass that Inductor has moved into the forward pass make such values.
    """
    for node in compiled_autograd.nodes_of_pass(compiled_autograd.roots_of_pass()):
        unknown = [part for part in _given(call, None) if _C.provenance_of(part) is None and not part.requires_grad]
        if not unknown:
            return
        forward = getattr(node, "metadata", {}).get(_RECORD)
        if forward is None or forward.obstacle:
            continue
        region = getattr(vars(torch_internals.function_class(node))["backward"].__func__, _REGION)
        for part, provenance in replay.find_saved(region._recorded(forward), unknown):
            _C.set_provenance(part, provenance)


def _report_written(values: Sequence[torch.Tensor]) -> None:
    """Reports the parameters into which a compiled optimizer has written non-finite values.

    They are leaves, and need not be of the class ``Parameter``.
    """
    parameters = [value for value in values if value.requires_grad and value.is_leaf]
    found = [(parameter, _C.provenance_of(parameter.detach())) for parameter in parameters]
    harmed = [parameter for parameter, made in found if made is not None and made.phase == "optimizer"]
    if harmed:
        names = [introspection.name_of_parameter(parameter) for parameter in harmed]
        _C.report_tensors("parameter", [parameter.detach() for parameter in harmed], names.__getitem__)


def _set_provenance(value: Any, provenance: Any) -> None:
    for part in plain_parts(value):
        if _C.kinds_of(part):
            _C.set_provenance(part, provenance)


def _repeated(explanation: Explanation, given: list[torch.Tensor], is_checked: bool) -> dict[int, Any]:
    """Returns the provenance of the results of a call that came about as in an earlier one.

    Args:
        explanation: of the earlier call.
        given: the non-finite values that this call was given, see :func:`_given`.
        is_checked: whether the two calls were compared.
    """
    pairs = []
    for then, part in zip(explanation.given, given, strict=True):
        if then is None:
            continue
        now = _C.provenance_of(part)
        if now is None:
            (now,) = _C.repeated_in_this_call([then], [], is_checked)
            _C.set_provenance(part, now)
        pairs.append((then, now))
    repeated = _C.repeated_in_this_call(list(explanation.provenances.values()), pairs, is_checked)
    return dict(zip(explanation.provenances, repeated, strict=True))


def _given(call: Any, tangents: replay.Tangents | None) -> list[torch.Tensor]:
    """Returns the non-finite arguments of a region, or of its backward pass."""
    values = [*call.arguments, *(tangent for _, tangent in tangents or ())]
    return [part for value in values for part in plain_parts(value) if _C.kinds_of(part)]
