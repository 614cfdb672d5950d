"""Lightning's training step, run again outside of its loop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from torchnan.config.text import type_name


def validate(trainer: Trainer, module: LightningModule) -> None:
    """What the step guard cannot work with.

    Raises:
        MisconfigurationException: says what it is, and what to do.
    """
    optimizers = [type_name(optimizer) for optimizer in trainer.optimizers]
    strategy = type_name(trainer.strategy)
    if not module.automatic_optimization:
        raise MisconfigurationException(
            f"NaNCapture cannot tell where a step ends in the manual optimization of {type_name(module)}: use "
            "torchnan.StepGuard in its training_step, `with guard.watch(batch):` and `if guard.ok_to_step(loss):`."
        )
    if len(optimizers) != 1:
        raise MisconfigurationException(
            f"NaNCapture guards the steps of one optimizer, and configure_optimizers() returned {len(optimizers)} "
            f"({', '.join(optimizers) or 'none'}): use torchnan.StepGuard for each of them."
        )
    if isinstance(trainer.optimizers[0], torch.optim.LBFGS):
        raise MisconfigurationException(
            "NaNCapture cannot guard LBFGS, which runs forward and backward several times in a step."
        )
    if trainer.strategy.handles_gradient_accumulation:
        raise MisconfigurationException(
            f"NaNCapture cannot guard the steps of {strategy}, which takes them inside itself: its gradients are not "
            "to be seen."
        )
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise MisconfigurationException(
            "NaNCapture sees no batch where training_step takes a dataloader_iter: let it take the batch."
        )


class TrainingStep:
    """The step function of the guard: ``training_step`` and the backward pass as Lightning runs them, under its
    precision plugin and through its wrapper of the model, without its hooks; what it logs is not logged again.

    Args:
        trainer: whose strategy, precision and accumulation are used.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._takes_index = is_param_in_hook_signature(self._module.training_step, "batch_idx", min_args=2)

    @property
    def _module(self) -> LightningModule:
        return self._trainer.lightning_module

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """Of the precision plugin, if it has one."""
        scaler: torch.amp.GradScaler | None = getattr(self._trainer.precision_plugin, "scaler", None)
        return scaler

    def arguments(self, batch: Any, batch_idx: int) -> tuple[Any, ...]:
        """What ``training_step`` is called with, which is what is kept of a micro-batch."""
        return (batch, batch_idx) if self._takes_index else (batch,)

    def __call__(self, model: torch.nn.Module, arguments: tuple[Any, ...]) -> torch.Tensor:
        """Forward and backward; returns the detached loss, which is a zero where ``training_step`` returned None."""
        trainer, module = self._trainer, self._module
        with torch.enable_grad(), _not_logging(module):
            returned = trainer.strategy.training_step(*arguments)
            loss = returned.get("loss") if isinstance(returned, Mapping) else returned
            if loss is None:
                return torch.zeros(())
            loss = loss / trainer.accumulate_grad_batches
            scaled = loss if self.scaler is None else self.scaler.scale(loss)
            trainer.precision_plugin.backward(scaled, module, trainer.optimizers[0])
        detached: torch.Tensor = loss.detach()
        return detached


@contextlib.contextmanager
def _not_logging(module: LightningModule) -> Iterator[None]:
    own = vars(module)
    own["log"] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del own["log"]


class Schedulers:
    """All schedulers of a trainer, as the one that a snapshot has room for."""

    def __init__(self, trainer: Trainer) -> None:
        self._schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]

    def __len__(self) -> int:
        return len(self._schedulers)

    def state_dict(self) -> dict[str, Any]:
        """Of each, by its place."""
        return {str(i): scheduler.state_dict() for i, scheduler in enumerate(self._schedulers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        for i, scheduler in enumerate(self._schedulers):
            scheduler.load_state_dict(state[str(i)])
