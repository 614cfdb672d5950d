"""Small trainings with a Monitor, and the lines of its log."""

from __future__ import annotations

import json

import torch
from torch import nn

from tests.support.guarded_steps import batch_of, step_of


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


def lines_of(path):
    """Strictly read."""
    return [json.loads(line, parse_constant=refuse_constant) for line in path.read_text().splitlines()]


def rows_of(path):
    return [line for line in lines_of(path) if "step" in line and not {"finding", "verdict", "forecast"} & line.keys()]


def train(monitor, steps, model=None, batch=batch_of, **options):
    """A loop of the program's own, with the Monitor fed by hand."""
    torch.manual_seed(0)
    model = model or nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(steps):
        optimizer.zero_grad()
        loss = step_of(lambda x: model(x).squeeze(1), batch(i))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        monitor.step(loss=loss, model=model, optimizer=optimizer, batch=batch(i), grad_norm=norm, **options)
    return model, optimizer


def steady(monitor, losses, **given):
    """Rows of these losses."""
    for loss in losses:
        monitor.step(loss=loss, **given)


def noisy(count, seed=0, level=2.0, noise=0.05):
    """Losses of a healthy run."""
    generator = torch.Generator().manual_seed(seed)
    return (level + noise * torch.randn(count, generator=generator)).tolist()
