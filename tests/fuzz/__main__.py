"""Looks for programs that are reported otherwise than they should be.

python -m tests.fuzz --seconds 600 [--seed N]   all generators in turn; the status is 1 if they find anything
python -m tests.fuzz GENERATOR SEED             one program: its source, and what is wrong with it
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import sys
import time
from collections import Counter

import torch

from tests.fuzz import claims, comparison, harm
from tests.fuzz.comparison import Disagreement
from tests.fuzz.generators import GENERATORS
from tests.fuzz.program import Program

ALL = (*GENERATORS, "harm", "claims")
PROGRAMS_PER_TURN = {"claims": 50, "harm": 1}
SECONDS_PER_PROGRAM = 120


def of_seed(generator: str, seed: int) -> tuple[str | None, int, list[Disagreement]]:
    """Returns the source of a program, how much was compared, and what disagrees."""
    if generator == "harm":
        return harm.generate(seed)[0].source, 1, harm.disagreements(seed)
    if generator == "claims":
        return (claims.generate(seed).source, *claims.disagreements(seed))
    generate, modes = GENERATORS[generator]
    source = generate(seed)
    if source is None:
        return None, 0, []
    return source, 1, comparison.disagreements(Program(generator, seed, source), modes)


def show(generator: str, seed: int) -> int:
    source, _, found = of_seed(generator, seed)
    for number, line in enumerate((source or "").splitlines(), 1):
        print(f"{number:3} {line}")
    for disagreement in found:
        print(disagreement)
    return 1 if found else 0


def search(generators: list[str], seconds: float, first: int) -> int:
    """Runs seeds from `first` on, each generator a few at a time, until the time is over."""
    end = time.monotonic() + seconds
    compared: Counter[str] = Counter()
    seeds = dict.fromkeys(generators, first)
    found = 0
    gc.freeze()
    print(f"seed {first}", flush=True)
    while time.monotonic() < end:
        for generator in generators:
            for _ in range(PROGRAMS_PER_TURN.get(generator, 1)):
                seed = seeds[generator]
                seeds[generator] += 1
                faulthandler.dump_traceback_later(SECONDS_PER_PROGRAM, exit=True)  # a hang ends the search
                _, count, disagreements = of_seed(generator, seed)
                faulthandler.cancel_dump_traceback_later()
                compared[generator] += count
                for disagreement in disagreements:
                    found += 1
                    print(disagreement, flush=True)
        gc.collect()
        gc.freeze()
    print(", ".join(f"{generator} {count:,}" for generator, count in compared.items()), f"- {found} disagreements")
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generator", nargs="?", choices=ALL)
    parser.add_argument("number", nargs="?", type=int, metavar="seed")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, help="the first of each generator; the time of day unless given")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.number is not None:
        return show(options.generator, options.number)
    first = options.seed if options.seed is not None else int(time.time()) % 10**6 * 1000
    return search([options.generator] if options.generator else list(ALL), options.seconds, first)


if __name__ == "__main__":
    sys.exit(main())
