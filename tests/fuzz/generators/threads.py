"""Several threads: some take part in the detection, others write from outside; they take turns in a fixed order."""

from __future__ import annotations

import random

from tests.fuzz.builder import SCALARS, each
from tests.fuzz.values import KINDS

WRITES = [
    "{x}.fill_({s})",
    "{x}.mul_({s})",
    "{x}[3:40] = {s}",
    "{x}.copy_({y})",
    "{x}.view(torch.int32)[7] = 0x7f800001",
]
USES = [
    "({x} * {s}).sum().item()",
    "{x} = {x} + {y}",
    "{x} = ({x} * 0.5).relu()",
    "{x}.add_({y})",
    "{x} = {x} @ {y}.t()",
]


def generate(seed: int) -> str | None:
    choice = random.Random(seed)
    kinds = [choice.choice(KINDS) for _ in "xy"]
    lines = ["def make():"]
    lines += [
        f"    {name} = T({choice.randrange(10**6)}, (72, 72), F32, '{kind}')"
        for name, kind in zip("xy", kinds, strict=True)
    ]
    lines += ["    return x, y", "def program(x, y):", "    def elsewhere(function):"]
    lines += ["        thread = threading.Thread(target=function)", "        thread.start(); thread.join()"]
    for _ in range(choice.randint(3, 12)):
        names = choice.sample("xy", 2)
        is_write = choice.random() < 0.4
        text = choice.choice(WRITES if is_write else USES).replace("{x}", names[0]).replace("{y}", names[1])
        text = each(choice, text, "{s}", SCALARS)
        if is_write and choice.random() < 0.7 and "=" not in text:
            text = f"elsewhere(lambda: {text})"
        lines.append(f"    {text}")
    lines += ["    z = (x * 1.0, y * 1.0)", "    return dict(x=x, y=y, z=z)"]
    return "\n".join(lines) + "\n"
