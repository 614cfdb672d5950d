"""Every operator of PyTorch's own samples with values at which functions have poles, edges and no room left."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import torchnan
from tests.support.hint_truth import Call, CallRecorder, wrong_in

UNDETERMINED = (
    "empty",
    "rand",
    "normal",
    "bernoulli",
    "multinomial",
    "uniform",
    "geometric",
    "cauchy",
    "exponential",
    "dropout",
)
EDGES = (0.0, 1.0, -1.0, 0.5, -2.5, 100.0, 1e30, 3e38, -3e38, 1e-30, 1e-45)


@dataclasses.dataclass(frozen=True)
class Told:
    """The report of one operation: the hint, and the errors in it."""

    op: str
    node: str
    hint: str
    wrong: str | None
    inputs: str


@functools.cache
def operators() -> dict[str, Any]:
    """Returns the operators of float32 by name."""
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds

    named = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}
    return {
        name: op
        for name, op in named.items()
        if torch.float32 in op.supported_dtypes("cpu") and not any(word in name for word in UNDETERMINED)
    }


def mixed(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Returns edges at random, of the shape of x."""
    generator = torch.Generator().manual_seed(seed)
    return torch.tensor(EDGES)[torch.randint(len(EDGES), x.shape, generator=generator)].reshape(x.shape)


def fillings(seed: int) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    for value in EDGES:
        yield lambda x, value=value: torch.full_like(x, value)
    for i in range(3):
        yield lambda x, i=i: mixed(x, seed + i)


def sweep(name: str, seed: int, samples: int) -> Iterator[Told]:
    """Runs samples of an operator, forward and backward, on each filling: all tensors, the first, and the others."""
    op = operators()[name]
    torch.manual_seed(seed)
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd), samples):
        for fill, (first, rest) in itertools.product(fillings(seed), ((True, True), (True, False), (False, True))):

            def arguments(fill=fill, first=first, rest=rest, sample=sample) -> tuple[Any, Any, Any]:
                put = functools.partial(_filled, fill=fill)
                own = tree_map(put if first else _filled, sample.input)
                args, kwargs = tree_map(put if rest else _filled, (sample.args, sample.kwargs))
                return own, args, kwargs

            yield from _told(lambda run=arguments: _run(op, *run()))


def _filled(value: Any, fill: Callable[[torch.Tensor], torch.Tensor] = torch.clone) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.layout != torch.strided:
        return value
    return fill(value.detach()).requires_grad_(value.requires_grad)


def _run(op: Any, own: Any, args: Any, kwargs: Any) -> Any:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = op.op(own, *args, **kwargs)
            roots = [one for one in tree_leaves(made) if isinstance(one, torch.Tensor) and one.requires_grad]
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, AssertionError):
            return None  # it rejects such values
    return made


def _told(run: Callable[[], Any]) -> Iterator[Told]:
    with torchnan.detect(action="log", when="origin", max_findings=50) as watch:
        run()
    made = [finding for finding in watch.findings if finding.origin == "op"]
    if not made:
        return
    with CallRecorder() as recorder:
        run()
    for finding in made:
        wrong = None
        if finding.hint:
            calls = [call for call in recorder.calls if _is_of(call, finding)]
            complaints = [wrong_in(finding.hint, call, finding.output) for call in calls]
            wrong = min(complaints, key=lambda one: one is not None, default=None)
        inputs = ", ".join(f"{one.name} {one.min}..{one.max}" for one in finding.inputs)
        yield Told(finding.op.removeprefix("aten::"), finding.node or "", finding.hint or "", wrong, inputs)


def _is_of(call: Call, finding: Any) -> bool:
    if call.function.name().split(".")[0] != finding.op or finding.output >= len(call.results):
        return False
    result = call.results[finding.output]
    if tuple(result.shape) != tuple(finding.shape):
        return False
    return result.isnan().sum() == finding.nan and result.isinf().sum() == finding.posinf + finding.neginf
