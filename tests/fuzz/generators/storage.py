"""Tricks with memory: the records about it must end when it changes, in whatever way."""

from __future__ import annotations

import random

import torch

from tests.fuzz.builder import Builder, each, templates, tensor_expression

NUMBERS = ["1.0", "2.0", "1e10", "1e30", "1e37", "0.0", "-1.0", "1e-30", "3e38", "0.5", "1e19", "-1e38"]
KINDS = ["normal", "one", "zero", "large", "huge", "positive"]


def generate(seed: int) -> str | None:
    builder = Builder(seed)
    choice = builder.choice
    for i in range(choice.randint(1, 3)):
        shape, dtype = (
            choice.choice([(5000,), (72, 70), (5000,), (20,)]),
            choice.choice(["F32"] * 5 + ["HF", "BF", "F64"]),
        )
        builder.make(f"p{i}", tensor_expression(choice, shape, dtype, choice.choice(KINDS)))
    for k in range(choice.randint(4, 18)):
        _add_move(builder, k)
    for name in _tensors(builder)[-6:]:  # everything is read at the end
        cast = "" if builder.scope[name].is_complex() else ".float()"
        builder.add(f"r_{name} = {name}{cast} * 1.0")
    return builder.source()


def _tensors(builder: Builder) -> list[str]:
    return [name for name in builder.names if isinstance(builder.scope.get(name), torch.Tensor)]


def _filled(choice: random.Random, template: str, names: list[str], k: int) -> str:
    a = choice.choice(names)
    b = choice.choice([name for name in names if name != a] or names)
    text = template.replace("{a}", a).replace("{b}", b).replace("{n}", f"g{k}").replace("{{}}", "{}")
    return each(choice, each(choice, text, "{f}", NUMBERS), "{h}", ["1.0", "60000.0", "0.001"])


def _add_move(builder: Builder, k: int) -> None:
    choice, names = builder.choice, _tensors(builder)
    recent = names[-4:] if choice.random() < 0.6 else names
    draw = choice.random()
    for limit, sort in ((0.12, "new"), (0.27, "views"), (0.50, "uses")):
        if draw < limit:
            line = _filled(choice, choice.choice(templates(f"storage_{sort}")), recent, k)
            builder.add(f"{sort[0]}{k} = {line}", f"{sort[0]}{k}")
            return
    if draw < 0.75:
        builder.add(_filled(choice, choice.choice(templates("storage_writes")), recent, k))
    elif draw < 0.95:
        line = _filled(choice, choice.choice(templates("storage_games")), recent, k)
        if builder.add(line) and isinstance(builder.scope.get(f"g{k}"), torch.Tensor):
            builder.names.append(f"g{k}")
    elif len(builder.names) > 2 and not builder.names[-1].startswith("p"):
        builder.add(f"del {builder.names.pop()}")
