"""Settings of PyTorch that choose the kernel of an operator, as a context of a program."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

Setter = Callable[[Any], Any]


def _precision(holder: Any) -> Setter:
    """Returns what sets the precision of products of float32, and returns the one before."""

    def set_to(precision: str) -> str:
        before = holder.fp32_precision
        holder.fp32_precision = precision
        return str(before)

    return set_to


def _threads(count: int) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return before


def _deterministic(on: bool) -> bool:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(on, warn_only=True)
    return before


def _flush_denormal(on: bool) -> bool:
    torch.set_flush_denormal(on)
    return False


def _autocast(dtype: str | None) -> Any:
    return torch.autocast("cpu", {"BF": torch.bfloat16, "HF": torch.float16}[str(dtype)])


# The functions return the value before; autocast is a context manager.
_SETTERS: dict[str, Setter] = {
    "matmul": _precision(torch.backends.mkldnn.matmul),
    "conv": _precision(torch.backends.mkldnn.conv),
    "rnn": _precision(torch.backends.mkldnn.rnn),
    "onednn": lambda on: torch.backends.mkldnn.set_flags(on)[0],
    "nnpack": torch.backends.nnpack.set_flags,
    "threads": _threads,
    "deterministic": _deterministic,
    "flush_denormal": _flush_denormal,
}
CHOICES: dict[str, list[Any]] = {
    "matmul": ["bf16", "tf32"],
    "conv": ["bf16", "tf32"],
    "rnn": ["bf16", "tf32"],
    "onednn": [False],
    "nnpack": [False],
    "threads": [2],
    "deterministic": [True],
    "flush_denormal": [True],
    "autocast": ["BF", "HF"],
}
NONE = "as they are"
CHANNELS_LAST = "channels_last"
ISA = "ONEDNN_MAX_CPU_ISA"
_PROGRAM = re.compile(r"^def program\(", re.MULTILINE)
_CALL = re.compile(r"^@settings\(([^)]*)\)$", re.MULTILINE)


@contextlib.contextmanager
def settings(**chosen: Any) -> Iterator[None]:
    """Sets these for a part of a program."""
    before: list[tuple[str, Any]] = []
    with contextlib.ExitStack() as stack:
        if "autocast" in chosen:
            stack.enter_context(_autocast(chosen["autocast"]))
        try:
            for name in chosen.keys() - {"autocast"}:
                before.append((name, _unpacked(_SETTERS[name](chosen[name]))))
            yield
        finally:
            for name, value in before:
                _SETTERS[name](value)


def _unpacked(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def under_settings(source: str, seed: int) -> str:
    """Returns the program under settings that the seed chooses: none in some cases, one in most, or several."""
    choice = random.Random(seed)
    if choice.random() < 0.2:
        return source
    names = choice.sample(sorted(CHOICES), choice.choice([1, 1, 1, 2, 3]))
    chosen = ", ".join(f"{name}={choice.choice(CHOICES[name])!r}" for name in names)
    return _PROGRAM.sub(f"@settings({chosen})\ndef program(", source, count=1)


def of_source(source: str) -> list[str]:
    """Returns the settings of a program, for example ["conv='bf16'", "threads=2"].

    They include an argument laid out as channels_last, and the instruction set that this process limits oneDNN to.
    """
    found = {one for call in _CALL.findall(source) for one in call.split(", ")}
    found |= {CHANNELS_LAST} if repr(CHANNELS_LAST) in source else set()
    found |= {f"{ISA}={os.environ[ISA]}"} if ISA in os.environ else set()
    return sorted(found) or [NONE]


class ClaimsBySetting:
    """How many claims of each rule were compared with a result, under each setting."""

    def __init__(self, counts: dict[str, dict[str, int]] | None = None) -> None:
        self.counts = counts if counts is not None else {}

    def add(self, rule: str, setting: str, count: int = 1) -> None:
        of_rule = self.counts.setdefault(rule, {})
        of_rule[setting] = of_rule.get(setting, 0) + count

    def add_all(self, other: ClaimsBySetting) -> None:
        for rule, by_setting in other.counts.items():
            for setting, count in by_setting.items():
                self.add(rule, setting, count)

    def total(self) -> int:
        return sum(sum(by_setting.values()) for by_setting in self.counts.values())

    def table(self) -> str:
        """Returns a Markdown table: a row for each rule, a column for each setting."""
        columns = sorted(
            collections.Counter(s for by in self.counts.values() for s in by), key=lambda s: (s != NONE, s)
        )
        lines = ["| rule | " + " | ".join(f"`{one}`" if one != NONE else one for one in columns) + " |"]
        lines.append("|---" * (len(columns) + 1) + "|")
        for rule in sorted(self.counts):
            cells = (f"{self.counts[rule].get(one, 0):,}" for one in columns)
            lines.append(f"| `{rule}` | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"
