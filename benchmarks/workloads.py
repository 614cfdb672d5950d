"""Whole training steps, forward, backward and optimizer, on made-up data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch


@dataclasses.dataclass
class Workload:
    """One training step to be timed.

    Attributes:
        name: for the table.
        step: runs one step.
        model: its model, for the peers that hang hooks on modules.
        repeat: steps per timing, so that one timing is not too short to be measured.
        optimizer, loss_of, batch: what the step is made of, for what runs it itself.
        eager: makes the same step without its compilation; ``None`` if it is not compiled.
    """

    name: str
    step: Callable[[], None]
    model: torch.nn.Module
    repeat: int
    optimizer: torch.optim.Optimizer
    loss_of: Callable[[], torch.Tensor]
    batch: Any
    eager: Callable[[], Workload] | None = None


def training(
    name: str, model: torch.nn.Module, batch: Any, loss_of: Callable[[], torch.Tensor], repeat: int
) -> Workload:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return Workload(name, step, model, repeat, optimizer, loss_of, batch)


def mlp() -> Workload:
    """Launch-bound: 8 layers of 64, batch 16."""
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
    model, x = torch.nn.Sequential(*layers), torch.randn(16, 64)
    return training("MLP 8x64, batch 16", model, x, lambda: model(x).square().mean(), 40)


def gpt2() -> Workload:
    """A small GPT-2: 4 layers of 256, 4 x 256 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4, n_embd=256, n_head=8, vocab_size=8192, n_positions=256, bos_token_id=0, eos_token_id=0
    )
    model, ids = GPT2LMHeadModel(config), torch.randint(0, 8192, (4, 256))
    return training("GPT-2 256x4, 4x256", model, {"input_ids": ids}, lambda: model(input_ids=ids, labels=ids).loss, 1)


def bert() -> Workload:
    """A small BERT: 4 layers of 256, 4 x 128 tokens, padded."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=8, intermediate_size=1024, vocab_size=4096
    )
    model, ids = BertForMaskedLM(config), torch.randint(0, 4096, (4, 128))
    mask = torch.ones(4, 128, dtype=torch.long)
    mask[:, 100:] = 0
    return training(
        "BERT 256x4, 4x128",
        model,
        {"input_ids": ids, "attention_mask": mask},
        lambda: model(input_ids=ids, attention_mask=mask, labels=ids).loss,
        2,
    )


def resnet50() -> Workload:
    """ResNet-50, 4 images of 224 x 224."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig())
    pixels, labels = torch.randn(4, 3, 224, 224), torch.randint(0, 2, (4,))
    return training(
        "ResNet-50, 4x224²",
        model,
        {"pixel_values": pixels, "labels": labels},
        lambda: model(pixel_values=pixels, labels=labels).loss,
        1,
    )


def compiled(make: Callable[[], Workload], **options: Any) -> Callable[[], Workload]:
    """The same step with its model compiled by Inductor, with these of its options."""

    def make_compiled() -> Workload:
        workload = make()
        workload.model.compile(options=options or None)
        return dataclasses.replace(workload, name=f"{workload.name}, compiled", eager=make)

    return make_compiled


_EAGER = {"mlp": mlp, "gpt2": gpt2, "bert": bert, "resnet50": resnet50}
ALL = {**_EAGER, **{f"{key}-compiled": compiled(make) for key, make in _EAGER.items()}}
