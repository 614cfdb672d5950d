"""The Monitor inside Lightning and inside the Trainer of Transformers: what it writes is what happened there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchnan
from tests.support.monitored_training import lines_of, rows_of

ROWS = 4


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def numbers(batches=8):
    return torch.rand(ROWS * batches, 5, generator=torch.Generator().manual_seed(0))


def plain_run(accumulation):
    """Losses, norms before clipping, and learning rates of a loop by hand."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8 // accumulation)
    seen = []
    for batches in numbers().split(ROWS * accumulation):
        optimizer.zero_grad()
        losses = [(model(b[:, :4]).squeeze(1) - b[:, 4]).square().mean() / accumulation for b in batches.split(ROWS)]
        sum(losses).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
        seen.append((sum(losses).item(), norm, optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return seen


def seen_in(path):
    return [(row["loss"], row["grad_norm"], *row["lr"]) for row in rows_of(path)]


def close(a, b):
    return len(a) == len(b) and all(one == pytest.approx(other, rel=1e-5) for one, other in zip(a, b, strict=True))


class Rows(torch.utils.data.Dataset):
    def __init__(self, again=None):
        self.rows = numbers()
        if again is not None:
            self.rows[ROWS * again : ROWS * (again + 1)] = self.rows[:ROWS]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"x": self.rows[i, :4], "labels": self.rows[i, 4]}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_lightning(path, accumulation, tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from torchnan.integrations.lightning import NaNCapture

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(4, 1)

        def training_step(self, batch, batch_idx):
            return (self.net(batch["x"]).squeeze(1) - batch["labels"]).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8 // accumulation)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.1,
        accumulate_grad_batches=accumulation,
        callbacks=[NaNCapture(tmp_path / "captures", monitor=torchnan.Monitor(log=path))],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Rows(again=5), batch_size=ROWS))
    wanted = plain_run(accumulation)
    before_the_batch_that_comes_again = 5 // accumulation
    assert len(rows_of(path)) == 8 // accumulation
    assert close(seen_in(path)[:before_the_batch_that_comes_again], wanted[:before_the_batch_that_comes_again])
    if accumulation == 1:
        digests = [row["batch_digest"] for row in rows_of(path)]
        assert digests[5] == digests[0]
        assert len(set(digests)) == 7
    assert lines_of(path)[0]["dtype"] == "float32"
    assert not any(row["skipped"] for row in rows_of(path))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.net(x).squeeze(1) - labels).square().mean()}


@pytest.mark.parametrize(("accumulation", "clip"), [(1, 0.1), (2, 0.1), (1, 0.0)])
def test_transformers(path, accumulation, clip, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from torchnan.integrations.transformers import NaNCallback

    arguments = transformers.TrainingArguments(
        tmp_path / "out",
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=1,
        learning_rate=0.5,
        lr_scheduler_type="linear",
        max_grad_norm=clip,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8 // accumulation)

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    callback = NaNCallback(monitor=torchnan.Monitor(log=path))
    trainer = InOrder(model, arguments, train_dataset=Rows(), callbacks=[callback], optimizers=(optimizer, schedule))
    trainer.train()
    wanted = plain_run(accumulation)
    if clip:
        assert close(seen_in(path), wanted)
    else:
        assert close(seen_in(path)[:1], wanted[:1])
    assert lines_of(path)[0]["dtype"] == "float32"
    assert callback.guard.failures == {}
    assert [row["step"] for row in rows_of(path)] == list(range(1, 8 // accumulation + 1))
