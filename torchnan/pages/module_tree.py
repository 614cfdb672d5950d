"""Arranges the modules that findings name as a tree, with the incidents in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torchnan.distributed.incidents import Incident

MAX_DEPTH = 12
MAX_MODULES = 200


@dataclasses.dataclass
class Place:
    """A module, parameter or buffer: its depth (0 is the model), its name in its parent, the incidents made in it."""

    depth: int
    name: str
    incidents: list[int]


def module_tree(story: Sequence[Incident]) -> list[Place]:
    """Returns the modules that lead to each incident, parents before children; empty if no module is known."""
    numbers: dict[tuple[str, ...], list[int]] = {}
    for number, incident in enumerate(story, 1):
        path = _path(incident)
        if path is None:
            continue
        for depth in range(len(path) + 1):
            numbers.setdefault(path[:depth], [])
        numbers[path].append(number)
    ordered = sorted(numbers.items(), key=_by)[:MAX_MODULES]
    return [Place(len(path), path[-1] if path else "model", found) for path, found in ordered]


def _path(incident: Incident) -> tuple[str, ...] | None:
    finding = incident.first
    name = finding.name if finding.origin in ("parameter", "buffer") else finding.module
    if name is None:
        return None
    parts = name.split(".") if name else []
    return (*parts[: MAX_DEPTH - 1], ".".join(parts[MAX_DEPTH - 1 :])) if len(parts) > MAX_DEPTH else tuple(parts)


def _by(item: tuple[tuple[str, ...], list[int]]) -> list[tuple[int, str]]:
    """Sorts numbers as numbers: layer 9 before layer 10."""
    return [(int(part) if part.isascii() and part.isdigit() and len(part) < 10 else -1, part) for part in item[0]]
