"""A real training of a small GPT-2 (transformers), one row per step. What can go wrong in it is a part of its setup."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import torchnan

Ids = NDArray[np.int64]
Row = dict[str, Any]
Batch = Callable[[int], tuple[Ids, Ids]]


def next_token_loss(logits: Tensor, labels: Tensor, step: int) -> Tensor:
    """Mean cross entropy of the next token in float32; a label of -100 does not count."""
    logits = logits[:, :-1].float()
    return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))


@dataclass(frozen=True)
class Setup:
    """The model, data and schedule of a training. ``batch(step)`` has token ids and labels, ``rate(step)`` the learning
    rate."""

    seed: int
    batch: Batch
    rate: Callable[[int], float]
    steps: int = 500
    vocabulary: int = 48
    tokens: int = 16
    layers: int = 1
    width: int = 32
    dropout: float = 0.0
    optimizer: str = "adamw"
    decay: Callable[[int], float] = lambda step: 0.01  # as AdamW has it, times the learning rate
    decay_all: bool = False  # of gains and biases, too
    clip: float = 1.0  # gradient norm; inf: not clipped
    dtype: str = "float32"  # what autocast computes in
    scaler: dict[str, Any] | None = None  # options of torch.amp.GradScaler
    fixed_scale: bool = False  # the scale stays as it is, as one that was written by hand
    loss: Callable[[Tensor, Tensor, int], Tensor] = next_token_loss
    tamper: Callable[[Training, int], None] = lambda training, step: None  # called before each step
    after_nonfinite: int = 10  # steps that are still run after the first loss that is not finite


class Training:
    """A setup with a model and an optimizer. ``steps()`` yields a row for each step; the monitor has its own."""

    def __init__(self, setup: Setup, monitor: torchnan.Monitor | None = None) -> None:
        torch.manual_seed(setup.seed)
        self.setup, self.monitor = setup, monitor
        self.model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=setup.vocabulary,
                n_positions=setup.tokens,
                n_embd=setup.width,
                n_layer=setup.layers,
                n_head=2,
                resid_pdrop=setup.dropout,
                embd_pdrop=setup.dropout,
                attn_pdrop=setup.dropout,
                bos_token_id=0,
                eos_token_id=0,
                use_cache=False,
            )
        )
        self.model.train()
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim <= 1]
        self.groups = {"decay": matrices, "no_decay": vectors}
        self.optimizer = new_optimizer(
            setup.optimizer, [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        )
        self.scaler = None if setup.scaler is None else torch.amp.GradScaler(device="cpu", **setup.scaler)

    def steps(self) -> Iterator[Row]:
        left = math.inf
        for step in range(self.setup.steps):
            row = self.step(step)
            yield row
            if not math.isfinite(row["loss"]):
                left = min(left, self.setup.after_nonfinite + 1)
            left -= 1
            if left <= 0:
                return

    def prepare(self, step: int) -> tuple[Tensor, Tensor]:
        """Applies the changes before a step: learning rate, decay, damage. Returns its token ids and labels."""
        setup = self.setup
        for group in self.optimizer.param_groups:
            group["lr"] = setup.rate(step)
        for group in self.optimizer.param_groups[: 2 if setup.decay_all else 1]:
            group["weight_decay"] = setup.decay(step)
        setup.tamper(self, step)
        ids, labels = setup.batch(step)
        return torch.from_numpy(ids), torch.from_numpy(labels)

    def step(self, step: int) -> Row:
        batch = self.prepare(step)
        lr = self.setup.rate(step)
        self.optimizer.zero_grad()
        loss = self.loss(batch, step)
        scale = None if self.scaler is None else self.scaler.get_scale()
        norm, skipped = self.backward_and_apply(loss)
        if self.monitor is not None:
            self.monitor.step(
                loss=loss,
                model=self.model,
                optimizer=self.optimizer,
                scaler=self.scaler,
                batch=batch,
                grad_norm=norm,
                skipped=skipped,
                step=step,
            )
        return {
            "step": step,
            "loss": loss.item(),
            "grad_norm": norm,
            "lr": [lr, lr],
            "loss_scale": scale,
            "weight_norm": [norm_of(parameters) for parameters in self.groups.values()],
            "batch_digest": hashlib.blake2b(
                b"".join(part.numpy().tobytes() for part in batch), digest_size=8
            ).hexdigest(),
        }

    def loss(self, batch: tuple[Tensor, Tensor], step: int) -> Tensor:
        ids, labels = batch
        dtype = getattr(torch, self.setup.dtype)
        half = dtype is not torch.float32
        with torch.autocast("cpu", dtype=dtype) if half else contextlib.nullcontext():
            logits = self.model(input_ids=ids).logits
        return self.setup.loss(logits, labels, step)

    def backward_and_apply(self, loss: Tensor) -> tuple[float, bool]:
        """The gradient norm before clipping and unscaled, and whether the scaler has skipped the step."""
        if self.scaler is None:
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.setup.clip).item()
            self.optimizer.step()
            return norm, False
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.setup.clip).item()
        self.scaler.step(self.optimizer)
        self.scaler.update(self.scaler.get_scale() if self.setup.fixed_scale else None)
        return norm, self.scaler.is_enabled() and not math.isfinite(norm)


def norm_of(parameters: list[nn.Parameter]) -> float:
    """The Euclidean norm of them all."""
    return float(torch.stack(torch._foreach_norm([p.detach() for p in parameters])).norm())


def new_optimizer(name: str, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adamw": lambda: torch.optim.AdamW(groups, betas=(0.9, 0.95)),
        "adamw999": lambda: torch.optim.AdamW(groups, betas=(0.9, 0.999)),
        "adam": lambda: torch.optim.Adam(groups, betas=(0.9, 0.98)),
        "nadam": lambda: torch.optim.NAdam(groups, decoupled_weight_decay=True),
        "momentum": lambda: torch.optim.SGD(groups, momentum=0.9),
        "rmsprop": lambda: torch.optim.RMSprop(groups, alpha=0.95),
    }
    return makers[name]()
