"""Runs Lightning's training step again, outside its loop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from torchnan.config.text import type_name


def validate_trainer(trainer: Trainer, module: LightningModule) -> None:
    """Validates that StepGuard supports a trainer and its module.

    Raises:
        MisconfigurationException: it does not, with the reason and an alternative.
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
            f"NaNCapture cannot guard the steps of {strategy}, which runs them internally and hides its gradients."
        )
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise MisconfigurationException(
            "NaNCapture cannot see the batch if training_step takes a dataloader_iter: let it take the batch."
        )


class TrainingStep:
    """The step function of the guard: runs ``training_step`` and backward as Lightning does, without hooks or logging.

    Args:
        trainer: its strategy, precision plugin and gradient accumulation are used.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._takes_index = is_param_in_hook_signature(self._module.training_step, "batch_idx", min_args=2)

    @property
    def _module(self) -> LightningModule:
        return self._trainer.lightning_module

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The scaler of the precision plugin, if it has one."""
        scaler: torch.amp.GradScaler | None = getattr(self._trainer.precision_plugin, "scaler", None)
        return scaler

    def arguments(self, batch: Any, batch_idx: int) -> tuple[Any, ...]:
        """Returns the arguments of ``training_step``, which are saved for each micro-batch."""
        return (batch, batch_idx) if self._takes_index else (batch,)

    def __call__(self, model: torch.nn.Module, arguments: tuple[Any, ...]) -> torch.Tensor:
        """Runs forward and backward. Returns the detached loss, or zero if ``training_step`` returned None."""
        trainer, module = self._trainer, self._module
        with torch.enable_grad(), _logging_disabled(module):
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
def _logging_disabled(module: LightningModule) -> Iterator[None]:
    own = vars(module)
    own["log"] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del own["log"]


class Schedulers:
    """Combines all schedulers of a trainer into one stateful object."""

    def __init__(self, trainer: Trainer) -> None:
        self._schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]

    def __len__(self) -> int:
        return len(self._schedulers)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states by index."""
        return {str(i): scheduler.state_dict() for i, scheduler in enumerate(self._schedulers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores states returned by :meth:`state_dict`."""
        for i, scheduler in enumerate(self._schedulers):
            scheduler.load_state_dict(state[str(i)])
