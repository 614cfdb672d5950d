"""The operators in torch.ops.torchnan follow PyTorch's rules for operators: schema, autograd, fake tensors,
compilation."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck
from torch.utils._pytree import tree_leaves

import torchnan  # noqa: F401 - its operators

ops = torch.ops.torchnan

REAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FLOATING = (*REAL, torch.complex64, torch.complex128)
OTHER = (torch.int64, torch.uint8, torch.bool)


def tensors(dtype: torch.dtype, requires_grad: bool) -> dict[str, torch.Tensor]:
    dense = torch.arange(6).reshape(2, 3).to(dtype)
    made = {"dense": dense, "transposed": dense.mT, "scalar": dense[0, 1].clone(), "empty": dense[:0].clone()}
    return {kind: x.detach().requires_grad_(requires_grad) for kind, x in made.items()}


def lists(dtype: torch.dtype, requires_grad: bool) -> dict[str, list[torch.Tensor]]:
    made = tensors(dtype, requires_grad)
    return {"no tensors": [], "one": [made["dense"]], "all": list(made.values())}


# Operator, its tensors, its other arguments, the supported dtypes.
OPERATORS = [
    (ops.guard.default, tensors, ("here",), FLOATING + OTHER),
    (ops.guard.list, lists, ("here",), FLOATING + OTHER),
    (ops._guard_copy.default, tensors, ("here",), FLOATING + OTHER),
    (ops.all_finite.default, tensors, (), FLOATING + OTHER),
    (ops.all_finite.list, lists, (), FLOATING + OTHER),
    (ops.count_nonfinite.default, tensors, (), FLOATING + OTHER),
    (ops.count_nonfinite.list, lists, (), FLOATING + OTHER),
    (ops.measure.default, lists, (), FLOATING),
    (ops.stats.default, None, (), ()),
]


def calls(make, rest, dtypes):
    if make is None:
        yield rest
    for dtype in dtypes:
        for requires_grad in (False, True) if dtype in FLOATING else (False,):
            for given in make(dtype, requires_grad).values():
                yield (given, *rest)


def rules(op, arguments, *, all_of_them):
    """Compilation is slow. Fake tensors learn the device from the arguments, and find none in an empty list. The last
    rule runs backward, and measure() has no derivative."""
    given = [x for x in tree_leaves(arguments) if isinstance(x, torch.Tensor)]
    yield from ("test_schema", "test_autograd_registration")
    if given:
        yield "test_faketensor"
    goes_back = op is not ops.measure.default or not any(x.requires_grad for x in given)
    if given and goes_back and (all_of_them or given[0].dtype == torch.float32):
        yield "test_aot_dispatch_dynamic"


@pytest.mark.guarantee(6)
@pytest.mark.parametrize(("op", "make", "rest", "dtypes"), OPERATORS, ids=[str(op) for op, *_ in OPERATORS])
def test_operators_pass_pytorchs_own_check(op, make, rest, dtypes, soak, figure):
    count = 0
    for arguments in calls(make, rest, dtypes):
        result = opcheck(op, arguments, test_utils=tuple(rules(op, arguments, all_of_them=soak)))
        assert set(result.values()) == {"SUCCESS"}, (arguments, result)
        count += 1
    figure("{operators} operators, {calls} calls pass torch.library.opcheck", operators=1, calls=count)


def test_every_operator_is_checked():
    known = {schema.name + "." + (schema.overload_name or "default") for schema in torch._C._jit_get_all_schemas()}
    ours = {name for name in known if name.startswith("torchnan::")}
    assert ours == {op.name() if "." in op.name() else op.name() + ".default" for op, *_ in OPERATORS}
