"""PyTorch's own sample inputs of any operator with extreme values in them; then a loss, backward and an optimizer."""

from __future__ import annotations

import functools
import random
import warnings
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.fuzz.program import seed_generator
from tests.fuzz.values import KINDS, tensor

# Random, slow, or crash by themselves on non-finite values.
SKIPPED = [
    "empty",
    "new_empty",
    "empty_like",
    "resize",
    "rand",
    "bernoulli",
    "multinomial",
    "normal",
    "geometric",
    "cauchy",
    "svd",
    "ormqr",
    "pca_lowrank",
    "linalg.eig",
    "jiterator",
    "sparse",
    "exponential",
    "uniform",
    "log_normal",
    "nn.functional.alpha_dropout",
    "stft",
    "istft",
    "special.zeta",
    "polygamma",
    "hash_tensor",
    "special.hermite",
    "special.chebyshev",
    "special.legendre",
    "special.laguerre",
    "special.shifted",
    "grid_sampler",
    "to_sparse",
    "item",
    "tolist",
    "equal",
    "allclose",
    "_segment",
    "histogramdd",
    "sgn",
]
AFTERWARDS = [
    *("pass", "pass", "outs = [o * 2.0 for o in outs]", "outs = [o.tanh() for o in outs]"),
    *("outs = [torch.nan_to_num(o) for o in outs]", "outs = [o.mul(1e20) for o in outs]"),
    "outs = [torch.where(o.isfinite(), o, torch.zeros_like(o)) for o in outs]",
    "outs = [o.detach().to(HF) for o in outs]",
]
OPTIMIZERS = [
    *("SGD(leaves,lr=1e-2)", "Adam(leaves)", "AdamW(leaves,lr=1e20)", "SGD(leaves,lr=1e30,momentum=0.9)"),
    *("Adam(leaves,fused=True)", "Adagrad(leaves)", "RMSprop(leaves)", "Adamax(leaves)", "Rprop(leaves)"),
    *("ASGD(leaves)", "NAdam(leaves)", "RAdam(leaves)", "Adadelta(leaves)"),
]


@functools.cache
def operators() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if not any(name in op.name for name in SKIPPED)]


@functools.lru_cache(maxsize=4000)
def samples(index: int, dtype: torch.dtype) -> list[Any]:
    seed_generator(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = operators()[index].sample_inputs("cpu", dtype, requires_grad=False)
        return [sample for sample, _ in zip(inputs, range(12), strict=False)]


def twisted(value: Any, choice: random.Random) -> Any:
    """Returns a tensor of the same shape and memory layout with other values."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.layout != torch.strided:
        return value
    kind = choice.choice(KINDS)
    if value.numel() == 0 or (kind == "normal" and choice.random() < 0.7):
        return value.detach().clone()
    values = tensor(choice.randrange(10**6), tuple(value.shape), value.dtype, kind)
    is_dense = value.numel() * value.element_size() <= value.untyped_storage().nbytes() and 0 not in value.stride()
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype) if is_dense else torch.empty_like(value)
    return like.copy_(values)


def call(seed: int) -> Any:
    """Returns a function, its arguments and the leaves among them, always the same for a seed; None without one."""
    choice = random.Random(seed)
    dtype = choice.choice([torch.float32] * 6 + [torch.float64, torch.bfloat16, torch.float16])
    for _ in range(10):
        index = choice.randrange(len(operators()))
        found = samples(index, dtype) if dtype in operators()[index].dtypes else []
        if found:
            break
    else:
        return None
    op, sample = operators()[index], choice.choice(found)
    flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    flat = [twisted(value, choice) for value in flat]
    leaves = []
    if op.supports_autograd and choice.random() < 0.8:
        for i, value in enumerate(flat):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout == torch.strided:
                flat[i] = value.detach().requires_grad_()
                leaves.append(flat[i])
    is_in_place = not leaves and op.inplace_variant is not None and choice.random() < 0.5
    first, args, kwargs = tree_unflatten(flat, spec)
    return op.name, op.inplace_variant if is_in_place else op.op, first, args, kwargs, leaves


def generate(seed: int) -> str | None:
    made = call(seed)
    if made is None:
        return None
    choice = random.Random(~seed)
    name, *_, leaves = made
    trains = bool(leaves) and choice.random() < 0.8
    return f"""from tests.fuzz.generators import operators
def make():
    return operators.call({seed})[1:]
def program(function, first, args, kwargs, leaves):
    opt = torch.optim.{choice.choice(OPTIMIZERS) if trains else "SGD([torch.zeros(1)])"}
    for step in range({choice.choice([1, 1, 2, 3]) if trains else 1}):
        raw = function(first, *args, **kwargs)  # {name}
        outs = [o for o in torch.utils._pytree.tree_leaves(raw) if isinstance(o, torch.Tensor)]
        outs = [o for o in outs if (o.is_floating_point() or o.is_complex()) and o.layout == torch.strided]
        {choice.choice(AFTERWARDS)}
        parts = [(o.real if o.is_complex() else o).float().sum() for o in outs]
        if {trains} and parts and sum(parts).requires_grad:
            opt.zero_grad()
            sum(parts).backward()
            opt.step()
    del function, raw
    return dict(locals())
"""
