"""Maps the column names of other tools to those of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

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


def match_columns(names: Iterable[str], named: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Returns the column that each known name stands for: ``{"learning_rate": "lr", "weight_norm/0: decay": ...}``.

    Args:
        names: those of a table, in which Weights & Biases puts the name of the run before that of the column.
        named: the name that the user gives for a column; the others are not looked at for it.
    """
    listed = list(names)
    given = {name.strip().lower().rpartition(" - ")[2]: name for name in reversed(listed)}
    found = {name: column for column, name in named.items() if name in listed}
    for column, also in COLUMN_ALIASES.items():
        if column in named:
            continue
        there = [given[name] for name in also if name in given]
        found.update(dict.fromkeys(there[:1], column))
    for lower, name in given.items():
        column, slash, group = lower.partition("/")
        if slash and group and column in GROUPED:
            found[name] = f"{column}/{name.strip().partition('/')[2]}"
    return found
