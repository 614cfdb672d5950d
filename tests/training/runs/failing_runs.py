"""Trainings with one failure each that the loss shows: as a spike, a step up, or a slow rise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tests.training.runs.run_specs import PEAKS, Draw, Plan, Rate, Truth, batches, constant, cosine, instead

# -- spikes


def rare_batch(draw: Draw) -> Plan:
    """One batch of tokens that no other text has, to a model that knows its text."""
    language = draw.language(surprise=draw.between(0.0, 0.02), branches=1)
    setup = draw.setup(language, optimizer=draw.one_of("adamw", "adam", "nadam"), clip=1.0)
    at, rng = draw.step(220, 340), draw.rng

    def rare(step):
        ids = language.rare_rows(rng, 12, setup.tokens)
        return ids, ids

    truth = Truth("spike", ("long_tail_batch",), at, at, "a batch of tokens that no other text has")
    return draw.failing(replace(setup, batch=instead(setup.batch, rare, lambda step: step == at)), truth)


def hard_batch(draw: Draw) -> Plan:
    """One batch of noise. Its gradient is not out of the ordinary: the tree has no cause for it."""
    setup = draw.setup(language := draw.language(surprise=draw.between(0.05, 0.15), branches=4))
    at = draw.step(220, 340)
    noise = batches(language, draw.rng, 8, setup.tokens, surprise=1.0)
    truth = Truth("spike", ("unknown",), at, at, "a batch of noise, with a gradient of the usual size")
    return draw.failing(replace(setup, batch=instead(setup.batch, noise, lambda step: step == at)), truth)


# Optimizers, a learning rate that is far too high for each, and for how many steps: what that breaks is soon repaired.
GLITCHES = (("adamw", 0.08, 2), ("adam", 0.06, 2), ("nadam", 0.05, 2), ("momentum", 0.8, 1))


def rate_glitch(draw: Draw) -> Plan:
    """The learning rate is far too high for one or two steps."""
    optimizer, wrong, length = draw.one_of(*GLITCHES)
    usual, at, language = PEAKS[optimizer][1] / 1.5, draw.step(220, 330), draw.language(surprise=0.05, branches=4)
    setup = draw.setup(
        language,
        optimizer=optimizer,
        rate=lambda step: wrong if at <= step < at + length else usual * min(1, (step + 1) / 30),
        batch=batches(language, draw.rng, 16, 16),
        tokens=16,
        clip=1.0,
    )
    why = f"learning rate x {wrong / usual:.0f} for {length} steps from {at} on"
    return draw.failing(setup, Truth("spike", ("lr_discontinuity",), at, at + length + 3, why))


def stuck_loader(draw: Draw) -> Plan:
    """The loader gives the same batch again and again; the model learns it by heart, and pays at the next one."""
    language = draw.language(surprise=draw.between(0.2, 0.35), branches=4)
    setup = draw.setup(
        language,
        optimizer=draw.one_of("adamw", "adam"),
        rate=constant(draw.between(0.01, 0.014), 30, 0),
        batch=batches(language, draw.rng, 8, 12),
        tokens=12,
        width=48,
        layers=1,
        clip=math.inf,
    )
    length, at = draw.step(28, 38), draw.step(200, 300)
    held = {}

    def again(step):
        return held.setdefault("batch", setup.batch(step)) if step == at else held["batch"]

    truth = Truth("spike", ("duplicate_batch",), at, at + length + 3, f"one batch from {at} to {at + length - 1}")
    stuck = instead(setup.batch, again, lambda step: at <= step < at + length)
    return draw.failing(replace(setup, batch=stuck), truth)


def served_twice(draw: Draw) -> Plan:
    """A batch of noise that the loader serves two or three times within a few steps."""
    setup = draw.setup(language := draw.language(surprise=0.05))
    at, times, apart = draw.step(220, 330), draw.step(2, 3), draw.step(1, 4)
    noise = batches(language, draw.rng, 8, setup.tokens, surprise=1.0)(0)
    steps = [at + i * apart for i in range(times)]
    truth = Truth("spike", ("duplicate_batch",), at, steps[-1], f"the same batch at steps {steps}")
    return draw.failing(replace(setup, batch=instead(setup.batch, lambda step: noise, steps.__contains__)), truth)


# -- up at once, and it stays


def rate_jump(draw: Draw) -> Plan:
    """The schedule jumps to a far too high learning rate and stays there."""
    optimizer = draw.one_of("adamw", "adam", "nadam")
    usual, wrong, at = draw.ratio(*PEAKS[optimizer]), draw.between(0.12, 0.3), draw.step(200, 280)
    setup = draw.setup(optimizer=optimizer, rate=lambda step: wrong if step >= at else usual * min(1, (step + 1) / 30))
    why = f"learning rate x {wrong / usual:.0f} from step {at} on"
    return draw.failing(setup, Truth("persistent_elevation", ("lr_discontinuity",), at, at + 5, why))


def corrupted_moments(draw: Draw) -> Plan:
    """The optimizer's second moments are restored as zeros, and the first ones enlarged: one step goes far away."""
    optimizer = draw.one_of("adamw", "adamw999", "adam")
    setup = draw.setup(draw.language(branches=4), optimizer=optimizer)
    at = draw.step(200, 300)

    def tamper(training, step):
        if step == at:
            for state in training.optimizer.state.values():
                state["exp_avg_sq"].mul_(1e-6)
                state["exp_avg"].mul_(10)

    truth = Truth("persistent_elevation", (), at, at + 4, f"the optimizer's moments were corrupted at step {at}")
    return draw.failing(replace(setup, tamper=tamper), truth)


def label_noise(draw: Draw) -> Plan:
    """From one step on, some of the labels are drawn at random."""
    setup = draw.setup(draw.language(surprise=draw.between(0.02, 0.15)))
    at, share, rng, usual = draw.step(200, 300), draw.between(0.3, 0.7), draw.rng, setup.batch

    def batch(step):
        ids, labels = usual(step)
        return ids, wrong_labels(rng, labels, share) if step >= at else labels

    truth = Truth("persistent_elevation", (), at, at + 4, f"{share:.0%} of the labels are random from step {at} on")
    return draw.failing(replace(setup, batch=batch), truth)


def wrong_labels(rng, labels, share):
    return np.where(rng.random(labels.shape) < share, rng.integers(labels.max() + 1, size=labels.shape), labels)


# -- slowly up


def climbing(draw: Draw, rate: Rate, why: str) -> Plan:
    setup = draw.setup(draw.language(branches=4), optimizer="momentum", clip=1.0, rate=rate, steps=600)
    return draw.failing(setup, Truth("silent_divergence", ("lr_increasing",), 0, 599, why))


def endless_warmup(draw: Draw) -> Plan:
    """Warm-up that never ends: the learning rate climbs, and from some point on undoes what was learned."""
    slope = draw.between(1.0, 1.8) / 600
    return climbing(draw, lambda step: slope * (step + 1), "the warm-up never ends")


def inverse_cosine(draw: Draw) -> Plan:
    """The cosine the wrong way round: up instead of down."""
    least, peak, falling = 0.02, draw.between(1.0, 1.8), cosine(1.0, 0, 600, least=0.0)
    return climbing(draw, lambda step: least + (peak - least) * (1 - falling(step)), "the cosine goes up")


def decay_too_high(draw: Draw) -> Plan:
    """Decay that does not shrink with the learning rate: in the end it is all there is, and the weights collapse."""
    setup = draw.setup(draw.language(branches=4), optimizer="adamw", rate=cosine(6e-3, 20, 600, least=0.0), steps=600)
    at, share = draw.step(250, 330), draw.between(0.004, 0.008)
    rate = setup.rate
    setup = replace(setup, decay=lambda step: share / rate(step) if step >= at else 0.01, decay_all=True)
    return draw.failing(
        setup, Truth("silent_divergence", ("weight_norm",), at, at + 150, f"decay too high from {at} on")
    )


def decay_too_low(draw: Draw) -> Plan:
    """Decay with the wrong sign: the weights grow by a share of themselves at every step."""
    share, at = draw.between(0.0042, 0.006), draw.step(180, 260)
    setup = draw.setup(draw.language(branches=4), optimizer="adamw", rate=cosine(4e-3, 20, 600, least=0.02), steps=600)
    rate = setup.rate
    setup = replace(setup, decay=lambda step: -share / rate(step) if step >= at else 0.01, decay_all=True)
    return draw.failing(setup, Truth("silent_divergence", ("weight_norm",), at, at + 150, f"decay < 0 from {at} on"))


def foreign_text(draw: Draw) -> Plan:
    """More and more of the text is of another language, and the learning rate is too low by then to learn it."""
    steps, settled = 600, draw.step(150, 200)
    setup = draw.setup(
        language := draw.language(surprise=0.1),
        optimizer="adamw",
        rate=cosine(5e-3, 20, settled, least=0.003),
        steps=steps,
    )
    low = setup.rate(settled)
    at, most, rng = settled + draw.step(20, 60), draw.between(0.5, 0.9), draw.rng
    other = replace(language, successors=rng.permutation(language.successors))

    def batch(step):
        foreign = rng.random((16, 1)) < most * max(0, step - at) / (steps - at)
        ids = np.where(foreign, other.rows(rng, 16, setup.tokens), language.rows(rng, 16, setup.tokens))
        return ids, ids

    rate = setup.rate
    setup = replace(setup, batch=batch, rate=lambda step: rate(step) if step < settled else low)
    why = f"ever more text of another language from step {at} on"
    return draw.failing(setup, Truth("silent_divergence", ("gradient_trend",), at, at + 120, why))


def harder_text(draw: Draw) -> Plan:
    """The text gets less and less predictable while batches grow: the loss must rise, and the gradient says nothing."""
    setup = draw.setup(language := draw.language(branches=4), optimizer="adamw", rate=cosine(5e-3, 20, 600), steps=600)
    at, rng = draw.step(180, 250), draw.rng

    def batch(step):
        done = max(0, step - at) / (600 - at)
        ids = language.rows(rng, int(6 + 30 * done), setup.tokens, 0.05 + 0.6 * done)
        return ids, ids

    truth = Truth("plateau", (), at, at + 120, f"the text gets harder from step {at} on")
    return draw.failing(replace(setup, batch=batch), truth)


MAKERS = {
    make.__name__: make
    for make in (
        rare_batch,
        hard_batch,
        rate_glitch,
        stuck_loader,
        served_twice,
        rate_jump,
        corrupted_moments,
        label_noise,
        endless_warmup,
        inverse_cosine,
        decay_too_high,
        decay_too_low,
        foreign_text,
        harder_text,
    )
}
