"""Names of folders by rank and step, beside those of other ranks in the same parent folder."""

from __future__ import annotations

import re
from pathlib import Path

from torchnan.training.storage import atomic_folder


def folder_of(where: Path, rank: int, step: int) -> Path:
    """Returns ``where/rank-0-step-00000047``."""
    return where / f"{_prefix(rank)}step-{step:08d}"


def folders_of(where: Path, rank: int) -> list[Path]:
    """Returns the folders of a rank that exist, by step."""
    return sorted(where.glob(f"{_prefix(rank)}step-*"))


def all_in(where: Path) -> list[Path]:
    """Returns the folders of every rank that exist, by name."""
    return sorted(path for path in where.glob(f"{_prefix('*')}step-*") if path.is_dir())


def steps_in(where: Path) -> set[int]:
    """Returns the steps for which folders of any rank exist."""
    names = (path.name.rpartition("-")[2] for path in where.glob(f"{_prefix('*')}step-*"))
    return {int(step) for step in names if step.isdecimal()}


def step_of(path: Path) -> int:
    """Returns the step of such a folder."""
    return int(path.name.rsplit("-", 1)[1])


def same_step_of(rank: int, path: Path) -> Path:
    """Returns the folder of a rank for the same step as another rank's, whether it exists or not."""
    return path.with_name(re.sub(r"^rank-\d+-", _prefix(rank), path.name))


def remove_partial(where: Path, rank: int) -> None:
    """Removes partial folders of this rank, as :func:`torchnan.training.storage.atomic_folder.remove_partial` does.

    Raises:
        OSError: a partial folder cannot be removed.
    """
    atomic_folder.remove_partial(where, _prefix(rank))


def _prefix(rank: int | str) -> str:
    return f"rank-{rank}-"
