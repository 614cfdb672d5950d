"""Injects a captured step into Lightning's own loop, so that the whole program runs it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from torchnan.training.capture import Capture
from torchnan.training.storage import rank_folders


def capture_of(inject: str | Path | None, dirpath: str | Path, rank: int) -> Path | None:
    """Returns the folder of the capture to inject, or ``None``.

    Args:
        inject: a folder, or ``"auto"`` for the first one of this rank in ``dirpath``. Of another rank's folder, this
            rank's capture of the same step is preferred, if there is one.
        dirpath: parent folder of captures.
        rank: rank of this process.
    """
    if inject is None:
        return None
    if inject == "auto":
        return next(iter(rank_folders.folders_of(Path(dirpath), rank)), None)
    given = Path(inject)
    of_this_rank = rank_folders.same_step_of(rank, given)
    return of_this_rank if of_this_rank.is_dir() else given


class Injection:
    """Replaces the first micro-batches of the data loader, and their ``batch_idx``, with those of a capture.

    They are injected where they were captured: after the transfer to the device and its hooks. Hooks of the module and
    of other callbacks see only the injected ones.

    Args:
        trainer: its strategy is patched until all micro-batches are used.
        capture: its weights and buffers are loaded into the module.

    Raises:
        CaptureError: the capture belongs to another model.
    """

    def __init__(self, trainer: Trainer, capture: Capture) -> None:
        self._trainer = trainer
        self._waiting: list[tuple[Any, ...]] = list(capture.batches)
        self._now: tuple[Any, ...] = (object(),)
        self._random = capture.random
        capture.restore(trainer.lightning_module)
        strategy: Any = trainer.strategy
        self._transfer, self._step = strategy.batch_to_device, strategy.training_step
        vars(strategy).update(batch_to_device=self._batch_to_device, training_step=self._training_step)

    def arguments(self, batch: Any) -> tuple[Any, ...] | None:
        """Returns the arguments of ``training_step`` for an injected batch; ``None`` for one of the data loader."""
        return self._now if batch is self._now[0] else None

    def restore_random_states(self) -> None:
        """Restores the random states from the begin of the captured step."""
        self._random.restore()

    def end(self) -> None:
        """Removes the patch: further batches come from the data loader."""
        for name in ("batch_to_device", "training_step"):
            vars(self._trainer.strategy).pop(name, None)

    def _batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        if not self._trainer.training:
            return self._transfer(batch, device, dataloader_idx)
        if not self._waiting:
            self.end()
            return self._transfer(batch, device, dataloader_idx)
        captured, *rest = self._waiting.pop(0)
        device = device or self._trainer.strategy.root_device
        moved = self._trainer.lightning_module.transfer_batch_to_device(captured, device, dataloader_idx)
        self._now = (moved, *rest)
        return moved

    def _training_step(self, batch: Any, *rest: Any) -> Any:
        return self._step(*(self.arguments(batch) or (batch, *rest)))
