"""Optimizers with absurd hyperparameters, gradients of any scale, and a state that the program tampers with."""

from __future__ import annotations

import random

from tests.fuzz.extremes import DTYPES

SHAPES = [[(5000,)], [(100, 60), (17,)], [(70, 70), (5,), (80, 80)]]
SCALES = [*[1.0] * 3, 1e-3, 1e3, 1e10, 1e-10, 1e18, 1e-18, 1e-30, 1e30, 1e19, 1e-22, 1e37]
FORMS = ["normal", "normal", "constant", "sparse", "positive", "single"]
RATES = [*["1e-3"] * 2, "0.1", "1.0", "1e5", "1e20", "1e37", "1e-30", "0.0"]
BETAS = {
    1: [*["0.9"] * 2, "0.0", "0.5", "0.99", "1 - 1e-7", "1 - 1e-12", "0.999999"],
    2: [*["0.999"] * 2, "0.0", "0.5", "0.9", "1 - 1e-7", "1 - 1e-12", "0.999999"],
}
EPSILONS = [*["1e-8"] * 2, "0.0", "1e-30", "1e-16", "1.0", "1e-38", "2e-37", "1e-45"]
DECAYS = [*["0.0"] * 2, "0.01", "1.0", "1e5", "1e30"]
ADAM = ["Adam", "AdamW", "NAdam", "RAdam", "Adamax"]
FUSED = ["Adam", "AdamW", "SGD", "Adagrad"]
OPTIMIZERS = [*["Adam", "AdamW"] * 4, *ADAM[2:], "RMSprop", "Adagrad", "SGD", "Adadelta"]
# Changes that a program may make to the state of the first parameter, or to the options, halfway.
TAMPERINGS = [
    "state['exp_avg_sq'].view(-1)[3] = -1e-3",
    "state['exp_avg'].view(-1)[3] = math.inf",
    "state['exp_avg'].mul_(1e15)",
    "state['exp_avg_sq'].zero_()",
    "state['exp_avg_sq'].add_(1e38)",
    "state['step'].fill_(0)",
    "state['step'].fill_(-1)",
    "state['step'].fill_(1e9)",
    "state['exp_avg'], state['exp_avg_sq'] = state['exp_avg_sq'], state['exp_avg'].abs()",
    "state['exp_avg'] = state['exp_avg_sq']",
    "state['exp_avg_sq'] = state['exp_avg_sq'].t().contiguous().t() * 0.5",
    "state['square_avg'].neg_()",
    "state['sum'].fill_(-1e-3)",
    "state['momentum_buffer'].mul_(1e30)",
    "opt.load_state_dict(copy.deepcopy(opt.state_dict()))",
    *(f"group['lr'] = {rate}" for rate in ("math.inf", "math.nan", "1e38", "1e30", "-1.0")),
    "group['eps'] = 0.0",
    "group['weight_decay'] = 1e38",
    "group['betas'] = (1.0, 1.0)",
    "p0.data = p0.data * 1e3",
    "p0.grad = p0.detach()",
    "p0.grad = p0.grad.t().contiguous().t()",
]


def generate(seed: int) -> str:
    choice = random.Random(seed)
    dtype = choice.choice(["F32", *DTYPES])
    shapes = choice.choice(SHAPES)
    names = [f"p{i}" for i in range(len(shapes))]
    lines = ["def make():"]
    for name, shape in zip(names, shapes, strict=True):
        lines.append(f"    {name} = torch.nn.Parameter({_tensor(choice, shape, dtype, choice.choice(SCALES))})")
    lines += [f"    return {', '.join(names)},", "", f"def program({', '.join(names)}):"]
    lines += [f"    opt = torch.optim.{_optimizer(choice, names)}"]
    steps = choice.randint(2, 8)
    tampering = choice.choice(TAMPERINGS) if choice.random() < 0.6 else None
    scale = choice.choice(SCALES)
    for step in range(steps):
        scale = choice.choice(SCALES) if choice.random() < 0.5 else scale
        lines += [
            f"    {name}.grad = {_tensor(choice, shape, dtype, scale)} * 1"
            for name, shape in zip(names, shapes, strict=True)
        ]
        if step == steps // 2 and tampering is not None:
            lines += ["    group, state = opt.param_groups[0], opt.state[p0]"]
            lines += ["    with torch.no_grad(), contextlib.suppress(KeyError):", f"        {tampering}"]
        lines.append("    opt.step()")
        if choice.random() < 0.2:
            lines.append(f"    opt.zero_grad(set_to_none={choice.random() < 0.5})")
    return "\n".join([*lines, "    return dict(locals())"]) + "\n"


def _tensor(choice: random.Random, shape: tuple[int, ...], dtype: str, scale: float) -> str:
    form = choice.choice(FORMS)
    return f"S({choice.randrange(10**6)}, {shape}, {dtype}, {0.0 if choice.random() < 0.1 else scale!r}, {form!r})"


def _optimizer(choice: random.Random, names: list[str]) -> str:
    name = choice.choice(OPTIMIZERS)
    rate = choice.choice(RATES)
    options = {"weight_decay": choice.choice(DECAYS)}
    if name in ADAM:
        options["betas"] = f"({choice.choice(BETAS[1])}, {choice.choice(BETAS[2])})"
    if name != "SGD":
        options["eps"] = choice.choice(EPSILONS)
    if name in ("Adam", "AdamW"):
        options["amsgrad"] = str(choice.random() < 0.3)
    if name != "Adadelta" or choice.random() < 0.5:
        options["maximize"] = str(choice.random() < 0.3)
    if name in ("SGD", "RMSprop"):
        options["momentum"] = choice.choice(["0.0", "0.9", "0.999"])
    if name == "RMSprop":
        options["centered"] = str(choice.random() < 0.5)
    form = choice.choice(["plain", "plain", "foreach", "fused", "tensor"])
    if form == "foreach":
        options["foreach"] = "True"
    elif form == "fused" and name in FUSED:
        options["fused"] = "True"
    elif form == "tensor" and name in ("Adam", "AdamW"):
        rate = f"torch.tensor({rate})"
    written = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"{name}([{', '.join(names)}], lr={rate}, {written})"
