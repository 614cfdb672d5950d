"""The calls at the origin of a finding: found in one more run of the step, in which nothing is changed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from torchnan.detection.finding import Finding
from torchnan.detection.pause import detection_paused
from torchnan.training.guard.remedies.call import Call, Line, has_node, kinds_in
from torchnan.training.guard.remedies.change import Change

_ADDS = {"sum", "logsumexp"}


@dataclasses.dataclass
class Candidate:
    """A call that may be the origin, and the rows of the batch where its results, or gradients, are not finite."""

    call: Call
    bad_rows: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Origin:
    """The facts about an origin that remedies use.

    Attributes:
        finding: that names it; ``None`` for a step that is finite but whose gradient norm is too large.
        line: of the user's, where it is called; ``None`` if that is not known.
        candidates: calls at that line that made such a value of others; in the backward pass, those that made the
            origin's node; of data, the first that reads it.
        normalized_over: the dimensions that the result of an ``exp`` at that line is summed over, if it is.
        is_updated: whether an optimizer steps in what is replayed.
        model: the model, if it is known.
        rows: of the batch, 1 if that is not known.
    """

    finding: Finding | None
    line: Line | None = None
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    normalized_over: tuple[int, ...] | None = None
    is_updated: bool = False
    model: torch.nn.Module | None = None
    rows: int = 1

    @property
    def calls(self) -> list[Call]:
        """The calls at the origin: those of the operator that the finding names, else of the first candidate's, which
        calls it."""
        return [candidate.call for candidate in self._chosen()]

    @property
    def bad_rows(self) -> set[int]:
        """The rows of the batch that are not finite at the origin."""
        return set().union(*(candidate.bad_rows for candidate in self._chosen()))

    def _chosen(self) -> list[Candidate]:
        named = "" if self.finding is None else self.finding.op.rpartition("::")[2]
        operators = [candidate.call.operator for candidate in self.candidates]
        wanted = named if named in operators else next(iter(operators), None)
        return [candidate for candidate in self.candidates if candidate.call.operator == wanted]

    @property
    def operators(self) -> set[str]:
        """The operators of the calls."""
        return {call.operator for call in self.calls}

    @property
    def where(self) -> str:
        """Returns `` at train.py:40``."""
        return f" at {at(self.line)}" if self.line else ""


def at(line: Line) -> str:
    """Returns ``train.py:40``, without the folder."""
    return f"{line[0].rpartition('/')[2]}:{line[1]}"


def line_of(finding: Finding) -> Line | None:
    """Returns the line whose calls a remedy changes: where the origin was called; of data, where it was first read."""
    if finding.origin == "input" and finding.constant:
        reader = next((step for step in finding.lineage if step.file), None)
        return (reader.file, reader.line) if reader is not None and reader.file else None
    stack = finding.backward_stack or finding.stack
    return (stack[0].file, stack[0].line) if stack else None


class Locate(Change):
    """Changes nothing, and fills in an origin."""

    def __init__(self, origin: Origin) -> None:
        super().__init__("")
        self._origin = origin
        self._hooks: list[RemovableHandle] = []
        finding = origin.finding
        is_in_node = finding is not None and finding.phase == "backward" and not finding.backward_stack
        self._node = finding.node if finding is not None and is_in_node else None
        self._reads = finding is not None and finding.origin in ("input", "foreign", "uninit")

    def call(self, call: Call) -> Any:
        origin = self._origin
        if call.operator in _ADDS and (maker := call.maker(call["self"])) is not None and maker.line == origin.line:
            dim = call.get("dim")
            summed = call["self"].dim()
            origin.normalized_over = tuple(range(summed)) if dim is None else tuple(d % summed for d in dim)
        if call.line is None or call.line != origin.line:
            return call.run()
        before = call.kinds()
        result = call.run()
        if self._is_origin(call, before, result):
            candidate = Candidate(call)
            origin.candidates.append(candidate)
            self._note_rows(candidate, result)
        return result

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        self._hooks.append(register_optimizer_step_post_hook(self._note_update))
        try:
            yield
        finally:
            while self._hooks:  # those of tensors refer to calls, which refer to the tensors
                self._hooks.pop().remove()

    def _note_update(self, *_: Any) -> None:
        self._origin.is_updated = True

    def _is_origin(self, call: Call, before: int, result: Any) -> bool:
        if self._node is not None:
            return has_node(result, self._node, call)
        if self._reads:
            return before != 0 and not self._origin.candidates
        made = kinds_in(call.tensors if call.is_mutable else result)
        return made & ~before != 0

    def _note_rows(self, candidate: Candidate, result: Any) -> None:
        if self._origin.rows < 2:
            return
        if self._node is None:
            for leaf in tree_leaves(result):
                self._note_bad_rows(candidate, leaf)
            return
        for tensor in candidate.call.tensors:
            if tensor.requires_grad:
                hook = functools.partial(self._note_bad_rows, candidate)
                self._hooks.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]

    def _note_bad_rows(self, candidate: Candidate, value: Any) -> None:
        """Notes the rows of the batch where a tensor is not finite, if its first dimension has some for each."""
        rows = self._origin.rows
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] % rows == 0:
            with detection_paused(), torch.no_grad():
                bad = (~value.detach().isfinite()).reshape(rows, -1).any(1)
                candidate.bad_rows.update(bad.nonzero().flatten().tolist())
