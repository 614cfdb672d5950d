"""Trainings that go well, each in a way that looks like trouble to a simple rule."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tests.training.runs.run_specs import PEAKS, Draw, Plan, always, batches, constant, cosine, warmed_up


def usual(draw: Draw) -> Plan:
    return draw.healthy(draw.setup())


def small_batches(draw: Draw) -> Plan:
    """Loud: two or three sentences a step."""
    setup = draw.setup(language := draw.language(surprise=0.2), tokens=12)
    return draw.healthy(replace(setup, batch=batches(language, draw.rng, draw.step(2, 3), 12)))


def uneven_batches(draw: Draw) -> Plan:
    """Heavy tails: some sentences, and with them some batches, are of a harder kind; so it is from the start."""
    setup = draw.setup(language := draw.language(), tokens=16)
    rng, hard = draw.rng, draw.between(0.05, 0.15)

    def batch(step):
        surprise = np.where(rng.random(6) < hard, 0.9, 0.05)
        ids = language.rows(rng, 6, 16, surprise)
        return ids, ids

    return draw.healthy(replace(setup, batch=batch))


def long_warmup(draw: Draw) -> Plan:
    """The learning rate rises for half of the run, as planned; the loss falls."""
    optimizer = draw.one_of("adamw", "adam", "momentum")
    peak = PEAKS[optimizer][0]
    return draw.healthy(draw.setup(optimizer=optimizer, rate=constant(peak, draw.step(150, 250), 0)))


def no_warmup(draw: Draw) -> Plan:
    peak = PEAKS["adamw"][0]
    return draw.healthy(draw.setup(optimizer="adamw", rate=cosine(peak, 1, 450)))


def steps_down(draw: Draw) -> Plan:
    """Step decay: the learning rate is cut by 3 to 10 twice, by design."""
    optimizer = draw.one_of(*PEAKS)
    factor, first, second = draw.ratio(0.1, 0.33), draw.step(130, 200), draw.step(280, 350)
    rate = warmed_up(draw.ratio(*PEAKS[optimizer]), 20, lambda step: factor ** ((step >= first) + (step >= second)))
    return draw.healthy(draw.setup(optimizer=optimizer, rate=rate))


def warm_restarts(draw: Draw) -> Plan:
    """Cosine with restarts by design, at a peak that is safe: the jumps up do no harm."""
    period, peak = draw.step(110, 160), PEAKS["adamw"][0]
    rate = warmed_up(peak, 20, lambda step: 0.3 + 0.35 * (1 + math.cos(math.pi * (step % period) / period)))
    return draw.healthy(draw.setup(optimizer="adamw", rate=rate))


def decayed_to_nothing(draw: Draw) -> Plan:
    """Converged: the learning rate ends at 0, and the loss stands."""
    return draw.healthy(draw.setup(optimizer="adamw", rate=cosine(PEAKS["adamw"][1], 20, 450, least=0.0)))


def converged(draw: Draw) -> Plan:
    """Easy text, learned early; the rest of the run is level."""
    language = draw.language(surprise=0.03, branches=draw.one_of(1, 2))
    return draw.healthy(draw.setup(language, optimizer="adamw", rate=constant(5e-3, 20, 0)))


def epochs(draw: Draw) -> Plan:
    """Little data: the same batches come again every epoch, in another order."""
    setup = draw.setup(language := draw.language())
    rng, size = draw.rng, draw.one_of(16, 30, 50)
    data = [language.rows(rng, 8, setup.tokens) for _ in range(size)]
    order = np.concatenate([rng.permutation(size) for _ in range(setup.steps // size + 1)])
    return draw.healthy(replace(setup, batch=lambda step: (data[order[step]], data[order[step]])))


def epochs_in_order(draw: Draw) -> Plan:
    """Little data that is not shuffled: the same batch every so many steps."""
    setup = draw.setup(language := draw.language())
    size = draw.one_of(8, 20, 40)
    data = [language.rows(draw.rng, 8, setup.tokens) for _ in range(size)]
    return draw.healthy(replace(setup, batch=lambda step: (data[step % size], data[step % size])))


def curriculum(draw: Draw) -> Plan:
    """The text gets harder in the first half, slower than it is learned."""
    setup = draw.setup(language := draw.language(branches=4), rate=constant(4e-3, 30, 0), optimizer="adamw")
    rng, until, hardest = draw.rng, draw.step(100, 150), draw.between(0.1, 0.2)

    def batch(step):
        ids = language.rows(rng, 8, setup.tokens, hardest * min(1.0, step / until))
        return ids, ids

    return draw.healthy(replace(setup, batch=batch))


def easier_later(draw: Draw) -> Plan:
    """The text changes for the better at one step: the loss falls at once."""
    setup = draw.setup(language := draw.language())
    rng, at = draw.rng, draw.step(180, 300)

    def batch(step):
        ids = language.rows(rng, 8, setup.tokens, 0.3 if step < at else 0.1)
        return ids, ids

    return draw.healthy(replace(setup, batch=batch))


def dropout(draw: Draw) -> Plan:
    return draw.healthy(draw.setup(dropout=draw.between(0.05, 0.2)))


def growing_batches(draw: Draw) -> Plan:
    """Batch size doubles twice, by design: the noise shrinks."""
    setup = draw.setup(language := draw.language())
    rng = draw.rng

    def batch(step):
        ids = language.rows(rng, 4 * 2 ** min(2, step // 150), setup.tokens)
        return ids, ids

    return draw.healthy(replace(setup, batch=batch))


def half(draw: Draw) -> Plan:
    """float16 with a dynamic loss scale that doubles, overflows, and halves: as it should."""
    scaler = {"init_scale": 2.0 ** draw.step(12, 18), "growth_interval": draw.one_of(20, 40, 80)}
    return draw.healthy(draw.setup(dtype="float16", scaler=scaler, steps=350, layers=1))


def half_first_steps(draw: Draw) -> Plan:
    """The loss scale starts far too high and falls for a few steps before the first one is applied."""
    scaler = {"init_scale": 2.0 ** draw.step(22, 26), "growth_interval": 500}
    return draw.healthy(draw.setup(dtype="float16", scaler=scaler, steps=350, layers=1))


def half_quiet(draw: Draw) -> Plan:
    """The loss scale never changes, since nothing overflows and the next doubling is far: no trouble."""
    scaler = {"init_scale": 2.0 ** draw.step(7, 10), "growth_interval": 2000}
    return draw.healthy(draw.setup(dtype="float16", scaler=scaler, steps=350, layers=1))


def brain_float(draw: Draw) -> Plan:
    return draw.healthy(draw.setup(dtype="bfloat16", steps=350, layers=1))


def strong_decay(draw: Draw) -> Plan:
    """Weight decay that holds the weights: the norm levels off."""
    return draw.healthy(draw.setup(optimizer=draw.one_of("adamw", "nadam"), decay=always(draw.between(0.3, 1.0))))


MAKERS = {
    make.__name__: make
    for make in (
        usual,
        small_batches,
        uneven_batches,
        long_warmup,
        no_warmup,
        steps_down,
        warm_restarts,
        decayed_to_nothing,
        converged,
        epochs,
        epochs_in_order,
        curriculum,
        easier_later,
        dropout,
        growing_batches,
        half,
        half_first_steps,
        half_quiet,
        brain_float,
        strong_decay,
    )
}
