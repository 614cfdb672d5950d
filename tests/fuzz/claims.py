"""Single calls of operators with bound rules: each claim of a rule is held against the result."""

from __future__ import annotations

import random
import warnings
from typing import Any

from tests.fuzz.builder import DTYPES, filled, templates
from tests.fuzz.comparison import Disagreement
from tests.fuzz.program import NAMES, Program, seed_generator
from tests.fuzz.values import KINDS
from tests.support.bound_samples import Claim, collecting

SHAPES = [(8, 7), (40, 33), (72, 64), (2, 3, 12, 12), (1, 3, 40, 40), (64, 3), (1, 300)]


def generate(seed: int) -> Program:
    """Returns a program of one call on two tensors, a and b."""
    choice = random.Random(seed)
    sort = choice.choice(["claims", "claims", "unary", "binary", "in_place"])
    call = filled(choice, choice.choice(templates(sort)).replace("{a}", "a").replace("{b}", "b"), ["a"])
    shape, dtype = choice.choice(SHAPES), choice.choice(DTYPES)
    other = dtype if choice.random() < 0.85 else choice.choice(DTYPES)
    is_constant = choice.random() < 0.25
    lines = []
    for name, its_dtype in (("a", dtype), ("b", other)):
        own, kind = choice.randrange(10**6), choice.choice(KINDS)
        value = f"T({own}, {shape}, {its_dtype}, '{kind}')"
        if is_constant:
            value = f"torch.full({shape}, float(T({own}, (), {its_dtype}, '{kind}')), dtype={its_dtype})"
        lines.append(f"{name} = {value}")
    return Program("claims", seed, "\n".join([*lines, f"r = {call}"]) + "\n")


def claims_of(program: Program) -> list[Claim]:
    """Returns what the rules claim while the program runs; a call may be refused."""
    claims: list[Claim] = []
    *inputs, call = program.source.splitlines()
    names: dict[str, Any] = dict(NAMES)
    seed_generator(program.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec("\n".join(inputs), names)
        with collecting(claims):
            names["a"], names["b"] = names["a"].clone(), names["b"].clone()
            try:
                exec(call, names)
            except Exception:  # noqa: BLE001 (whatever the call raises, claims were made before)
                return claims
    return claims


def disagreements(seed: int) -> tuple[int, list[Disagreement]]:
    """Returns how many claims were made, and those that do not hold."""
    program = generate(seed)
    claims = claims_of(program)
    detail = program.source.replace("\n", "; ")
    wrong = [Disagreement(program, f"claim of {claim.op}", f"{claim} {detail}") for claim in claims if not claim.holds]
    return len(claims), wrong
