"""Maps the column names of other tools to those of a run."""

from __future__ import annotations

from collections.abc import Iterable

from torchnan.diagnosis.run import GROUPED

# The first name that is present counts.
COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "iteration", "iter", "_step", "train/global_step"),
    "loss": ("loss", "train/loss", "loss/train", "train_loss", "train_loss_step", "training_loss"),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm", "total_norm"),
    "lr": ("lr", "learning_rate", "train/learning_rate", "train/lr"),
    "loss_scale": ("loss_scale", "train/loss_scale", "scale", "grad_scale"),
    "skipped": ("skipped",),
    "batch_digest": ("batch_digest", "batch_hash", "batch_id", "batch_index"),
    "weight_norm": ("weight_norm", "train/weight_norm", "param_norm", "params_norm"),
    "update_ratio": ("update_ratio",),
}


def match_columns(names: Iterable[str]) -> dict[str, str]:
    """Returns the column that each known name stands for: ``{"learning_rate": "lr", "weight_norm/0: decay": ...}``."""
    given = {name.strip().lower(): name for name in reversed(list(names))}
    found = {}
    for column, also in COLUMN_ALIASES.items():
        there = [given[name] for name in also if name in given]
        found.update(dict.fromkeys(there[:1], column))
    for lower, name in given.items():
        column, slash, group = lower.partition("/")
        if slash and group and column in GROUPED:
            found[name] = f"{column}/{name.strip().partition('/')[2]}"
    return found
