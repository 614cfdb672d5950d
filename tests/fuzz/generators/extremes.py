"""Chains of operations of any kind on tensors at the ends of their dtype, larger than those that are always read."""

from __future__ import annotations

from tests.fuzz.builder import Builder, templates
from tests.fuzz.extremes import CONTEXTS, DTYPES, LAYOUTS, epsilon, filled, scalar, tensor, weight

SHAPES = [(65, 64), (8, 16, 33), (2, 8, 17, 17), (5000,), (4, 32, 40), (16, 300), (3, 40, 40)]
POOL = ["x0", "x1", "x2"]


def generate(seed: int) -> str | None:
    builder = Builder(seed)
    choice = builder.choice
    shape, dtype = choice.choice(SHAPES), choice.choice(DTYPES)
    with_gradient = choice.random() < 0.5
    for i, name in enumerate(POOL):
        builder.make(f"p{i}", tensor(choice, shape, dtype) + ".requires_grad_()" * with_gradient)
        builder.add(f"{name} = laid_out(p{i}, {choice.choice(LAYOUTS)!r})")
    for k in range(choice.randint(2, 12)):
        _add_call(builder, k, shape, dtype, with_gradient)
    if with_gradient and choice.random() < 0.9:
        _add_backward(builder, shape, dtype)
    return builder.source(choice.choice(CONTEXTS) if choice.random() < 0.15 else None)


def _add_call(builder: Builder, k: int, shape: tuple[int, ...], dtype: str, with_gradient: bool) -> None:
    choice = builder.choice
    names = {hole: choice.choice(POOL) for hole in "xyz"}

    def value(hole: str) -> str:
        if hole in names:
            return names[hole]
        if hole == "d":
            return str(choice.randrange(len(shape)))
        if hole == "u":
            return weight(choice)
        return scalar(choice, dtype) if hole == "s" else epsilon(choice, dtype)

    if not with_gradient and choice.random() < 0.25:
        builder.add(filled(choice, choice.choice(templates("extremes_in_place")), value))
        return
    calls = [line[3:] for line in templates("extremes") if line[0] in ("0", str(len(shape)))]
    if not builder.add(f"r{k} = {filled(choice, choice.choice(calls), value)}"):
        return
    result = builder.scope[f"r{k}"]
    if result.shape == shape and result.dtype == builder.scope[dtype]:
        builder.add(f"{choice.choice(POOL)} = r{k}")
    builder.add(f"del r{k}")


def _add_backward(builder: Builder, shape: tuple[int, ...], dtype: str) -> None:
    choice = builder.choice
    if choice.random() < 0.5:
        builder.add("(x0.sum() + x1.sum() + x2.sum()).backward()")
        return
    results = [name for name in POOL if builder.scope[name].requires_grad]
    gradients = [f"laid_out({tensor(choice, shape, dtype)}, {choice.choice(LAYOUTS)!r})" for _ in results]
    builder.add(f"torch.autograd.backward([{', '.join(results)}], [{', '.join(gradients)}])")
