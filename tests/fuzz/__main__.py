"""Looks for programs that are reported otherwise than they should be.

python -m tests.fuzz --seconds 600 [--seed N]   all generators in turn; the status is 1 if they find anything
python -m tests.fuzz --continue FILE            the same from where the file says that the last search ended
python -m tests.fuzz GENERATOR SEED             one program: its source, and what is wrong with it
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import gc
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from time import monotonic

import torch

from tests.fuzz import comparison, harm
from tests.fuzz.comparison import Disagreement
from tests.fuzz.generators import GENERATORS, operators
from tests.fuzz.program import Program
from tests.fuzz.settings import ISA, ClaimsBySetting, of_source, under_settings

ALL = (*GENERATORS, "harm")
PROGRAMS_PER_TURN = {"rules": 20}
UNDER_OWN_SETTINGS = ("compiled",)  # each would be another compilation
# The instruction sets that oneDNN is limited to, one for each process in turn; "" is that of the processor.
INSTRUCTION_SETS = ("", "AVX2", "AVX512_CORE", "SSE41")
SECONDS_PER_PROGRAM = 600  # only a hang reaches them, also on a busy machine
TURNS_PER_PROCESS = 200


def of_seed(
    generator: str, seed: int, by_setting: ClaimsBySetting | None = None
) -> tuple[str | None, int, list[Disagreement]]:
    """Returns the source of a program, how much was compared, and what disagrees; counts the claims by setting."""
    if generator == "harm":
        return harm.generate(seed)[0].source, 1, harm.disagreements(seed)
    generate, modes = GENERATORS[generator]
    source = generate(seed)
    if source is None:
        return None, 0, []
    if generator not in UNDER_OWN_SETTINGS:
        source = under_settings(source, seed)
    program = Program(generator, seed, source)
    found = comparison.disagreements(program, modes)
    if not modes.claims:
        return source, 1, found
    claims, internal_errors = comparison.claims_of(program)
    for claim in claims if by_setting is not None else ():
        for setting in of_source(source):
            by_setting.add(rule_of(claim.op), setting)
    return source, len(claims), comparison.wrong_claims(program, claims, internal_errors) + found


def rule_of(op: str) -> str:
    """Returns the name of an operator's rule: that of aten::_foreach_add_ is add."""
    name = op.split("::")[1].removeprefix("_foreach_")
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def show(generator: str, seed: int) -> int:
    source, _, found = of_seed(generator, seed)
    for number, line in enumerate((source or "").splitlines(), 1):
        print(f"{number:3} {line}")
    for disagreement in found:
        print(disagreement)
    return 1 if found else 0


_BYTES_OF_PROGRESS = 1 << 18


@dataclasses.dataclass
class Progress:
    """How far a search is; kept in a file, so that it outlives a process that dies."""

    seeds: dict[str, int]  # the next of each generator
    compared: dict[str, int]
    found: int = 0
    running: str = ""
    claims: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)  # by rule and setting

    def save(self, file: int) -> None:
        os.pwrite(file, json.dumps(dataclasses.asdict(self)).encode().ljust(_BYTES_OF_PROGRESS), 0)

    @classmethod
    def load(cls, file: int) -> Progress:
        return cls(**json.loads(os.pread(file, _BYTES_OF_PROGRESS, 0)))


@dataclasses.dataclass
class Totals:
    """The totals of all searches of a file."""

    first: dict[str, int] = dataclasses.field(default_factory=dict)  # the first seed of each generator
    seeds: dict[str, int] = dataclasses.field(default_factory=dict)  # the next of each generator
    compared: dict[str, int] = dataclasses.field(default_factory=dict)
    found: int = 0
    claims: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)  # by rule and setting

    def add(self, progress: Progress) -> None:
        self.seeds.update(progress.seeds)
        for generator, count in progress.compared.items():
            self.compared[generator] = self.compared.get(generator, 0) + count
        self.found += progress.found
        claims = ClaimsBySetting(self.claims)
        claims.add_all(ClaimsBySetting(progress.claims))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Totals:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()


def summary(compared: dict[str, int], found: int) -> str:
    counts = ", ".join(f"{generator} {count:,}" for generator, count in compared.items())
    return f"{counts} - {found} disagreements"


def take_turns(progress: Progress, file: int, end: float) -> None:
    """Runs programs, each generator a few at a time, until the time is over or the process has run its share."""
    by_setting = ClaimsBySetting(progress.claims)
    for _ in range(TURNS_PER_PROCESS):
        for generator in progress.seeds:
            for _ in range(PROGRAMS_PER_TURN.get(generator, 1)):
                seed = progress.seeds[generator]
                progress.seeds[generator], progress.running = seed + 1, generator
                progress.save(file)
                faulthandler.dump_traceback_later(SECONDS_PER_PROGRAM, exit=True)
                _, count, disagreements = of_seed(generator, seed, by_setting)
                faulthandler.cancel_dump_traceback_later()
                progress.compared[generator] += count
                progress.found += len(disagreements)
                for disagreement in disagreements:
                    print(f"{_environment()}{disagreement}", flush=True)
        gc.collect()
        gc.freeze()
        if monotonic() > end:
            break
    progress.save(file)


def _limit_instructions(instruction_set: str) -> None:
    """Limits oneDNN in the processes that start from here on: it reads this when it first computes."""
    os.environ.pop(ISA, None)
    if instruction_set:
        os.environ[ISA] = instruction_set


def _environment() -> str:
    return f"{ISA}={os.environ[ISA]} " if ISA in os.environ else ""


def search(generators: list[str], seconds: float, first: int, done: Path | None = None) -> int:
    """Runs seeds from `first` on until the time is over, in processes of their own: one that dies costs one program.

    Goes on after the seeds that the file `done` lists, and adds these to it.
    """
    end = monotonic() + seconds
    progress = Progress(dict.fromkeys(generators, first), dict.fromkeys(generators, 0))
    totals = Totals.load(done) if done is not None else Totals()
    progress.seeds.update({name: seed for name, seed in totals.seeds.items() if name in progress.seeds})
    totals.first = progress.seeds | totals.first
    print("seeds " + ", ".join(f"{name} {seed}" for name, seed in progress.seeds.items()), flush=True)
    if "operators" in generators:
        operators.operators()  # imported once
    gc.freeze()
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryFile() as file:
        for instruction_set in itertools.cycle(INSTRUCTION_SETS):
            if monotonic() >= end:
                break
            _limit_instructions(instruction_set)
            process = fork.Process(target=take_turns, args=(progress, file.fileno(), end))
            process.start()
            process.join()
            progress = Progress.load(file.fileno())
            if process.exitcode != 0:
                progress.found += 1
                seed = progress.seeds[progress.running] - 1
                print(
                    f"{_environment()}died ({process.exitcode}): python -m tests.fuzz {progress.running} {seed}",
                    flush=True,
                )
    _limit_instructions("")
    print(summary(progress.compared, progress.found), flush=True)
    if progress.claims:
        print("claims compared with a result, by rule and setting:\n" + ClaimsBySetting(progress.claims).table())
    if done is not None:
        totals.add(progress)
        totals.save(done)
        print("in all: " + summary(totals.compared, totals.found), flush=True)
    return 1 if progress.found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generator", nargs="?", choices=ALL)
    parser.add_argument("number", nargs="?", type=int, metavar="seed")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, help="the first of each generator; the time of day unless given")
    parser.add_argument("--continue", type=Path, dest="done", metavar="FILE", help="the seeds done, and the totals")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.number is not None:
        return show(options.generator, options.number)
    first = options.seed if options.seed is not None else int(time.time()) % 10**6 * 1000
    return search([options.generator] if options.generator else list(ALL), options.seconds, first, options.done)


if __name__ == "__main__":
    sys.exit(main())
