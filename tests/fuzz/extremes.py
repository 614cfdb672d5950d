"""Numbers, layouts and settings at which an operator may go wrong, as the text of programs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from tests.fuzz.program import NAMES
from tests.fuzz.values import FORMS, scales

DTYPES = ["F32"] * 3 + ["F64", "HF", "BF"]
PLAIN_SCALARS = ["0.5", "1", "2", "-1", "0", "-0.0", "3", "0.1", "1 / 3", "-2.5", "1e-3", "1e3", "True", "1 - 1e-12"]
# At the ends of a dtype, and numbers that a dtype rounds to zero, to one, or to infinity.
EXTREME_SCALARS = [
    *("1e-8", "2.9e-8", "6e-8", "6.2e-5", "1 - 1e-4", "1 - 1e-8", "65504.0", "65519.9", "65520.0", "-7e4", "1e-6"),
    *("1e-38", "1e-40", "1.4e-45", "7e-46", "1e-46", "1e-50", "5e-324", "1e-30", "1e30", "3e38", "-3e38", "3.4e38"),
    *("3.4028235677e38", "1e39", "1e300", "-1e300", "1.7e308", "-(2**40)", "2**62", "2**127", "2.0**-126"),
    *("math.inf", "-math.inf", "math.nan"),
]
WEIGHTS = ["0", "1", "0.5", "0.1", "0.9", "0.999", "1e-3", "1e-9", "1 - 1e-9", "1 - 1e-3", "2.0**-30", "0.3333333333"]
EPSILONS = ["1e-5", "1e-5", "1e-12", "1e-20", "1e-38", "0.0", "1.0", "1e-3"]
LAYOUTS = ["contiguous"] * 5 + [
    "transposed",
    "channels_last",
    "expanded",
    "expanded_last",
    "strided",
    "offset",
    "padded",
]
CONTEXTS = [
    *("flushing_denormals()", "flushing_denormals()", "torch.backends.mkldnn.flags(enabled=False)"),
    *("matmul_precision('medium')", "torch.inference_mode()"),
]
CHOICE = re.compile(r"<([^<>]+)>")
HOLE = re.compile(r"\{([^{}]+)\}")


def filled(choice: random.Random, line: str, value: Callable[[str], str]) -> str:
    """Fills a template: one of <a|b>, and for {hole} what `value` returns."""
    line = CHOICE.sub(lambda found: choice.choice(found[1].split("|")), line)
    return HOLE.sub(lambda found: value(found[1]), line)


def any_scale(choice: random.Random, dtype: str) -> float:
    return choice.choice([*scales(NAMES[dtype]), 2.0 ** choice.uniform(-14, 14)])


def scalar(choice: random.Random, dtype: str) -> str:
    draw = choice.random()
    if draw < 0.45:
        return choice.choice(PLAIN_SCALARS)
    if draw < 0.75:
        return choice.choice(EXTREME_SCALARS)
    return repr(choice.choice([1, 1, -1]) * any_scale(choice, dtype))


def weight(choice: random.Random) -> str:
    """Returns a number from 0 to 1."""
    return choice.choice([*WEIGHTS, repr(choice.random())])


def epsilon(choice: random.Random, dtype: str) -> str:
    return choice.choice([*EPSILONS, repr(any_scale(choice, dtype))])


def tensor(
    choice: random.Random, shape: tuple[int, ...], dtype: str, scale: float | None = None, form: str | None = None
) -> str:
    scale = any_scale(choice, dtype) if scale is None else scale
    return f"S({choice.randrange(10**6)}, {shape}, {dtype}, {scale!r}, {form or choice.choice(FORMS)!r})"
