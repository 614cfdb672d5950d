"""A bad step leaves no trace; the policy decides what happens."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import sys

import numpy
import pytest
import torch
from torch import nn

import torchnan
from tests.support.captured_output import logged
from tests.support.guarded_steps import NAN, Training, assert_same, bad_batch, batch_of, step_of
from torchnan.recovery import EXIT_CODES, TrainingStopped, exit_codes

# -- good steps


def test_good_steps_are_bit_for_bit_those_of_a_plain_loop():
    guarded = Training(norm_factor=1000.0, snapshot_every=2, keep="copy")
    results = [guarded.guard.step(batch_of(i)) for i in range(5)]
    plain = Training()
    for i in range(5):
        plain.optimizer.zero_grad()
        step_of(plain.model, batch_of(i)).backward()
        plain.optimizer.step()
    assert_same(guarded.state(), plain.state())
    assert all(result.applied and result.event is None and math.isfinite(result.norm) for result in results)
    assert [result.step for result in results] == [1, 2, 3, 4, 5]


def test_a_good_step_calls_few_functions():
    """A small step would notice them: each takes its code into the processor's cache."""
    guard = Training(lambda model, batch: model(batch).mean(), nn.Linear(4, 1)).guard
    for _ in range(3):
        guard.step(torch.ones(2, 4))
    called = []

    def record(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(os.path.dirname(torchnan.__file__)):
            called.append(frame.f_code.co_name)

    sys.setprofile(record)
    try:
        guard.step(torch.ones(2, 4))
    finally:
        sys.setprofile(None)
    assert len(called) <= 45, called


def test_micro_batches_make_one_step():
    model = nn.Linear(4, 1)
    whole, parts = Training(model=copy.deepcopy(model)), Training(model=copy.deepcopy(model))
    step = lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]).square().mean()  # noqa: E731
    whole.guard = torchnan.StepGuard(whole.model, whole.optimizer, step)
    parts.guard = torchnan.StepGuard(parts.model, parts.optimizer, step)
    x, y = batch_of(1)
    one = whole.guard.step((x, y))
    two = parts.guard.step((x[:4], y[:4]), (x[4:], y[4:]))
    torch.testing.assert_close(whole.model.weight, parts.model.weight)
    torch.testing.assert_close(one.loss, two.loss)
    assert one.norm == pytest.approx(two.norm)


def test_clipping_is_that_of_pytorch():
    guarded, plain = Training(max_norm=0.5), Training()
    clipped = 0
    for i in range(20):
        torch.manual_seed(i)
        result = guarded.guard.step(batch_of(i))
        torch.manual_seed(i)
        plain.optimizer.zero_grad()
        step_of(plain.model, batch_of(i)).backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.model.parameters(), 0.5)
        plain.optimizer.step()
        assert result.norm == pytest.approx(norm.item(), rel=1e-6)
        clipped += norm.item() > 0.5
    assert clipped > 0
    assert_same(guarded.state(), plain.state())


def test_clipping_without_a_second_pass_is_close():
    states = []
    for exact in (True, False):
        training = Training(max_norm=0.1, exact_clip=exact)
        training.guard.step(batch_of(0))
        states.append(training.state())
    torch.testing.assert_close(*states)


class Slopes(nn.Module):
    """Has given gradients."""

    def __init__(self, gradients):
        super().__init__()
        self.gradients = gradients
        self.weights = nn.ParameterList([torch.zeros_like(gradient) for gradient in gradients])

    def forward(self, batch):
        return sum((w * g).sum() for w, g in zip(self.weights, self.gradients, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("size", "max_norm"), [(1.0, 1e-7), (1.0, 10.0), (1.0, 51.0), (1e-3, 0.05), (1e200, 1.0)])
def test_clipping_has_the_bits_of_pytorch(size, max_norm, dtype):
    """Also with two groups, whose order differs from the model's, near the norm, and beyond the range of float32."""
    if size > 1e38 and dtype is not torch.float64:
        pytest.skip("out of range")
    generator = torch.Generator().manual_seed(3)
    shapes = [(40, 40), (7,), (30, 30), (3, 3)]
    gradients = [(torch.randn(s, generator=generator, dtype=torch.float64) * size).to(dtype) for s in shapes]
    models = [Slopes(gradients) for _ in range(2)]
    guarded, plain = models
    groups = [{"params": [guarded.weights[i]]} for i in (2, 0, 3, 1)]
    guard = torchnan.StepGuard(
        guarded, torch.optim.SGD(groups, lr=1.0), lambda model, batch: model(batch), max_norm=max_norm
    )
    assert guard.step(torch.zeros(1)).applied
    plain(None).backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
    torch.optim.SGD(plain.parameters(), lr=1.0).step()
    assert_same(guarded.state_dict(), plain.state_dict())


@pytest.mark.parametrize("returned", [lambda loss: {"loss": loss}, lambda loss: (loss, "more")])
def test_a_loss_is_found_in_results_of_step_functions(returned):
    training = Training(lambda model, batch: returned(step_of(model, batch)))
    assert training.guard.step(batch_of(0)).applied


@pytest.mark.parametrize("returned", [None, 3.0, torch.zeros(2)])
def test_a_value_that_is_not_a_loss_is_rejected(returned):
    with pytest.raises(TypeError, match="it must return the loss, a tensor of one element"):
        Training(lambda model, batch: returned).guard.step(batch_of(0))


def test_a_step_without_a_step_function_names_it():
    training = Training(None)
    with pytest.raises(TypeError, match=r"step\(\) needs the step function: StepGuard\(model, optimizer, step_fn\)"):
        training.guard.step(batch_of(0))


@pytest.mark.parametrize("runs_backward", [False, True])
def test_a_detached_loss_without_gradients_is_warned_of_once(runs_backward):
    def step(model, batch):
        loss = step_of(model, batch)
        if runs_backward:
            loss.backward()
        return loss.detach()

    training = Training(step)
    with logged() as told:
        for seed in range(2):
            assert training.guard.step(batch_of(seed)).applied
    warned = [
        "torchnan: after backward no parameter of the optimizer has a gradient, so this step trains nothing, and "
        "nothing is checked. Return the loss with its graph, or call loss.backward() in step_fn. Hooks that use "
        "gradients and free them in the backward pass cannot be guarded."
    ]
    assert told == ([] if runs_backward else warned)


def test_a_step_function_may_run_backward_itself():
    def step(model, batch):
        loss = step_of(model, batch)
        loss.backward()
        return loss.detach()

    a = Training(step)
    a.guard.step(batch_of(0))
    b = Training()
    b.guard.step(batch_of(0))
    assert_same(a.state(), b.state())
    assert a.guard.step(bad_batch()).event.finding.origin == "input"


# -- a bad step


@pytest.mark.parametrize("keep", ["reference", "copy"])
def test_a_skipped_step_leaves_no_trace(keep):
    training = Training(keep=keep)
    training.guard.step(batch_of(0))
    before = training.state()
    result = training.guard.step(bad_batch())
    assert not result.applied
    assert_same(training.state(), before)
    assert all(parameter.grad is None for parameter in training.model.parameters())
    assert training.guard.step(batch_of(1)).applied


def test_random_numbers_continue_as_if_the_step_had_run_once():
    def drawn(**options):
        training = Training(**options)
        random.seed(0), numpy.random.seed(0)
        training.guard.step(bad_batch())
        return torch.rand(3), random.random(), numpy.random.rand()

    assert_same(drawn(), drawn(replay=False))


def test_the_event_states_anomaly_site_and_cause():
    training = Training()
    training.guard.step(batch_of(0))
    event = training.guard.step(bad_batch()).event
    assert (event.step, event.what, event.seen, event.rank) == (2, "loss", "loss is nan", 0)
    assert (event.cause, event.verdict, event.same_bits, event.action) == ("data", "persistent", True, "skip")
    assert event.finding.origin == "input"
    assert event.origin.startswith("NaN in an external tensor, first used by aten::addmm in a (Linear) at ")
    assert training.guard.events == [event]
    text = str(event)
    assert text.startswith("torchnan: step 2 was not applied (loss)\n")
    assert "persistent: wrong again, same origin, same bits" in text
    line = json.loads(event.to_json())
    assert (line["schema"], line["losses"], line["finding"]["origin"]) == (1, ["nan"], "input")


def test_a_gradient_is_reported_with_its_parameter():
    def step(model, batch):
        loss = step_of(model, batch)
        return loss + (model.b.bias - model.b.bias.detach()).abs().sqrt().sum()  # slope of sqrt at 0

    event = Training(step).guard.step(batch_of(0)).event
    assert event.what == "gradient"
    assert event.seen == "1 of 6 gradients are not finite: b.bias (nan 1)"
    assert event.finding.phase == "backward"
    assert event.cause == "operation"


def test_of_micro_batches_the_first_bad_one_is_reported():
    event = Training().guard.step(batch_of(0), bad_batch(), bad_batch(1)).event
    assert event.micro_batch == 1
    assert event.losses[0] == event.losses[0]
    assert event.finding.first_index == (2, 1)


def test_spikes_of_the_norm_trip():
    training = Training(norm_factor=10.0)
    for i in range(12):
        assert training.guard.step(batch_of(i)).applied
    x, y = batch_of(99)
    event = training.guard.step((x, y + 1e6)).event
    assert (event.what, event.cause, event.finding, event.action) == ("norm", "norm", None, "skip")
    assert "times the mean of the last 12 good steps" in event.seen
    assert (event.verdict, event.same_bits) == ("persistent", True)


def test_a_weight_that_was_bad_before_is_reported_as_that():
    training = Training(on_bad_step="raise")
    training.guard.step(batch_of(0))
    training.model.b.weight.data[0, 3] = math.inf
    with pytest.raises(TrainingStopped) as stopped:
        training.guard.step(batch_of(1))
    event = stopped.value.event
    assert event.cause == "model"
    assert event.model_note == "bad before this step ran: b.weight; written after step 1, the last good one"
    assert stopped.value.exit_code == EXIT_CODES["model"]
    assert "there is no snapshot to go back to: set snapshot_every" in event.reason


# -- verdicts of the replay


def test_a_step_that_is_finite_when_run_again_is_transient_and_is_retried():
    faults = iter([True])

    def step(model, batch):
        loss = step_of(model, batch)
        return loss * NAN if next(faults, False) else loss

    training = Training(step)
    result = training.guard.step(batch_of(0))
    plain = Training()
    plain.guard.step(batch_of(0))
    assert result.applied
    event = training.guard.events[0]
    assert (event.verdict, event.cause, event.action) == ("transient", "transient", "retry")
    assert "suspect state of your own code that a replay does not restore" in str(event)
    assert_same(training.state(), plain.state())


def test_a_value_that_comes_and_goes_is_nondeterministic():
    faults = iter([True, True, False])

    def step(model, batch):
        return step_of(model, batch) * (NAN if next(faults, False) else 1)

    event = Training(step).guard.step(batch_of(0)).event
    assert (event.verdict, event.cause, event.action) == ("nondeterministic", "nondeterministic", "skip")


def test_dropout_numpy_and_python_draw_the_same_again():
    """Each run is bad only for these very numbers."""
    seen = []

    def step(model, batch):
        loss = step_of(model, batch)
        seen.append((loss.item(), numpy.random.rand(), random.random()))
        return loss * NAN

    event = Training(step).guard.step(batch_of(0)).event
    assert event.same_bits
    assert len(set(seen)) == 1 < len(seen) == 3


def test_the_payload_of_a_nan_does_not_count():
    payloads = iter([0x7FC00000, -0x400000, 0x7FC00001])

    def step(model, batch):
        loss = step_of(model, batch)
        bits = torch.tensor([next(payloads)], dtype=torch.int32).view(torch.float32)
        return loss + bits.squeeze()

    event = Training(step).guard.step(batch_of(0)).event
    assert (event.verdict, event.same_bits) == ("persistent", True)


def test_a_step_that_writes_to_its_batch_is_replayed_only_from_a_copy():
    def step(model, batch):
        batch[0].mul_(1.0)
        return step_of(model, batch)

    event = Training(step).guard.step(bad_batch()).event
    assert event.verdict is None
    assert event.notes == ["not replayed: the step has written to its batch[0]: keep='copy' keeps batches as they were"]
    assert Training(step, keep="copy").guard.step(bad_batch()).event.verdict == "persistent"


def test_replay_can_be_left_out():
    event = Training(replay=False).guard.step(bad_batch()).event
    assert (event.verdict, event.finding, event.cause) == (None, None, "unknown")
    assert event.notes == ["not replayed: replay=False"]


# -- actions


def test_after_too_many_in_a_row_training_stops():
    training = Training(max_consecutive=2)
    for _ in range(2):
        assert training.guard.step(bad_batch()).event.action == "skip"
    with pytest.raises(TrainingStopped, match=r"2 bad steps in a row have been skipped \(max_consecutive\)") as stopped:
        training.guard.step(bad_batch())
    assert stopped.value.reason == "exhausted"
    assert stopped.value.finding.origin == "input"


def test_a_good_step_ends_the_row_but_not_the_budget():
    training = Training(max_consecutive=2, max_skips=3)
    for i in range(3):
        training.guard.step(bad_batch())
        training.guard.step(batch_of(i))
    with pytest.raises(TrainingStopped, match=r"3 bad steps have been skipped \(max_skips\)"):
        training.guard.step(bad_batch())


def test_raise_raises_with_nothing_applied():
    training = Training(remedy={"data": "raise"})
    before = training.state()
    with pytest.raises(TrainingStopped, match="step 1 was not applied") as stopped:
        training.guard.step(bad_batch())
    assert stopped.value.exit_code == EXIT_CODES["persistent"] == 80
    assert_same(training.state(), before)
    with pytest.raises(SystemExit) as ended, exit_codes():
        training.guard.step(bad_batch())
    assert ended.value.code == 80


def test_the_callback_has_the_last_word():
    asked = []

    def on_instability(event):
        asked.append(event)
        return "raise"

    training = Training(on_instability=on_instability)
    with pytest.raises(TrainingStopped, match="raise: on_instability asked for it"):
        training.guard.step(bad_batch())
    assert asked[0].cause == "data"
    with pytest.raises(ValueError, match="on_instability returned 'ignore': it returns None or one of retry, split"):
        Training(on_instability=lambda event: "ignore").guard.step(bad_batch())


def test_state_goes_into_a_checkpoint():
    training = Training(max_consecutive=2, norm_factor=5.0)
    training.guard.step(batch_of(0))
    training.guard.step(bad_batch())
    other = Training(max_consecutive=2, norm_factor=5.0)
    other.guard.load_state_dict(json.loads(json.dumps(training.guard.state_dict())))
    assert other.guard.step_number == 2
    other.guard.step(bad_batch())
    with pytest.raises(TrainingStopped):
        other.guard.step(bad_batch())


def test_a_user_who_detects_anyway_is_not_disturbed():
    with torchnan.detect(action="log") as watch:
        training = Training()
        training.guard.step(batch_of(0))
    assert watch.findings == []


def test_parameters_that_are_added_later_are_checked():
    late = nn.Parameter(torch.zeros(2))

    def step(model, batch):
        return step_of(model, batch) + (late - late.detach()).abs().sqrt().sum()

    training = Training(step)
    assert training.guard.step(batch_of(0)).applied  # not a parameter of the model
    training.optimizer.add_param_group({"params": [late]})
    event = training.guard.step(batch_of(0)).event
    assert event.seen == "1 of 7 gradients are not finite: param_groups[1]['params'][0] (nan 2)"
