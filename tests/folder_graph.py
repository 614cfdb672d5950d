"""The folders of csrc/ and what each includes of the others, held to the order that docs/design.md gives them."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = REPOSITORY / "csrc"
HEADING = "## Folders of csrc"
INCLUDE = re.compile(r'#include ["<]([^">]+)[">]')


def ordered_folders() -> list[str]:
    """Returns the folders in the order of the list in docs/design.md: each may include those before it."""
    design = (REPOSITORY / "docs" / "design.md").read_text()
    listed = re.search(rf"^{re.escape(HEADING)}$.*?^```\w*\n(.*?)^```$", design, re.DOTALL | re.MULTILINE)
    if listed is None:
        raise SystemExit(f"docs/design.md: no fenced list under '{HEADING}'")
    return [line.split()[0].rstrip("/") for line in listed[1].splitlines() if line.strip()]


def included_folder(header: str) -> str | None:
    """Returns the folder of csrc/ that a header is in, None for a header of another project."""
    if header.startswith("torchnan/"):  # the public headers
        return "include"
    folder = header.partition("/")[0]
    return folder if "/" in header and (SOURCES / folder).is_dir() else None


def main() -> int:
    order = ordered_folders()
    present = {path.name for path in SOURCES.iterdir() if path.is_dir()}
    faults = [f"docs/design.md: there is no folder csrc/{name}" for name in order if name not in present]
    faults += [f"docs/design.md: csrc/{name} is not in the list" for name in sorted(present - set(order))]
    rank = {name: position for position, name in enumerate(order)}
    includes: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu"}:
            continue
        folder = path.relative_to(SOURCES).parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            header = INCLUDE.match(line)
            target = included_folder(header[1]) if header else None
            if target is None or target == folder or folder not in rank or target not in rank:
                continue
            includes[folder][target] += 1
            if rank[target] > rank[folder]:
                name = path.relative_to(REPOSITORY)
                faults.append(f"{name}:{number}: {folder} comes before {target} and may not include it")
    for folder in order:
        targets = ", ".join(f"{name} {includes[folder][name]}" for name in order if name in includes[folder])
        print(f"{folder:<12} -> {targets}" if targets else folder)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
