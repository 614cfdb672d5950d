"""Changes inputs whose lines are JSON in ways that leave them JSON: a fuzzer of bytes seldom gets past a parser."""

from __future__ import annotations

import json
import random
from typing import Any

import atheris

HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, float("inf"), [], {}),
    *("", "nan", "inf", "0x1", "../x", "a\0b", "\x1b[31m", "\u202e", "\ud800", "x" * 999, "os.system", "__import__"),
    *("float32", "complex32", "bits8", "float4_e2m1fn_x2", "cpu", "cuda:9", "meta", "<f8", ">c32", "C", "F"),
)


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """The mutator for libFuzzer: changes a line of the input, or its bytes if it is not JSON."""
    chance = random.Random(seed)
    lines = data.split(b"\n")
    i = chance.randrange(len(lines))
    try:
        tree = json.loads(lines[i])
    except (ValueError, RecursionError):
        return bytes(atheris.Mutate(data, max_size))
    if chance.random() < 0.2:
        return bytes(atheris.Mutate(data, max_size))
    lines[i] = json.dumps(_changed(tree, chance)).encode()
    return b"\n".join(lines)[:max_size]


def _changed(tree: Any, chance: random.Random) -> Any:
    places = list(_places(tree))
    if not places:
        return chance.choice(HOSTILE)
    holder, key = chance.choice(places)
    match chance.randrange(4):
        case 0:
            holder[key] = chance.choice(HOSTILE)
        case 1:  # a value from elsewhere
            other, name = chance.choice(places)
            holder[key] = json.loads(json.dumps(other[name]))
        case 2:
            del holder[key]
        case 3:
            holder[key] = [holder[key]] * chance.choice((0, 1, 2, 99))
    return tree


def _places(tree: Any) -> Any:
    """The positions of values: a list or an object, and the index or name in it."""
    if isinstance(tree, (dict, list)):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])
