"""Findings: the same fields, in the same order, as ``torchnan::Finding`` in C++ and as a line of the log."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torchnan.config.text import printable

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")  # of a finding, the most serious first


@dataclasses.dataclass(frozen=True)
class Frame:
    """A source line: file as Python names it, line (1-based), qualified name of the function, and whether the file
    belongs to a package that the program uses."""

    file: str
    line: int
    function: str
    installed: bool

    def __str__(self) -> str:
        return f"{printable(self.file)}:{self.line} {printable(self.function)}"


@dataclasses.dataclass(frozen=True)
class Input:
    """One tensor argument of the operation.

    Attributes:
        name: of the argument in the operator's schema, ``"self"`` or ``"tensors[3]"``.
        dtype: ``"float32"``.
        shape: sizes.
        min: smallest finite element, ``None`` if there is none (likewise ``max``, ``absmax``).
        nan: how many elements are NaN (likewise ``posinf``, ``neginf``).
        overwritten: the operation wrote over this argument, so its values are unknown.
        constant: where a non-finite constant in it was written, ``"train.py:12"``.

    A number argument is an input too, with dtype ``"number"`` and no shape.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    min: float | None
    max: float | None
    absmax: float | None
    nan: int
    posinf: int
    neginf: int
    overwritten: bool = False
    constant: str | None = None


@dataclasses.dataclass(frozen=True)
class LineageStep:
    """One operation on the way from the origin to the harm."""

    op: str
    file: str | None
    line: int

    def __str__(self) -> str:
        op = printable(self.op)
        return f"{op} ({printable(self.file)}:{self.line})" if self.file else op


@dataclasses.dataclass(frozen=True)
class Harm:
    """How the value did harm.

    Attributes:
        kind: ``"backward"`` (backward() was called on it), ``"gradient"`` (an optimizer was about to use it),
            ``"parameter"``, ``"optimizer_state"``, ``"read"`` (user code read it), ``"guard"``, ``"alive"``
            (still referenced when detection ended), ``"origin"`` (reported where it was made, ``when="origin"``),
            ``"unused"`` (a warning: it was never used) or ``"none"``.
        name: of the parameter, the state entry or the guard.
        file: where it happened, if there is such a line in the program.
        line: 1-based, 0 if unknown.
        applied: for ``"gradient"``, whether the optimizer's step was applied; ``None`` if unknown.
        step: the training step in which it happened, ``None`` if there was no harm.
        text: the same as a sentence.
    """

    kind: str
    name: str | None
    file: str | None
    line: int
    applied: bool | None
    step: int | None
    text: str

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class CompiledRegion:
    """The compiled region that contains an origin.

    Attributes:
        region: the function that was compiled; ``"forward of a GraphModule"`` for a module of ``torch.fx``.
        file, line: where it begins; after a graph break, where it resumes. For a module of ``torch.fx``, the line that
            its code was traced from, if that is known.
        kernel: the first kernel of the generated code that wrote the value, ``None`` if unknown.
        replay: how the origin was found: ``"traced"`` in the graph that was traced; ``"lowered"`` in the graph that the
            compiler made of it; ``"fused"`` only in the arithmetic of the generated code, although the value is finite
            when the operations run one by one; ``"none"`` not at all.
        obstacle: why it was not found.
    """

    region: str
    file: str | None
    line: int
    kernel: str | None
    replay: Literal["traced", "lowered", "fused", "none"]
    obstacle: str | None


@dataclasses.dataclass(frozen=True)
class Finding:
    """One reported fact about a non-finite value. ``str(finding)`` is the one-screen report.

    Attributes:
        schema: version of this list of fields.
        level: ``"error"`` did harm, ``"warning"`` was never used, ``"note"`` is for the record.
        kind: the kind of value that the origin made first. If a later operation of the same backward node turns its
            Inf into a NaN (the slope is infinite, the gradient 0), the kind is ``"nan"``: the node's result was never
            an Inf. ``nan``, ``posinf`` and ``neginf`` still count the values that ``op`` made.
        origin: ``"op"`` an operation made it from finite inputs; ``"input"`` it came in with data; ``"parameter"``,
            ``"buffer"`` a module held it; ``"uninit"`` uninitialized memory; ``"foreign"`` written outside
            PyTorch's dispatcher; ``"compiled"`` inside a compiled region that could not be followed.
        phase: where the origin ran.
        op: ``"aten::log"``; for ``"uninit"`` the allocating operation, for other external values the first reader, or
            the operation that wrote the constant.
        overload: of the operator, often ``""``.
        output: index among the tensors that the operation wrote, including those in lists.
        node: autograd node in the backward pass, ``"LogBackward0"``.
        module: dotted path of the module, ``""`` for the root itself, ``None`` outside every module.
        module_type: the name of its class, ``"Softmax"``; ``None`` if unknown.
        name: of the parameter or buffer at fault; or of the parameter whose gradient an operation of the backward pass
            computes, if that operation has no line in the forward pass.
        constant: with ``origin="input"``: ``op`` wrote the value, as ``x[i] = nan`` and ``torch.full`` do; ``stack``
            belongs to the write, ``module``, ``phase`` and ``step`` to the first use. With ``origin="op"``: ``op``
            computed with infinities that the program wrote, and the tensor fields describe the tensor of these.
        collective: the one that brought the value from another rank, ``"c10d::allreduce_"``, into the input,
            parameter or buffer.
        stack: the user's frame first; in the backward pass, the stack of the forward call that made the node.
        backward_stack: in the backward pass, where Python ran the operation: in the ``backward`` of an
            ``autograd.Function``, or in a hook, whose frames also come first in ``stack``.
        step: training step, 1-based.
        rank: of the process in its job, if there is one.
        thread: the operating system's number of the thread.
        process: the one that made the value, if it is not the reporting one: ``"DataLoader worker 1"``.
        item: the index in the dataset that a ``DataLoader`` was reading, as text: ``"13"``.
        device, dtype, shape, strides: of the tensor that holds the value.
        nan, posinf, neginf: how many of its elements have this kind.
        first_index: of the first of them, in logical order.
        inputs: the tensor and number arguments of the operation; the one that ``hint`` is about comes first.
        compiled: the compiled region that contains the origin, ``None`` outside of regions.
        lineage: the operations after the origin, up to the harm; ``lineage_omitted`` of them are left out before
            the last.
        harm: how the value did harm.
        hint: one factual sentence about the cause, or ``None``.
        others: what the same line did it to, besides the tensor of this finding: the names of parameters.
            ``others_omitted`` of them are left out.
        repeats: how many more times the same was found.
    """

    schema: int
    level: Level
    kind: Literal["nan", "inf"]
    origin: Literal["op", "input", "parameter", "buffer", "uninit", "foreign", "compiled"]
    phase: Literal["forward", "backward", "optimizer"]
    op: str
    overload: str
    output: int
    node: str | None
    module: str | None
    module_type: str | None
    name: str | None
    constant: bool
    collective: str | None
    stack: tuple[Frame, ...]
    backward_stack: tuple[Frame, ...]
    step: int | None
    rank: int | None
    thread: int
    process: str | None
    item: str | None
    device: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nan: int
    posinf: int
    neginf: int
    first_index: tuple[int, ...]
    inputs: tuple[Input, ...]
    compiled: CompiledRegion | None
    lineage: tuple[LineageStep, ...]
    lineage_omitted: int
    harm: Harm
    hint: str | None
    others: tuple[str, ...]
    others_omitted: int
    repeats: int
    _text: str = dataclasses.field(default="", repr=False, compare=False)
    _json: str = dataclasses.field(default="", repr=False, compare=False)
    _operation: str = dataclasses.field(default="", repr=False, compare=False)
    _told_apart_by: str = dataclasses.field(default="", repr=False, compare=False)

    def __str__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        from torchnan.detection import notebook  # used nowhere else

        return notebook.html_of_report(str(self))

    @property
    def file(self) -> str | None:
        """File of the user's source line, ``None`` if unknown."""
        return self.stack[0].file if self.stack else None

    @property
    def line(self) -> int | None:
        """The user's source line, 1-based."""
        return self.stack[0].line if self.stack else None

    def to_json(self) -> str:
        """Returns a line of strict JSON, as in the log: non-finite numbers are strings."""
        return self._json

    @classmethod
    def from_json(cls, line: str | bytes) -> Finding:
        """Returns the finding of such a line, from this process or from a log of another machine.

        Raises:
            ValueError: it is not a line of this schema version; names the field, the expected value and the actual one.
        """
        from torchnan._load import _C

        return _C.finding_from_json(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line)


def operation_of(finding: Finding) -> str:
    """Returns what made the value, and where."""
    return finding._operation


def identity(finding: Finding) -> tuple[str, str, str]:
    """Returns the key by which findings count as the same, as in a running session."""
    return finding.level, finding._operation, finding._told_apart_by


def told(finding: Finding) -> str:
    """Returns the part of a finding's line that stays when it is found again."""
    return finding.to_json().rpartition(',"others":')[0]


def times_again(finding: Finding) -> int:
    """Returns how many more times it was found, in whichever tensor."""
    return finding.repeats + len(finding.others) + finding.others_omitted
