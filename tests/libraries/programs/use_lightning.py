"""lightning: a Trainer with validation, a scheduler, gradient clipping and accumulation.

Bug: the loss weighs examples by the inverse frequency of their class, and one class is absent.
"""

import sys

import lightning
import torch

HAS_BUG = "--bug" in sys.argv
lightning.seed_everything(0, verbose=False)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU())
        self.out = torch.nn.Linear(16, 4)

    def training_step(self, batch, _):
        x, y = batch
        scores = self.out(self.net(x))
        frequency = torch.bincount(y, minlength=4) / len(y)
        if HAS_BUG:
            weights = 1 / frequency  # expect: aten::reciprocal
            return (torch.nn.functional.cross_entropy(scores, y, reduction="none") * weights.sum()).mean()
        return torch.nn.functional.cross_entropy(scores, y, weight=frequency, label_smoothing=0.1)

    def validation_step(self, batch, _):
        x, y = batch
        self.log("accuracy", (self.out(self.net(x)).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=16)
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    gradient_clip_val=1.0,
    accumulate_grad_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), loader, loader)
print({name: value.item() for name, value in trainer.callback_metrics.items()})
