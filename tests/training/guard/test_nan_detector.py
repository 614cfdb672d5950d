"""NaNDetector in a loop of one's own."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import nn

import torchnan

NAN, INF = math.nan, math.inf


@pytest.fixture
def told(monkeypatch):
    """The log messages."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("torchnan")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def with_gradients(**gradients: torch.Tensor) -> nn.Module:
    model = nn.Module()
    for name, gradient in gradients.items():
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient
        model.register_parameter(name, parameter)
    return model


def test_a_word_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"^on_nonfinite='stop' cannot be used: on_nonfinite takes one of 'warn'"):
        torchnan.NaNDetector(on_nonfinite="stop")


def test_the_old_name_of_on_nonfinite_still_works_and_warns():
    with pytest.warns(DeprecationWarning, match="action of NaNDetector is now called on_nonfinite") as warned:
        assert torchnan.NaNDetector(action="raise").on_nonfinite == "raise"
    assert warned[0].filename == __file__
    with pytest.raises(ValueError, match="action is an old name for on_nonfinite: give on_nonfinite alone"):
        torchnan.NaNDetector(on_nonfinite="skip", action="raise")


@pytest.mark.parametrize("name", ["max_consecutive", "max_history"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5"])
def test_counts_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} cannot be used: {name} takes an integer of at least 1"):
        torchnan.NaNDetector(**{name: value})


def test_it_starts_from_nothing():
    detector = torchnan.NaNDetector()
    assert detector.state == torchnan.NaNState(0, 0, INF, 0, [])
    assert (detector.on_nonfinite, detector.max_consecutive, detector.max_history) == ("warn", 5, 100)
    assert not detector.should_rollback


@pytest.mark.parametrize("good", [1.5, 0, torch.tensor(1.5), torch.tensor([[1.5]], dtype=torch.bfloat16)])
def test_a_finite_loss_is_good(good, told):
    detector = torchnan.NaNDetector()
    assert detector.check_loss(good, 7) is True
    assert (detector.state.last_good_loss, detector.state.last_good_step) == (float(good), 7)
    assert told == []


@pytest.mark.parametrize("bad", [NAN, INF, -INF, torch.tensor(NAN), torch.tensor([INF], dtype=torch.float16)])
@pytest.mark.parametrize("action", ["warn", "skip"])
def test_a_bad_loss_is_reported_and_counted(bad, action, told):
    detector = torchnan.NaNDetector(action)
    detector.check_loss(0.5, 3)
    assert detector.check_loss(bad, 4) is False
    assert detector.state == torchnan.NaNState(1, 1, 0.5, 3, [4])
    assert len(told) == 1
    assert told[0].startswith(f"NaN/Inf loss at step 4: loss is {float(bad)}")
    assert "(consecutive=1, total=1, last_good_loss=0.5000 at step 3)" in told[0]
    assert told[0].endswith("skip the optimizer step") == (action == "skip")


def test_a_bad_first_loss_names_no_good_one(told):
    torchnan.NaNDetector().check_loss(NAN, 1)
    assert told == ["NaN/Inf loss at step 1: loss is nan (consecutive=1, total=1, no good loss yet)"]


def test_raise_raises_and_counts():
    detector = torchnan.NaNDetector(on_nonfinite="raise")
    with pytest.raises(RuntimeError, match="NaN/Inf loss at step 4: loss is nan"):
        detector.check_loss(NAN, 4)
    assert detector.state.total_nans == 1


def test_a_good_step_ends_a_row_of_bad_ones():
    detector = torchnan.NaNDetector(max_consecutive=3)
    for step, loss in enumerate([NAN, NAN, 1.0, NAN, NAN]):
        detector.check_loss(loss, step)
        assert not detector.should_rollback
    detector.check_loss(NAN, 5)
    assert detector.should_rollback
    assert (detector.state.consecutive_nans, detector.state.total_nans) == (3, 5)
    detector.reset()
    assert detector.state == torchnan.NaNState()
    assert not detector.should_rollback


def test_the_list_of_bad_steps_is_bounded():
    detector = torchnan.NaNDetector(max_history=3)
    for step in range(10):
        detector.check_loss(NAN, step)
    assert detector.state.nan_steps == [0, 1, 2]
    assert detector.state.total_nans == 10


def test_a_loss_of_many_elements_is_refused():
    with pytest.raises(ValueError, match=r"a number or a tensor of one element, not one of shape \(2,\)"):
        torchnan.NaNDetector().check_loss(torch.zeros(2), 0)


def test_one_scan_gives_norm_and_largest():
    a, b = torch.tensor([3.0, 0.0]), torch.tensor([[-4.0]])
    detector = torchnan.NaNDetector()
    assert detector.check_gradients(with_gradients(a=a, b=b), 1) is True
    assert (detector.gradient_norm, detector.gradient_absmax, detector.bad_parameters) == (5.0, 4.0, ())
    assert detector.state.total_nans == 0


def test_bad_gradients_are_named_with_counts(told):
    a, b, c = torch.tensor([1.0, NAN, NAN]), torch.ones(2), torch.tensor([-INF])
    detector = torchnan.NaNDetector()
    assert detector.check_gradients(with_gradients(a=a, b=b, c=c), 9) is False
    assert detector.bad_parameters == ("a", "c")
    assert told[0].startswith("NaN/Inf gradient at step 9: in a (nan 2), c (-inf 1)")
    with pytest.raises(RuntimeError, match=r"in a \(nan 2\), c \(-inf 1\)"):
        torchnan.NaNDetector("raise").check_gradients(with_gradients(a=a, b=b, c=c), 9)


def test_clipping_needs_no_second_pass():
    model = with_gradients(a=torch.randn(50), b=torch.randn(7, 3))
    twin = with_gradients(a=model.a.grad.clone(), b=model.b.grad.clone())
    detector = torchnan.NaNDetector()
    detector.check_gradients(model)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, torch.tensor(detector.gradient_norm))
    torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    torch.testing.assert_close(model.a.grad, twin.a.grad)
    torch.testing.assert_close(model.b.grad, twin.b.grad)


def test_spikes_of_the_norm_trip(told):
    detector = torchnan.NaNDetector(norm_limit=100.0, norm_factor=5.0)
    for _ in range(10):
        assert detector.check_gradients(with_gradients(a=torch.tensor([2.0])))
    assert detector.check_gradients(with_gradients(a=torch.tensor([9.9])))
    assert not detector.check_gradients(with_gradients(a=torch.tensor([20.0])), 12)
    assert "gradient norm 20 is 7.36 times the mean of the last 11 good steps" in told[0]
    assert not detector.check_gradients(with_gradients(a=torch.tensor([101.0])))
    assert "gradient norm 101 is above the limit of 100" in told[1]


def test_its_state_goes_into_a_checkpoint():
    detector = torchnan.NaNDetector(norm_factor=2.0)
    for step, loss in enumerate([1.0, NAN]):
        detector.check_loss(loss, step)
    for _ in range(10):
        detector.check_gradients(with_gradients(a=torch.tensor([1.0])))
    other = torchnan.NaNDetector(norm_factor=2.0)
    other.load_state_dict(detector.state_dict())
    assert other.state == detector.state
    assert other.state.nan_steps is not detector.state.nan_steps
    assert not other.check_gradients(with_gradients(a=torch.tensor([3.0])))


def test_looking_is_not_harm():
    """Under detection, the detector's own reads of a bad loss or gradient are not the program's."""
    detector = torchnan.NaNDetector()
    with torchnan.detect() as watch:
        loss = torch.tensor([-1.0]).log()
        assert not detector.check_loss(loss, 1)
        assert not detector.check_gradients(with_gradients(a=loss))
        assert (loss * 2).shape == (1,)  # used: otherwise it is warned of as unused
        del loss
    assert watch.findings == []
