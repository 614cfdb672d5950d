"""A slow truth that shares no code with torchnan: every argument and every result of every operation is read.

For each storage, an integer per two bytes stands for the set of origins of its contents. An origin is an operation that
made a non-finite element from finite ones, or a kind that none of its arguments had; a constant; or an external value.
Not covered: values that are written silently (running statistics), lines of backward passes of lists, uninitialized
memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import sysconfig
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Line = tuple[str, int]
Kinds = tuple[bool, bool, bool]  # NaN, +Inf, -Inf

_LIBRARIES = (torch.__file__.rsplit("/", 1)[0], sysconfig.get_paths()["stdlib"], "<frozen")

_REPLACING = frozenset(
    [
        "copy_",
        "fill_",
        "zero_",
        "normal_",
        "uniform_",
        "random_",
        "bernoulli_",
        "exponential_",
        "cauchy_",
        "geometric_",
        "log_normal_",
        "_foreach_copy_",
        "_foreach_zero_",
    ]
)
_UNWRITTEN = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
        "set_",
        "_efficientzerotensor",
        "_resize_output_",
    ]
)
_MOVING = frozenset(
    [
        "clone",
        "_to_copy",
        "copy_",
        "copy",
        "cat",
        "stack",
        "index",
        "index_select",
        "gather",
        "take",
        "embedding",
        "repeat",
        "roll",
        "flip",
        "tril",
        "triu",
        "constant_pad_nd",
        "index_put_",
        "_index_put_impl_",
        "index_put",
        "masked_fill",
        "masked_fill_",
        "where",
        "scatter",
        "scatter_",
        "_unsafe_view",
        "lift_fresh",
        "_foreach_copy_",
        "masked_select",
        "index_copy",
        "index_copy_",
        "index_fill",
        "index_fill_",
        "slice_backward",
        "select_backward",
        "sort",
        "topk",
        "masked_scatter",
        "masked_scatter_",
        "fill_diagonal_",
    ]
)
_ELEMENTWISE = frozenset(["_to_copy", "copy_", "clone", "where", "masked_fill", "masked_fill_"])
_CONSTANT = frozenset(
    ["lift_fresh", "scalar_tensor", "full", "full_like", "new_full", "fill_", "fill", "fill_diagonal_"]
)
_SHAPE_ONLY = frozenset(
    ["full_like", "new_full", "zeros_like", "ones_like", "new_zeros", "new_ones", "rand_like", "randn_like"]
)


@dataclasses.dataclass(frozen=True)
class Origin:
    source: str  # op, constant, external
    op: str
    line: Line
    node: str | None = None


def user_line() -> Line:
    """Returns the innermost line outside of libraries."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_LIBRARIES) and "/torchnan/" not in name and name != __file__:
            return name.rsplit("/", 1)[-1], frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return "?", 0


def may_hold_nonfinite(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and (value.is_floating_point() or value.is_complex())
        and value.device.type == "cpu"
        and value.numel() > 0
        and value.element_size() >= 2
    )


def nonfinite(x: torch.Tensor) -> torch.Tensor:
    return ~torch.isfinite(x)


def is_bad(value: Any) -> bool:
    return may_hold_nonfinite(value) and bool(nonfinite(value).any())


def kinds_of(x: torch.Tensor) -> Kinds:
    parts = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return bool(parts.isnan().any()), bool((parts == float("inf")).any()), bool((parts == -float("inf")).any())


def kinds_of_numbers(values: list[Any]) -> Kinds:
    parts = [part for value in values for part in ([value.real, value.imag] if isinstance(value, complex) else [value])]
    numbers = [part for part in parts if isinstance(part, float)]
    return any(n != n for n in numbers), float("inf") in numbers, -float("inf") in numbers


def joined(a: Kinds, b: Kinds) -> Kinds:
    return a[0] or b[0], a[1] or b[1], a[2] or b[2]


def _fill_unwritten_part(table: torch.Tensor, input_lengths: Any, target_lengths: Any) -> None:
    """Fills the part of ctc_loss's table that it neither writes nor reads: what it holds is chance."""
    for sample, times, targets in zip(table, input_lengths, target_lengths, strict=True):
        sample[int(times) :] = 0
        sample[:, 2 * int(targets) + 1 :] = 0


class Call:
    """The tensors of one call by their part in it; those of lists by their place in them."""

    def __init__(self, schema: Any, args: Any, kwargs: Any) -> None:
        self.name = schema.name.split("::")[1]
        self.is_paired = self.name.startswith(("_foreach_", "_fused_ada", "_fused_sgd"))
        self.reads: list[torch.Tensor] = []
        self.writes: list[torch.Tensor] = []
        self.places: dict[int, set[int]] = {}
        for i, argument in enumerate(schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            if value is not None and not (i == 0 and self.name in _SHAPE_ONLY):
                self._add(argument, value)

    def _add(self, argument: Any, value: Any) -> None:
        listed = isinstance(value, (list, tuple))
        found = [x for x in (value if listed else [value]) if isinstance(x, torch.Tensor)]
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written:
            self.writes += found
        if not (is_written and (argument.kwarg_only or self.name in _REPLACING)):
            self.reads += found
        for place, x in enumerate(found if listed else []):
            self.places.setdefault(id(x), set()).add(place)


class Truth(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.origins: list[Origin] = []
        self.nonfinite_operations = 0
        self._memory: dict[int, tuple[Any, torch.Tensor]] = {}  # by storage, which is kept: sets of origins
        self._sets: list[frozenset[int]] = [frozenset()]
        self._ids: dict[frozenset[int], int] = {frozenset(): 0}
        self._lines: dict[int, Line] = {}  # by the number of the backward node

    def origins_of(self, x: torch.Tensor) -> frozenset[int]:
        """Returns the origins of all non-finite elements; -1 stands for an unobserved one."""
        if not is_bad(x):
            return frozenset()
        known = self._provenance(x, make=False)
        if known is None:
            return frozenset([-1])
        ids = torch.unique(known[nonfinite(x)].amax(-1)).tolist()
        return frozenset().union(*(self._sets[i] if i else frozenset([-1]) for i in ids))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = Call(func._schema, args, kwargs)
        given: dict[int | None, tuple[frozenset[int], Kinds]] = {}  # by place in lists; None: of all
        for x in call.reads:
            if is_bad(x):
                own = self._given(x, func._schema.name)
                for place in (None, *call.places.get(id(x), ())):
                    before = given.get(place, (frozenset(), (False,) * 3))
                    given[place] = (before[0] | own, joined(before[1], kinds_of(x)))
        bad = [x for x in call.reads if is_bad(x)] if not call.is_paired else []
        before_call = [(self._set_ids(x), nonfinite(x)) for x in bad]
        numbers = kinds_of_numbers(tree_leaves((args, kwargs)))
        node = torch._C._current_autograd_node()
        if torch.is_grad_enabled() and node is None:
            self._lines.setdefault(torch.autograd._get_sequence_nr() - 1, user_line())
        result = func(*args, **kwargs)
        if call.name == "_ctc_loss":
            _fill_unwritten_part(result[1], *args[2:4])
        if call.name in _UNWRITTEN:
            self._forget(call.name, result)
            return result
        if call.name == "copy_" and all(x.dtype == torch.uint8 for x in args[:2]):
            self._copy_bytes(*args[:2])
        made: list[int] = []  # one origin for all results
        for place, x in enumerate(self._results(func._schema, call, result)):
            if may_hold_nonfinite(x):
                self._attribute(func, call, x, place, given, before_call, numbers, made, node)
        return result

    def _attribute(self, func, call, x, place, given, before_call, numbers, made, node) -> None:  # type: ignore[no-untyped-def]
        bad = nonfinite(x)
        if not bool(bad.any()):
            return self._write(x, bad, frozenset())
        self.nonfinite_operations += 1
        places = (call.places.get(id(x)) or {place}) if call.is_paired else {None}
        parts = [given.get(one, (frozenset(), (False,) * 3)) for one in places]
        inherited: frozenset[int] = frozenset().union(*(part[0] for part in parts))
        kinds: Kinds = (False, False, False)
        for part in parts:
            kinds = joined(kinds, part[1])
        own_kinds, explained = kinds_of(x), joined(kinds, numbers)
        is_new_kind = any(has and not given for has, given in zip(own_kinds, explained, strict=True))
        moves = call.name in _MOVING
        of_constants = bool(inherited) and all(self.origins[i].source != "op" for i in inherited) and not moves
        is_elementwise = torch.Tag.pointwise in func.tags or call.name in _ELEMENTWISE
        is_always_own = is_new_kind or of_constants or any(numbers)
        fresh = is_elementwise and bool(before_call) and self._is_uncovered(bad, before_call)
        if not inherited or fresh or (is_new_kind and not moves) or of_constants or any(numbers):
            if not made:
                from_number = any(numbers) and not (own_kinds[0] and not numbers[0] and not kinds[0])
                is_constant = call.name in ("lift_fresh", "lift") or (
                    not inherited and (call.name in _CONSTANT or from_number)
                )
                made.append(self._new_origin("constant" if is_constant else "op", func._schema.name, node))
            inherited = inherited | {made[0]}
        own = frozenset(made)
        if is_elementwise and before_call and self._write_elements(x, bad, before_call, own, is_always_own):
            return None
        return self._write(x, bad, inherited)

    # -- inputs

    def _given(self, x: torch.Tensor, op: str) -> frozenset[int]:
        own = self.origins_of(x)
        if -1 not in own:
            return own
        self.origins.append(Origin("external", op, user_line()))
        new = self._id(frozenset([len(self.origins) - 1]))
        provenance = self._provenance(x)
        assert provenance is not None
        with contextlib.suppress(RuntimeError):  # expanded: it cannot be written element by element
            provenance.copy_(torch.where(nonfinite(x).unsqueeze(-1) & (provenance == 0), new, provenance))
        return self.origins_of(x) - {-1}

    def _new_origin(self, source: str, op: str, node: Any) -> int:
        line = user_line()
        if node is not None:
            number = node._sequence_nr() if hasattr(node, "_sequence_nr") else -1
            line = self._lines.get(number, line)
        self.origins.append(Origin(source, op, line, node.name() if node is not None else None))
        return len(self.origins) - 1

    def _results(self, schema: Any, call: Call, result: Any) -> list[torch.Tensor]:
        results = result if isinstance(result, (list, tuple)) else [result]
        specified = schema.returns if len(schema.returns) == len(results) else [None] * len(results)
        found: list[torch.Tensor] = []
        for value, spec in zip(results, specified, strict=True):
            is_view = spec is not None and spec.alias_info is not None and not spec.alias_info.is_write
            if is_view and call.name not in _CONSTANT:
                continue
            listed = value if isinstance(value, (list, tuple)) else [value]
            found += [x for x in listed if isinstance(x, torch.Tensor)]
        seen = {id(x) for x in found}
        return found + [x for x in call.writes if id(x) not in seen]

    # -- memory

    def _id(self, origins: frozenset[int]) -> int:
        if origins not in self._ids:
            self._ids[origins] = len(self._sets)
            self._sets.append(origins)
        return self._ids[origins]

    def _provenance(self, x: torch.Tensor, make: bool = True) -> torch.Tensor | None:
        storage = x.untyped_storage()
        length = (storage.nbytes() + 1) // 2
        known = self._memory.get(storage._cdata)
        if known is None and not make:
            return None
        if known is None or known[1].numel() < length:
            grown = torch.zeros(length, dtype=torch.int32)
            if known is not None:
                grown[: known[1].numel()] = known[1]
            self._memory[storage._cdata] = known = (storage, grown)
        k = x.element_size() // 2
        strides = [*(stride * k for stride in x.stride()), 1]
        return known[1].as_strided([*x.size(), k], strides, x.storage_offset() * k)

    def _copy_bytes(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """The records about memory follow its bytes, as in copy.deepcopy() of a tensor: whole storages are copied."""
        known = self._memory.get(source.untyped_storage()._cdata)
        if target.shape == source.shape and target.storage_offset() == source.storage_offset() == 0:
            self._memory.pop(target.untyped_storage()._cdata, None)
            if known is not None:
                self._memory[target.untyped_storage()._cdata] = (target.untyped_storage(), known[1].clone())

    def _set_ids(self, x: torch.Tensor) -> torch.Tensor:
        known = self._provenance(x, make=False)
        return torch.zeros(x.shape, dtype=torch.int32) if known is None else known.amax(-1).clone()

    def _forget(self, name: str, result: Any) -> None:
        for x in tree_leaves(result):
            known = self._provenance(x, make=False) if may_hold_nonfinite(x) else None
            if known is not None and name not in ("resize_", "resize_as_", "set_"):
                known.zero_()

    def _write(self, x: torch.Tensor, bad: torch.Tensor, origins: frozenset[int]) -> None:
        known = self._provenance(x, make=bool(bad.any()))
        if known is not None:
            with contextlib.suppress(RuntimeError):  # expanded: it cannot be written element by element
                known.copy_(torch.where(bad, self._id(origins), 0).unsqueeze(-1).expand(known.shape))

    @staticmethod
    def _is_uncovered(bad: torch.Tensor, before_call: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
        covered = torch.zeros(bad.shape, dtype=torch.bool)
        try:
            for _, argument in before_call:
                covered = covered | argument.expand(bad.shape)
        except RuntimeError:  # no broadcasting
            return False
        return bool((bad & ~covered).any())

    def _write_elements(self, x, bad, before_call, own, is_always_own) -> bool:  # type: ignore[no-untyped-def]
        """Each bad element has the origins of the arguments' bad elements there; or else the operation's own."""
        if any(argument.dim() > x.dim() for _, argument in before_call):
            return False
        try:
            columns = [torch.where(argument, ids, 0).expand(x.shape) for ids, argument in before_call]
        except RuntimeError:
            return False
        rows, inverse = torch.unique(torch.stack(columns, -1)[bad], dim=0, return_inverse=True)
        table = []
        for row in rows.tolist():
            inherited = frozenset().union(*(self._sets[i] for i in row))
            table.append(self._id(inherited | own if own and (not inherited or is_always_own) else inherited))
        known = self._provenance(x)
        assert known is not None
        ids = torch.zeros(x.shape, dtype=torch.int32)
        ids[bad] = torch.tensor(table, dtype=torch.int32)[inverse]
        with contextlib.suppress(RuntimeError):  # expanded: it cannot be written element by element
            known.copy_(ids.unsqueeze(-1).expand(known.shape))
        return True
