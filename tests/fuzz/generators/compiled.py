"""Functions of several operations, compiled by Inductor, or by a backend that runs the graph as it is."""

from __future__ import annotations

from tests.fuzz.builder import DTYPES, SHAPES, Builder, filled, templates, tensor_expression

COMPILE = "torch.compile(f, backend='{}', dynamic=False)"
BACKENDS = ["aot_eager", "aot_eager", "aot_eager", "eager", "inductor"]


def generate(seed: int) -> str | None:
    builder = Builder(seed)
    choice = builder.choice
    shape, dtype = choice.choice(SHAPES), choice.choice(DTYPES)
    inputs = [f"p{i}" for i in range(choice.randint(1, 3))]
    for name in inputs:
        leaf = ".requires_grad_()" if choice.random() < 0.6 else ""
        builder.make(name, tensor_expression(choice, shape, dtype) + leaf)
    body: list[tuple[str, str]] = []
    for k in range(choice.randint(2, 8)):
        # Each takes the one before: what nothing uses is not compiled.
        last = builder.names[-1]
        sort = "unary" if choice.random() < 0.6 else "binary"
        template = choice.choice(templates(sort)).replace("{a}", last, 1)
        expression = filled(choice, template, builder.recent())
        if last in expression and builder.add(f"v{k} = {expression}", f"v{k}"):
            body.append((f"v{k}", expression))
    if not body:
        return None
    return _source(builder.made(), inputs, body, choice.choice(BACKENDS))


def _source(made: list[str], inputs: list[str], body: list[tuple[str, str]], backend: str) -> str:
    names, result = ", ".join(inputs), body[-1][0]
    lines = ["def make():", *(f"    {line}" for line in made), f"    return {names},", ""]
    lines += [f"def program({names}):", f"    def f({names}):"]
    lines += [f"        {name} = {expression}" for name, expression in body]
    lines += [f"        return {result}", f"    f = {COMPILE.format(backend)}", f"    y = f({names})"]
    lines += ["    if y.requires_grad: y.float().sum().backward()"]
    kept = ", ".join(f"{name}={name}" for name in [*inputs, "y"])
    return "\n".join([*lines, f"    return dict({kept})"]) + "\n"
