"""A folder for a rank and a step, beside those of other steps and of ranks that write to the same place."""

from __future__ import annotations

import re
from pathlib import Path

from torchnan.storage import atomic_folder


def folder_of(where: Path, rank: int, step: int) -> Path:
    """``where/rank-0-step-00000047``."""
    return where / f"{_of(rank)}step-{step:08d}"


def folders_of(where: Path, rank: int) -> list[Path]:
    """Those of a rank that there are, by step."""
    return sorted(where.glob(f"{_of(rank)}step-*"))


def step_of(path: Path) -> int:
    """The step of such a atomic_folder."""
    return int(path.name.rsplit("-", 1)[1])


def same_step_of(rank: int, path: Path) -> Path:
    """The folder that this rank has beside another's, whether it is there or not."""
    return path.with_name(re.sub(r"^rank-\d+-", _of(rank), path.name))


def remove_partial(where: Path, rank: int) -> None:
    """As :func:`torchnan.storage.atomic_folder.remove_partial`, of this rank alone.

    Raises:
        OSError: a partial folder cannot be removed.
    """
    atomic_folder.remove_partial(where, _of(rank))


def _of(rank: int) -> str:
    return f"rank-{rank}-"
