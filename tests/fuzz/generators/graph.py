"""Random operations on tensors of mixed shapes and dtypes, in place and into views; a loss, backward, an optimizer."""

from __future__ import annotations

from tests.fuzz.builder import DTYPES, SHAPES, Builder, filled, templates, tensor_expression

OPTIMIZERS = [
    *("SGD([{}],lr={})", "Adam([{}],lr={})", "AdamW([{}],lr={},foreach=True)", "RMSprop([{}],lr={})"),
    *("SGD([{}],lr={},momentum=0.9,foreach=True)", "Adagrad([{}],lr={})", "Adam([{}],lr={},fused=True)"),
    "NAdam([{}],lr={})",
]


def generate(seed: int) -> str | None:
    builder = Builder(seed)
    choice = builder.choice
    shape, dtype, count = choice.choice(SHAPES), choice.choice(DTYPES), choice.randint(2, 4)
    for i in range(count):
        own_shape = shape if choice.random() < 0.7 else None
        own_dtype = dtype if choice.random() < 0.8 else None
        leaf = ".requires_grad_()" if i < 2 and choice.random() < 0.6 else ""
        builder.make(f"p{i}", tensor_expression(choice, own_shape, own_dtype) + leaf)
    for k in range(choice.randint(3, 16)):
        _add_statement(builder, k, count)
    if choice.random() < 0.7:
        _add_training(builder)
    return builder.source()


def _add_statement(builder: Builder, k: int, inputs: int) -> None:
    choice, recent = builder.choice, builder.recent()
    draw = choice.random()
    if draw < 0.75:
        sort = "unary" if draw < 0.45 else "binary"
        builder.add(f"v{k} = " + filled(choice, choice.choice(templates(sort)), recent), f"v{k}")
    elif draw < 0.93:
        line = filled(choice, choice.choice(templates("in_place")), recent)
        target = line.split(".")[0]
        if choice.random() < 0.5 and target in builder.names:
            builder.add(f"v{k} = {target}.clone()", f"v{k}")
            line = line.replace(target, f"v{k}", 1)
        builder.add(line)
    elif draw < 0.96:
        builder.add(f"{choice.choice(recent)} = " + filled(choice, choice.choice(templates("unary")), recent))
    elif len(builder.names) > inputs + 1:
        builder.add(f"del {builder.names.pop(choice.randrange(inputs, len(builder.names)))}")


def _add_training(builder: Builder) -> None:
    choice = builder.choice
    used = [name for name in builder.names if name.startswith("v")][-3:]
    if not used or not builder.add("loss = " + " + ".join(f"{name}.float().sum()" for name in used)):
        return
    if not builder.add("loss.backward()"):
        return
    leaves = [name for name in builder.names if name.startswith("p") and builder.scope[name].requires_grad]
    if leaves and choice.random() < 0.6:
        rate = choice.choice(["1e-3", "1.0", "1e10", "1e30"])
        builder.add("opt = torch.optim." + choice.choice(OPTIMIZERS).format(",".join(leaves), rate))
        builder.add("opt.step()")
