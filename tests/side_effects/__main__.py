"""Compares programs without and with torchnan: ``python -m tests.side_effects [NAME [VARIANT [WAY [DEVICE]]]]``.

Without a name it compares all. With ``--plain`` or ``--watched`` one case runs in this process, for a debugger, and its
facts are printed. ``--twice`` compares two runs without torchnan: a program that differs from itself shows nothing.
``--unmark`` removes from ``known_differences.json`` what no longer differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile

from tests.side_effects.comparison import Comparison
from tests.side_effects.program import KNOWN_DIFFERENCES, Case, all_cases, known_differences
from tests.side_effects.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.side_effects", description=__doc__)
    parser.add_argument("name", nargs="?")
    parser.add_argument("variant", nargs="?")
    parser.add_argument("way", nargs="?")
    parser.add_argument("device", nargs="?", default="cpu")
    how = parser.add_mutually_exclusive_group()
    for option in ("plain", "watched", "twice", "unmark"):
        how.add_argument(f"--{option}", action="store_true")
    given = parser.parse_args()

    def is_meant(case: Case) -> bool:
        asked = ((given.name, case.program.name), (given.variant, case.variant), (given.way, case.way))
        return all(one in (None, other) for one, other in asked)

    cases = [case for case in all_cases(given.device) if is_meant(case)]
    if not cases:
        parser.error("no program is called that")
    if given.plain or given.watched:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            for facet, lines in run(cases[0], watched=given.watched)["facts"].items():
                print(facet, *lines, sep="\n  ")
        return 0
    failed = differing = 0
    for case in cases:
        compared = Comparison.of_itself(case) if given.twice else Comparison.of(case)
        faults = [] if given.twice else compared.faults()
        differing += bool(compared.differences)
        failed += bool(faults)
        print(compared, *faults, sep="\n", flush=True)
        if given.unmark:
            _unmark(case, compared)
    print(f"{differing} of {len(cases)} cases differ, {failed} of them fail")
    return 1 if failed or (given.twice and differing) else 0


def _unmark(case: Case, compared: Comparison) -> None:
    known = known_differences()
    if str(case) in known:
        known[str(case)] = [facet for facet in known[str(case)] if facet in compared.differences]
        lines = [f"{json.dumps(name)}: {json.dumps(facets)}" for name, facets in known.items() if facets]
        KNOWN_DIFFERENCES.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")


if __name__ == "__main__":
    sys.exit(main())
