"""A compiled region: its results are checked at its border, and a call that made a non-finite one is replayed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchnan._load import _C
from torchnan.detection import introspection, shards, signal_handlers
from torchnan.detection.compiled import compiled_autograd, compiled_step, replay, torch_internals
from torchnan.detection.compiled.called_modules import modules_of_call
from torchnan.detection.compiled.explanations import Appearance, Explanation, Explanations, Signature
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
from torchnan.detection.compiled.replay import Traced
from torchnan.detection.compiled.stack import Line, call_under, calling_stack
from torchnan.detection.containment import contained
from torchnan.detection.errors import may_be_of_nonfinite

_RECORD = "torchnan"  # of a call, in the metadata of the autograd node that it made
_REGION = "_torchnan_region"  # an attribute of the backward function of such a node
_VALUES = "_torchnan_values"  # of an error: the session reports those that exist when it ends

Bad = list[tuple[int, int]]  # index of a non-finite value among those that were checked, and the bits of its kinds


@dataclasses.dataclass
class _BadCall:
    """A call of a region, or its backward pass, that gave values which are not finite.

    Attributes:
        call: the core's record of the call.
        bad: these values.
        values: the results and the arguments that the call wrote, or the gradients; ``None`` for one that is gone.
        tangents: gradients of the results, if the backward pass made the values.
    """

    call: Any
    bad: Bad
    values: Sequence[Any]
    tangents: replay.Tangents | None = None

    @functools.cached_property
    def given(self) -> list[torch.Tensor]:
        """The non-finite values among the arguments and the gradients."""
        values = [*self.call.arguments, *(tangent for _, tangent in self.tangents or ())]
        return [part for value in values for part in plain_parts(value) if _C.kinds_of(part)]

    def given_causes(self) -> tuple[Any, Any]:
        """Returns the provenance of a non-finite argument, and of one that is a mask; ``None`` if there is none.

        A mask explains no other results than -inf, and no gradient.
        """
        of_inputs = (_C.input_provenance(part) for part in self.given)
        of_forward_pass = (self.call.given,) if self.tangents is None else self.call.provenances
        known = [one for one in (*of_forward_pass, *of_inputs) if one is not None]
        accident = next((one for one in known if not one.is_intentional), None)
        mask = next((one for one in known if one.is_intentional and self.tangents is None), None)
        return accident, mask


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
            watch_backward=_weakly(self, _check_in_backward),
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
            values, here = as_list(results), _C.current_stack()
            if here not in self._allocations:
                callers = calling_stack(_C.stack_frames(here))
                modules = modules_of_call(self.traced.modules, (), callers, self.site)
                stacks = [stack_of(node, callers, modules) for node in self.unwritten.values()]
                intern = [functools.partial(call_under, stack, _C.current_stack) for stack in stacks]
                self._allocations[here] = replay.apart(lambda: [run() for run in intern])
            for (i, node), stack in zip(self.unwritten.items(), self._allocations[here], strict=True):
                for part in plain_parts(values[i]):
                    _C.record_allocation(part, stack, allocator_of(node))

    def _explain_results(self, call: Any, bad: Bad, results: Any) -> None:
        with _apart_from_handlers("following a compiled region"):
            self._explain(_BadCall(call, bad, [*as_list(results), *call.written]))
            _report_written(call.written)
        call.end_forward()

    def explain_gradients(self, call: Any, bad: Bad, gradients: Sequence[Any], tangents: Sequence[Any]) -> None:
        """Finds the provenance of the non-finite gradients of a call."""
        with _apart_from_handlers("following a compiled region into its backward pass"):
            self._explain(_BadCall(call, bad, gradients, _tangents(call, tangents)))

    def _explain_error(self, call: Any, error: BaseException) -> None:
        """Finds the non-finite values that an error of a call may be about, with their provenance."""
        session = _C.current_session()
        if session is None or not may_be_of_nonfinite(error):
            return
        with _apart_from_handlers("following a compiled region that raised an error"):
            explanations = self._known.setdefault(session, Explanations())
            if not call.obstacle and not explanations.obstacle_to_replay(None):
                explanations.count_replay(None)
                with explanations.limiting_time(session.max_explanation_seconds):
                    error.__dict__[_VALUES] = _ValuesOfError(replay.find_before_error(self._recorded(call)))

    def _explain_late(
        self, call: Any, bad: Bad, values: Sequence[Any], gradients: list[torch.Tensor | None] | None
    ) -> dict[int, Any]:
        """Returns the provenance of values that a device has found non-finite after the call, by index.

        Args:
            call: the call, which was kept.
            bad, values: as for :class:`_BadCall`.
            gradients: those that the backward pass was given, if it made the values.
        """
        with _apart_from_handlers("following a compiled region on a device"):
            tangents = None if gradients is None else _tangents(call, gradients)
            return self._provenances(_BadCall(call, bad, values, tangents))
        return {}

    def _explain(self, one: _BadCall) -> None:
        for i, provenance in self._provenances(one).items():
            _set_provenance(one.values[i], provenance)

    def _provenances(self, one: _BadCall) -> dict[int, Any]:
        session = _C.current_session()
        assert session is not None  # else nothing is checked
        explanations = self._known.setdefault(session, Explanations())
        explanation: Explanation | None = None
        found: dict[int, Any] = {}
        obstacle = one.call.obstacle or explanations.obstacle
        if not obstacle:
            with explanations.limiting_time(session.max_explanation_seconds):
                explanation, found = self._find(one, explanations)
            obstacle = explanations.obstacle
        if obstacle:
            explanation, found = None, self._at_border(one, replay.ReplayResult({}, [], obstacle))
        if one.tangents is None:
            one.call.provenances = tuple(found.values())
        else:  # the forward pass was run again, and found the same
            known = one.call.provenances
            found = {i: provenance.with_origins_of_forward_pass(known) for i, provenance in found.items()}
        if explanation is not None:
            explanation.latest = found
        return found

    def _find(self, one: _BadCall, explanations: Explanations) -> tuple[Explanation | None, dict[int, Any]]:
        """Returns the provenance of each non-finite value of a call: a replay finds it, or has found it before."""
        recorded, given = self._recorded(one.call), one.given
        seen = self._seen(recorded, one)
        explanation, signature = explanations.look_up(
            seen,
            [i for i, _ in one.bad],
            functools.partial(replay.signature, recorded, one.tangents),
            functools.partial(replay.pattern_of, [one.values[i] for i, _ in one.bad], recorded.args),
        )
        if explanation is not None or signature is None:
            assert explanation is not None
            return explanation, explanation.repeated(given, is_checked=signature is not None)
        obstacle = explanations.obstacle_to_replay(seen.modules, signature)
        if one.call.boxed and not obstacle:
            _trace_saved_values(given)
        values = one.values if one.tangents is None else ()
        found = self._at_border(
            one, replay.find(recorded, dict(one.bad), values, one.tangents, signature, obstacle), signature
        )
        if obstacle:
            return None, found
        explanations.count_replay(seen.modules)
        return explanations.add(seen, signature, found, [_C.provenance_of(part) for part in given]), found

    def _seen(self, recorded: replay.RecordedCall, one: _BadCall) -> Appearance:
        session = _C.current_session()
        finite = self.border.finite_calls if one.tangents is None else self.border.finite_passes
        modules, rest = replay.appearance(recorded, one.tangents)
        return Appearance((modules, rest, tuple(one.bad)), modules, finite, 0 if session is None else session.step)

    def _at_border(
        self, one: _BadCall, outcome: replay.ReplayResult, signature: Signature | None = None
    ) -> dict[int, Any]:
        """Completes the provenances: other values came from non-finite arguments, or have the region as their
        origin. The gradients of a pass have one."""
        found = dict(outcome.found)
        missing = [(i, kinds) for i, kinds in one.bad if i not in found]
        accident, mask = one.given_causes() if missing else (None, None)
        made = None  # the region's own origin, of gradients
        for i, kinds in missing:
            is_own = signature is not None and signature.is_finite(i)
            given = None if is_own else accident or (mask if kinds == NEGINF else None) or made
            if given is not None:
                found[i] = given
                continue
            for part in plain_parts(one.values[i]):
                _C.record_border(part, i, self.border, outcome.obstacle, outcome.kernels)
                provenance = _C.provenance_of(part)
                if provenance is not None:
                    found[i] = provenance
            if one.tangents is not None:
                made = found.get(i)
        return found

    def _recorded(self, call: Any) -> replay.RecordedCall:
        assert self.traced is not None  # else no call is replayed
        if self._probe is None:
            self._probe = Probe(self.traced.graph, list(self.traced.tensors))
        stream = torch.accelerator.current_stream(call.device) if call.device else None
        return replay.RecordedCall(
            made=call,
            args=call.arguments,
            border=self.border,
            traced=self.traced,
            compiled=self.compiled if self.traced.has_kernels and stream is None else None,
            probe=self._probe,
            stream=stream,
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


def _trace_saved_values(given: Sequence[torch.Tensor]) -> None:
    """Finds the provenance of the values that compiled forward passes have kept for a pass of compiled autograd.

    Operations of a backward pass that Inductor has moved into the forward pass make such values.
    """
    for node in compiled_autograd.nodes_of_pass(compiled_autograd.roots_of_pass()):
        unknown = [part for part in given if _C.provenance_of(part) is None and not part.requires_grad]
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
