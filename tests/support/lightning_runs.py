"""A small module of Lightning, data with one bad batch, and runs of a Trainer on them."""

from __future__ import annotations

import copy
import inspect

import lightning.pytorch as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

ROWS = 4
BAD = 3  # the micro-batch that is bad, 0-based


class Net(lightning.LightningModule):
    """Has everything that a step changes. If the numbers of a row add up to less than 0, the loss is finite, and so are
    all gradients except that of ``scale``."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.drop, self.b = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.25), nn.Linear(8, 1)
        self.scale = nn.Parameter(torch.ones(1))
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append((batch_idx, batch.clone()))
        root = (self.scale * batch.sum(dim=1).clamp(min=0)).sqrt()  # PLANTED
        loss = (self.b(self.drop(self.norm(self.a(batch)).relu())).squeeze(1) - root).square().mean()
        self.log("batches", 1.0, on_step=False, on_epoch=True, reduce_fx="sum", batch_size=1)
        return {"loss": loss}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


FILE = __file__
LINE = inspect.getsourcelines(Net)[1] + next(
    i for i, line in enumerate(inspect.getsourcelines(Net)[0]) if "# PLANTED" in line
)


class State(lightning.Callback):
    """Everything that a step may change, before and after each batch."""

    def __init__(self):
        self.before, self.after = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before.append(self.of(trainer))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.after.append(self.of(trainer))

    @staticmethod
    def of(trainer):
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        return copy.deepcopy(
            (
                trainer.lightning_module.state_dict(),
                trainer.optimizers[0].state_dict(),
                None if scaler is None else scaler.state_dict(),
            )
        )


def data(bad=BAD, batches=8):
    rows = torch.rand(ROWS * batches, 4, generator=torch.Generator().manual_seed(0)) + 0.1
    if bad is not None:
        rows[ROWS * bad + 2] *= -1
    return rows


def trainer_of(*callbacks, **options):
    defaults = dict(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    silent = dict(enable_progress_bar=False, enable_model_summary=False)
    return lightning.Trainer(**{**defaults, **silent, **options}, callbacks=list(callbacks))


def fit(*callbacks, model=None, rows=None, seed=0, ckpt_path=None, **options):
    torch.manual_seed(seed)
    model = model or Net()
    trainer = trainer_of(*callbacks, **options)
    trainer.fit(model, DataLoader(data() if rows is None else rows, batch_size=ROWS), ckpt_path=ckpt_path)
    return trainer, model
