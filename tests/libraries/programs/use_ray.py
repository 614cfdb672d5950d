"""ray: two workers of Ray Train, which average the gradients of a model over gloo.

Bug: one worker divides its loss by the number of its labels, and a batch has none.
"""

import os
import sys
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def train(config):
    torch.manual_seed(0)
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    for step, (x, y) in enumerate(prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=8))):
        optimizer.zero_grad()
        error = (model(x) - y).square()
        labelled = torch.ones_like(y)
        if config["has_bug"] and rank == 1 and step == 2:
            labelled = torch.zeros_like(y)
        loss = (error * labelled).sum() / labelled.sum()  # expect: aten::div
        loss.backward()
        optimizer.step()
    Path(config["folder"], f"loss.{rank}").write_text(str(loss.item()))


folder = Path("ray").absolute()
ray.init(num_cpus=3, include_dashboard=False)
TorchTrainer(
    train,
    train_loop_config={"has_bug": "--bug" in sys.argv, "folder": str(folder)},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=str(folder)),
).fit()
print(*(path.read_text() for path in sorted(folder.glob("loss.*"))))
