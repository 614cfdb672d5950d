"""Maps the column names of other programs to those of a run."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from torchnan.config.options import OptionError, suggest
from torchnan.config.text import brief, printable
from torchnan.training.diagnosis.run import GROUPED

MAX_SHOWN = 30  # names in a message

# The first name that is present counts. Names are compared as `normal()` returns them.
COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    "step": (
        *("step", "global_step", "iteration", "iter", "_step", "train/global_step", "trainer/global_step"),
        *("num_updates", "update", "updates", "iterations", "iter_num", "n_iter", "it", "itr", "batch", "batch_idx"),
        "progress",
    ),
    "rank": ("rank", "global_rank", "process_rank", "rank_id", "dist_rank", "process_index", "local_rank"),
    "loss": (
        *("loss", "train/loss", "loss/train", "train_loss", "train_loss_step", "training_loss", "total_loss"),
        *("lm_loss", "train/total_loss", "train/lm_loss", "loss/total", "reduced_train_loss", "avg_loss"),
        *(
            "average_loss",
            "running_loss",
            "mean_loss",
            "loss_step",
            "train/loss_step",
            "epoch_loss",
            "train/epoch_loss",
        ),
        *("train_loss_epoch", "train/loss_epoch", "loss_epoch", "loss/train_step", "training/loss"),
    ),
    "grad_norm": (
        *("grad_norm", "train/grad_norm", "gradient_norm", "total_norm", "gnorm", "gradnorm", "global_grad_norm"),
        *("grad_norm_total", "grad_2.0_norm_total", "total_grad_norm", "norm"),
    ),
    "lr": ("lr", "learning_rate", "train/learning_rate", "train/lr"),
    "loss_scale": ("loss_scale", "train/loss_scale", "scale", "grad_scale"),
    "skipped": ("skipped", "number_of_skipped_iterations"),
    "eval_loss": (
        *("eval_loss", "val_loss", "valid_loss", "validation_loss", "eval/loss", "val/loss", "valid/loss", "loss/val"),
        *("validation/loss", "test_loss", "test/loss", "dev_loss", "loss/test", "val_loss_epoch", "loss/validation"),
    ),
    "nan_iterations": ("number_of_nan_iterations", "nan_iterations"),
    "epoch": ("epoch", "train/epoch", "epochs"),
    "batch_digest": ("batch_digest", "batch_hash", "batch_id", "batch_index"),
    "weight_norm": ("weight_norm", "train/weight_norm", "param_norm", "params_norm"),
    "update_ratio": ("update_ratio",),
}

EVALUATION = frozenset(("val", "valid", "validation", "eval", "evaluation", "test", "dev"))
_LOSS_WORDS = frozenset(("loss", "losses", "nll", "objective", "cost"))
_NO_LOSS = frozenset(
    ("scale", "scaler", "weight", "weights", "coef", "coefficient", "py", "lr", "ratio", "grad", "best")
)
_TOTALS = frozenset(("total", "overall", "sum"))
_RATE = re.compile(r"(?:^|[/_.])(?:optim\d*_)?(?:lr|learning_rate)\d*(?:$|[/_.])")
_WANDB_RANGE = ("__min", "__max")  # beside the mean of a sampled column


@functools.lru_cache(maxsize=4096)
def normal(name: str) -> str:
    """Returns a name as names are compared: ``"run-7 - Train/Lm Loss"`` becomes ``"train/lm_loss"``."""
    return re.sub(r"[\s-]+", "_", name.strip().strip("'\"").lower().rpartition(" - ")[2])


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name))


def is_known(name: str) -> bool:
    """Returns whether a normal name is one of the known names of a column."""
    return name in _KNOWN


_KNOWN = frozenset(name for names in COLUMN_ALIASES.values() for name in names)


@functools.lru_cache(maxsize=4096)
def is_loss(name: str) -> bool:
    """Returns whether a normal name is that of a loss, or of a part of one: ``"train/box_loss"``, ``"mse_loss"``."""
    words = _words(name)
    return bool(words & _LOSS_WORDS or any(word.endswith("loss") for word in words)) and not words & _NO_LOSS


@functools.lru_cache(maxsize=4096)
def is_watched(name: str) -> bool:
    """Returns whether a NaN in a column of this name is one of the training, whether it is read or not."""
    lower = normal(name)
    return is_loss(lower) or bool(_norms([lower]))


class AskedColumns(dict[str, str]):
    """The names that the user gives for columns, which are to be compared with those of the source.

    Attributes:
        names: of the source, as far as it was read.
        met: columns whose name is one of them.
    """

    def __init__(self, named: Mapping[str, str]) -> None:
        super().__init__(named)
        self.names: dict[str, None] = {}
        self.met: set[str] = set()

    def check(self, source: object) -> None:
        """Raises OptionError for a name that the source does not have."""
        for column, name in self.items():
            if self.names and column not in self.met:
                shown = [printable(one, 60) for one in list(self.names)[:MAX_SHOWN]]
                more = f" and {len(self.names) - MAX_SHOWN:,} more" if len(self.names) > MAX_SHOWN else ""
                raise OptionError(
                    f"{column}={brief(name)} cannot be used: {source} has no column of that name."
                    f"{suggest(name, self.names)} Its columns are {', '.join(shown)}{more}."
                )


def match_columns(names: Iterable[str], named: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Returns the column for each known name: ``{"learning_rate": "lr", "weight_norm/0: decay": ...}``.

    If there are only parts of a loss, the loss is their sum: they are ``"loss#0"``, ``"loss#1"``, and so on.

    Args:
        names: those of a table; Weights & Biases puts the name of the run before that of the column.
        named: the name that the user gives for a column; no other name is used for it.
    """
    listed = list(names)
    if isinstance(named, AskedColumns):
        named.names.update(dict.fromkeys(listed))
    given = {normal(name): name for name in reversed(listed) if not normal(name).endswith(_WANDB_RANGE)}
    found: dict[str, str] = {}
    for column, name in named.items():
        exact = name if name in listed else given.get(normal(name))
        if exact is not None:
            found[exact] = column
            if isinstance(named, AskedColumns):
                named.met.add(column)
    for column, also in COLUMN_ALIASES.items():
        if column in named:
            continue
        there = [given[name] for name in also if name in given and given[name] not in found]
        found.update(dict.fromkeys(there[:1], column))
    for lower, name in given.items():
        column, slash, group = lower.partition("/")
        if slash and group and column in GROUPED:
            found[name] = f"{column}/{name.strip().partition('/')[2]}"
    for column, guess in (("loss", _losses), ("eval_loss", _evaluation_losses), ("grad_norm", _norms), ("lr", _rates)):
        if column not in found.values() and column not in named and not _has_group(found, column):
            guessed = guess([name for name in given if given[name] not in found])
            several = len(guessed) > 1
            found.update({given[name]: f"{column}#{i}" if several else column for i, name in enumerate(guessed)})
    return found


def _has_group(found: Mapping[str, str], column: str) -> bool:
    return any(known.startswith(f"{column}/") for known in found.values())


def _losses(names: list[str]) -> list[str]:
    return _whole_loss([name for name in names if is_loss(name) and not _words(name) & EVALUATION])


def _evaluation_losses(names: list[str]) -> list[str]:
    return _whole_loss([name for name in names if is_loss(name) and _words(name) & EVALUATION])


def _whole_loss(names: list[str]) -> list[str]:
    """Returns the names of a loss: of the total, if there is one, else of all its parts."""
    whole = [name for name in names if _words(name) & _TOTALS or normal(name.rpartition("/")[2]) == "loss"]
    return whole[:1] or names


def _norms(names: list[str]) -> list[str]:
    found = [n for n in names if {"grad", "norm"} <= _words(n) or {"gradient", "norm"} <= _words(n) or "gnorm" in n]
    totals = [name for name in found if _words(name) & _TOTALS]
    return totals[:1] or (found if len(found) == 1 else [])


def _rates(names: list[str]) -> list[str]:
    return [name for name in names if _RATE.search(name)][:1]
