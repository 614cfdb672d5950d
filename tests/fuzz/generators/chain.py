"""Loops and trainings that run to the ends of the dtypes: chains in place, odd optimizers, autocast, cells of RNNs."""

from __future__ import annotations

import random

from tests.fuzz.builder import SCALARS, each, templates
from tests.fuzz.values import KINDS

EDGES = [*SCALARS, "1e38", "1e-300", "7e4", "1.1", "3.0", "0.99", "1.5", "-1.5", "2**20"]
ACTIVATIONS = ["ReLU", "GELU", "Tanh", "SiLU", "ELU", "Softplus", "Mish", "LeakyReLU", "Sigmoid"]
STEP_HOLES = {
    "{p}": ["1.0", "1e3", "1e10", "2.5", "0.5", "1e30"],
    "{n}": ["-1.0", "-1e3", "-1e30", "0.0"],
    "{q}": ["0.0", "0.1", "0.5", "0.9", "0.999", "1.0"],
    "{e}": ["0.0", "1e-5", "1e-12", "1e-30", "1.0"],
    "{d}": ["F32", "F64", "BF", "HF"],
}
OPTIMIZER_HOLES = {
    "{l}": ["1e-3", "1e-1", "10.0", "1e10", "1e20", "1e30", "1e-30"],
    "{m}": ["0.0", "0.9", "0.999", "1.0"],
    "{b}": ["0.0", "0.5", "0.9", "0.999", "0.999999"],
    "{e}": ["1e-8", "0.0", "1e-30", "1.0"],
    "{o}": ["True", "False"],
    "{d}": ["0.0", "0.1", "1e10", "1e30"],
}
LOSSES = [
    *("(y - t.to(y.dtype)).square().mean()", "F.cross_entropy(y, ix)", "F.smooth_l1_loss(y, t.to(y.dtype))"),
    *("y.abs().mean()", "F.mse_loss(y, t.to(y.dtype))", "(y * t.to(y.dtype)).sum()", "y.logsumexp(-1).mean()"),
    "F.binary_cross_entropy_with_logits(y, t.sigmoid().to(y.dtype))",
]
CLIPPINGS = [
    *("pass", "pass", "torch.nn.utils.clip_grad_norm_(ps, 1.0)", "torch.nn.utils.clip_grad_value_(ps, 1e3)"),
    "torch.nn.utils.clip_grad_norm_(ps, 1.0, foreach=False)",
]
CONTEXTS = ["contextlib.nullcontext()"] * 4 + ["torch.autocast('cpu', dtype=BF)", "torch.autocast('cpu', dtype=HF)"]


def generate(seed: int) -> str | None:
    choice = random.Random(seed)
    return _loop(choice) if choice.random() < 0.6 else _training(choice)


def _step(choice: random.Random, template: str) -> str:
    a, b, c = choice.sample("abc", 3)
    text = template.replace("{a}", a).replace("{b}", b).replace("{c}", c).replace("{w}", "w")
    text = each(choice, text, "{s}", EDGES)
    for hole, choices in STEP_HOLES.items():
        text = text.replace(hole, choice.choice(choices))
    return text


def _loop(choice: random.Random) -> str:
    kind = choice.choice(KINDS)
    lines = ["def make():"]
    for name, shape in (("a", (72, 64)), ("b", (72, 64)), ("c", (72, 64)), ("w", (64, 64))):
        own = choice.choice(["normal", "positive", "one", kind])
        lines.append(f"    {name} = T({choice.randrange(10**6)}, {shape}, F32, '{own}')")
    lines += ["    return a, b, c, w", "def program(a, b, c, w):"]
    lines += [
        "    rm, rv, ix = torch.zeros(64), torch.ones(64), torch.arange(72) % 5",
        "    cw = torch.ones(72, 72, 1) * 0.1",
    ]
    with_gradient = choice.random() < 0.4
    if with_gradient:
        lines.append("    w = w.clone().requires_grad_()")
    count = choice.choice([1, 2, 4] if with_gradient else [2, 3, 5, 10, 30, 100])
    context = choice.choice(CONTEXTS) if choice.random() < 0.2 else "contextlib.nullcontext()"
    lines += [f"    for i in range({count}):", f"      with {context}:"]
    for _ in range(choice.randint(1, 6)):
        template = choice.choice(templates("chain_steps"))
        is_in_place = "_(" in template and "=" not in template.split("(")[0]
        if not (with_gradient and is_in_place):
            lines += [f"        try: {_step(choice, template)}", "        except (RuntimeError, IndexError): pass"]
    lines.append("        pass")
    if with_gradient:
        lines += ["    y = a.float().sum() + b.float().sum() + c.float().sum()", "    if y.requires_grad: y.backward()"]
    return "\n".join([*lines, "    return dict(locals())"]) + "\n"


def _training(choice: random.Random) -> str:
    model = choice.choice(templates("chain_models")).format(act=choice.choice(ACTIVATIONS))
    optimizer = choice.choice(templates("chain_optimizers"))
    for hole, choices in OPTIMIZER_HOLES.items():
        optimizer = each(choice, optimizer, hole, choices)
    number = choice.choice(EDGES)
    spoilt = choice.choice(
        [
            *("pass", "pass", f"with torch.no_grad(): [p.mul_({number}) for p in model.parameters()]"),
            f"with torch.no_grad(): [p.fill_({number}) for p in list(model.parameters())[:1]]",
            f"for p in model.parameters(): p.data = p.data * {number}",
            "model = model.to(BF)",
        ]
    )
    scale = choice.choice(["1.0", "1e5", "1e15", "1e25", "1e-20", "1e37", "1e-40"])
    return f"""def make():
    model = {model}
    x = T({choice.randrange(10**6)}, (72, 64), F32, 'normal') * {scale}
    t = T({choice.randrange(10**6)}, (72, 64), F32, 'normal')
    return model, x, t
def program(model, x, t):
    ix = torch.arange(72) % 64
    {spoilt}
    x = x.to(next(model.parameters()).dtype)
    ps = list(model.parameters())
    opt = torch.optim.{optimizer}
    for step in range({choice.choice([1, 2, 3, 6])}):
        opt.zero_grad(set_to_none={choice.random() < 0.5})
        with {choice.choice(CONTEXTS)}:
            y = model(x)
            y = y[0] if isinstance(y, tuple) else y
            loss = {choice.choice(LOSSES)}
        loss.backward()
        {choice.choice(CLIPPINGS)}
        opt.step()
    return dict(locals())
"""
