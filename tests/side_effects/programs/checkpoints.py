"""Activation checkpointing of both kinds and selective, hooks of saved tensors, and activations that are offloaded."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from tests.side_effects.program import BAD, EAGER, HEALTHY, program

MASK = torch.ones(4, 4).tril().bool()


class Block(nn.Module):
    """Computes a logarithm of zero if it is bad, in the forward or in the backward pass."""

    def __init__(self, bad, phase="forward"):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.factor = 0.0 if bad else 1.0
        self.phase = phase

    def forward(self, x):
        y = self.fc(x)
        if self.phase == "forward":
            return torch.log(y.square() * self.factor) * y
        return torch.sqrt(y.square() * self.factor) + y


def train(record, run, x, steps=3):
    """Runs the forward and backward pass, and records what a program sees of them."""
    for step in range(steps):
        with record.catching(f"step {step}"):
            loss = run(x).square().mean()
            loss.backward()
            record.value(f"loss {step}", loss)
            record.value(f"gradient {step}", x.grad)


def batch(record):
    return torch.randn(2, 8).to(record.device).requires_grad_()


@program(on_device=True)
def checkpoint_around_a_compiled_block(record, bad):
    model = torch.compile(Block(bad).to(record.device))

    def run(x):
        record.call("run")
        return model(x)

    train(record, functools.partial(checkpoint, run, use_reentrant=False), batch(record))


@program(on_device=True)
def checkpoint_around_a_block_whose_backward_is_bad(record, bad):
    model = torch.compile(Block(bad, "backward").to(record.device))

    def run(x):
        record.call("run")
        return model(x)

    train(record, functools.partial(checkpoint, run, use_reentrant=False), batch(record))


@program()
def reentrant_checkpoint_around_a_compiled_block(record, bad):
    model = torch.compile(Block(bad))

    def run(x):
        record.call("run")
        return model(x)

    train(record, functools.partial(checkpoint, run, use_reentrant=True), batch(record))


@program()
def both_checkpoints_of_one_module(record, bad):
    model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    factor = 0.0 if bad else 1.0
    x = torch.ones(2, 8, requires_grad=True)

    def run(x):
        y = checkpoint(model, x, use_reentrant=False) * factor
        return torch.sqrt(y + (1 - bad)) + checkpoint(model, x, use_reentrant=True).add(1 - bad).log()

    train(record, run, x)


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return (self.q(x).tanh() @ self.k(x).transpose(-1, -2)).masked_fill(~MASK, float("-inf"))


def attention(record, scores):
    def run(x):
        record.call("run")
        return scores(x).softmax(-1) @ x

    return run


@program(variants=(HEALTHY,), places_detection=True)
def a_mask_in_a_checkpoint_with_detection_of_the_forward_pass(record, bad):
    run = attention(record, torch.compile(Scores()))
    x = torch.randn(2, 4, 8, requires_grad=True)
    for step in range(3):
        with record.catching(f"step {step}"):
            with record.detection():
                loss = checkpoint(run, x, use_reentrant=False).square().mean()
            loss.backward()
            record.value("loss", loss)
            record.value("gradient", x.grad)


@program(variants=(HEALTHY,))
def a_checkpoint_that_has_no_backward_pass(record, bad):
    run = attention(record, torch.compile(Scores()))
    x = torch.randn(2, 4, 8, requires_grad=True)
    checkpoint(run, x, use_reentrant=False).square().mean()
    train(record, functools.partial(checkpoint, run, use_reentrant=False), x)


@program(on_device=True)
def checkpoint_in_a_compiled_model(record, bad):
    block = Block(bad).to(record.device)
    model = torch.compile(lambda x: checkpoint(block, x, use_reentrant=False).tanh())
    train(record, model, batch(record))


@program()
def nested_checkpoints(record, bad):
    inner = torch.compile(Block(bad))

    def inside(x):
        record.call("inside")
        return inner(x)

    def outside(x):
        record.call("outside")
        return checkpoint(inside, x.sin(), use_reentrant=False).cos()

    train(record, functools.partial(checkpoint, outside, use_reentrant=False), batch(record))


@program()
def a_checkpoint_with_dropout(record, bad):
    model = torch.compile(nn.Sequential(Block(bad), nn.Dropout(0.5)))

    def run(x):
        record.call("run", torch.rand(2))
        return model(x)

    train(record, functools.partial(checkpoint, run, use_reentrant=False), batch(record))
    record.value("drawn afterwards", torch.rand(2))


@program()
def selective_checkpoint(record, bad):
    model = torch.compile(Block(bad))

    def policy(ctx, op, *args, **kwargs):
        record.call("policy", op, ctx.is_recompute)
        return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def run(x):
        record.call("run")
        return model(x.sin()).cos()

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    train(record, functools.partial(checkpoint, run, use_reentrant=False, context_fn=contexts), batch(record))


@program(ways=(EAGER,))
def checkpoint_sequential_of_blocks(record, bad):
    model = nn.Sequential(Block(False), Block(bad), Block(False))
    for name, module in model.named_children():
        module.register_forward_hook(lambda *_, name=name: record.call("forward", name))
    train(record, lambda x: checkpoint_sequential(model, 2, x, use_reentrant=False), batch(record))


@program(on_device=True)
def hooks_of_saved_tensors(record, bad):
    model = torch.compile(Block(bad).to(record.device))

    def pack(x):
        record.call("pack", list(x.shape))
        return x.cpu()

    def unpack(x):
        record.call("unpack", list(x.shape))
        return x.to(record.device)

    def run(x):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return model(x)

    train(record, run, batch(record))


@program()
def hooks_of_saved_tensors_around_the_whole_step(record, bad):
    model = torch.compile(Block(bad, "backward"))

    def pack(x):
        record.call("pack", list(x.shape))
        return x

    def unpack(x):
        record.call("unpack", list(x.shape))
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        train(record, model, batch(record))


@program(on_device=True)
def activations_on_the_host(record, bad):
    model = torch.compile(Block(bad).to(record.device))

    def run(x):
        with torch.autograd.graph.save_on_cpu():
            return model(x)

    train(record, run, batch(record))


@program()
def saving_tensors_is_forbidden(record, bad):
    model = torch.compile(Block(bad))
    x = batch(record)
    with torch.no_grad(), torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"):
        record.value("result", model(x))
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"):
        train(record, model, x)


@program(variants=(BAD,), places_detection=True)
def a_checkpoint_that_is_entered_with_detection_and_recomputed_without(record, bad):
    model = torch.compile(Block(bad))

    def run(x):
        record.call("run")
        return model(x)

    x = batch(record)
    with record.catching("step"):
        with record.detection():
            loss = checkpoint(run, x, use_reentrant=False).mean()
        loss.backward()
        record.value("gradient", x.grad)
