"""Trainings whose numbers leave their dtype's range: real float16 arithmetic, real loss scalers, log(0) and 0/0."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.training.runs.run_specs import Draw, Plan, Truth, instead
from tests.training.runs.small_training import next_token_loss

HALF = {"dtype": "float16", "layers": 1, "steps": 350}

# -- in float32


def log_of_zero(draw: Draw) -> Plan:
    """log(softmax(x)) instead of log_softmax(x), and a logit that becomes giant: the probability of the others is 0."""
    setup = draw.setup(draw.language(branches=draw.one_of(2, 4)), steps=350)
    at = draw.step(150, 300)

    def loss(logits, labels, step):
        logits = logits[:, :-1] * (40.0 if step >= at else 1.0)
        taken = torch.softmax(logits, -1).gather(-1, labels[:, 1:, None])
        return -torch.log(taken).mean()

    why = f"logits x 40 from step {at} on, through log(softmax)"
    return draw.failing(replace(setup, loss=loss), Truth("nonfinite", ("log_zero",), at, at + 1, why))


def empty_batch(draw: Draw) -> Plan:
    """Every label of one batch is masked: the mean over what counts is 0/0."""
    setup = draw.setup(steps=350)
    at, usual, own_mean = draw.step(150, 300), setup.batch, draw.one_of(True, False)

    def masked(step):
        ids, labels = usual(step)
        return ids, labels * 0 - 100

    def loss(logits, labels, step):
        """The mean by hand, which has a gradient of NaN besides."""
        counts = (labels[:, 1:] != -100).float()
        taken = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, labels[:, 1:, None].clamp(min=0))
        return -(taken[..., 0] * counts).sum() / counts.sum()

    setup = replace(setup, batch=instead(usual, masked, lambda step: step == at), loss=loss if own_mean else setup.loss)
    why = f"all labels of step {at} are masked: 0/0"
    return draw.failing(setup, Truth("nonfinite", ("zero_by_zero",), at, at, why))


# -- in float16


def grown_activations(draw: Draw) -> Plan:
    """The MLP's outputs are scaled up until they pass 65504. There is a loss scaler: it skips, halves, in vain."""
    setup = draw.setup(scaler={"init_scale": 2.0 ** draw.step(14, 16), "growth_interval": draw.one_of(50, 100)}, **HALF)
    at = draw.step(150, 300)

    def tamper(training, step):
        if step == at:
            for block in training.model.transformer.h:
                weight = block.mlp.c_proj.weight.data
                weight.mul_(5e4 / weight.abs().max())

    truth = Truth("fp16_overflow", ("activation_overflow",), at, at, f"the MLP's weights are giant from step {at} on")
    return draw.failing(replace(setup, tamper=tamper), truth)


def with_gradients(times, at):
    """The usual loss whose gradients are ``times`` larger from one step on, as of a sum where a mean was meant."""

    def loss(logits, labels, step):
        loss = next_token_loss(logits, labels, step)
        return loss + (times - 1) * (loss - loss.detach()) if step >= at else loss

    return loss


def larger_gradients(draw: Draw) -> Plan:
    """Gradients become so much larger that many steps overflow, until the scale has followed."""
    setup = draw.setup(scaler={"init_scale": 2.0**16, "growth_interval": draw.one_of(50, 100)}, clip=1.0, **HALF)
    at, times = draw.step(150, 250), 2.0 ** draw.step(11, 15)
    truth = Truth("fp16_overflow", (), at, at + 1, f"gradients x {times:.0f} from step {at} on")
    return draw.failing(replace(setup, loss=with_gradients(times, at)), truth)


def constant_scale(draw: Draw) -> Plan:
    """A loss scale by hand that never changes: from one step on gradients overflow, and all steps are skipped."""
    scale, at, times = 2.0 ** draw.step(11, 13), draw.step(100, 200), 2.0 ** draw.step(8, 10)
    setup = draw.setup(scaler={"init_scale": scale}, fixed_scale=True, **HALF)
    truth = Truth(
        "loss_scale_constant", (), at, at + 15, f"a loss scale of {scale:.0f}, gradients x {times:.0f} from {at} on"
    )
    return draw.failing(replace(setup, loss=with_gradients(times, at)), truth)


def no_scaler(draw: Draw) -> Plan:
    """float16 with the scaler switched off, which is a scale of 1: what overflows goes into the weights."""
    setup = draw.setup(scaler={"enabled": False}, **HALF)
    at, times = draw.step(150, 300), 10.0 ** draw.between(7, 9)
    truth = Truth("loss_scale_constant", (), at, at + 1, f"gradients x {times:.0e} at step {at}, and no scaler")
    return draw.failing(replace(setup, loss=with_gradients(times, at)), truth)


def collapsing_scale(draw: Draw) -> Plan:
    """Gradients that overflow at any scale."""
    scaler = {"init_scale": 2.0 ** draw.step(10, 16), "growth_interval": draw.one_of(50, 100)}
    setup = draw.setup(scaler=scaler, clip=1.0, **HALF)
    at, times = draw.step(120, 220), 10.0 ** draw.between(7, 9)
    why = f"gradients x {times:.0e} from step {at} on, where the scale may have been halving already"
    truth = Truth("loss_scale_collapse", (), at - 2, at + 40, why)
    return draw.failing(replace(setup, loss=with_gradients(times, at)), truth)


MAKERS = {
    make.__name__: make
    for make in (
        log_of_zero,
        empty_batch,
        grown_activations,
        larger_gradients,
        constant_scale,
        no_scaler,
        collapsing_scale,
    )
}
