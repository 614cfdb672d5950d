"""Trains with Accelerate and a step guard, on the CPU, in a few seconds.

One batch is bad: none of its examples counts in the loss, which is then a mean over nothing. Its step is not applied,
and training continues.

    pip install torchnan accelerate safetensors
    python accelerate_loop.py captures
"""

import logging
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchnan

ROWS = 4  # rows of a micro-batch; a step has two micro-batches
BAD = slice(20, 24)  # the sixth micro-batch


def examples():
    """Returns inputs, targets and their weights."""
    x = torch.randn(48, 8, generator=torch.Generator().manual_seed(0))
    counts = torch.ones(48, 1)
    counts[BAD] = 0.0
    return TensorDataset(x, x.sum(dim=1, keepdim=True).tanh(), counts)


def loss_of(model, batch):
    """Returns the mean loss over the examples that count."""
    x, y, counts = batch
    return ((model(x) - y).square() * counts).sum() / counts.sum()


def train(captures):
    """Trains for one epoch."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(examples(), batch_size=ROWS)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    guard = torchnan.StepGuard(model, optimizer, loss_of, captures=captures)
    losses = []
    for batch in loader:
        with accelerator.accumulate(model), guard.watch(batch):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            losses.append(loss.detach())
        if not accelerator.sync_gradients:
            continue  # the step has one more micro-batch
        ok = guard.ok_to_step(*losses)
        if ok:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        optimizer.zero_grad()
        mean = torch.stack(losses).mean().item()
        print(f"step {guard.step_number}: loss {mean:.4f}" if ok else guard.events[-1])
        losses.clear()
    return model, guard


def main(captures):
    """Trains, then replays the bad step from its capture, as another process could."""
    logging.getLogger("torchnan").setLevel(logging.ERROR)  # its warnings are printed above
    model, guard = train(captures)
    for event in [event for event in guard.events if event.capture]:
        again = torchnan.load_capture(event.capture).replay(model, loss_of)
        print(f"\nStep {event.step} run again from {event.capture}: {again.verdict}\n{again.finding}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "captures")
