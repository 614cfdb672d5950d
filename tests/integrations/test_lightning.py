"""NaNCapture in the real Lightning: a bad step is named, captured and not applied, and training halts or continues."""

from __future__ import annotations

import copy

import pytest
import torch

import torchnan
from tests.support.state_equality import same
from torchnan.recovery import TrainingStopped

lightning = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402

from tests.support.lightning_runs import BAD, FILE, LINE, ROWS, Net, State, data, fit  # noqa: E402
from torchnan.integrations.lightning import NaNCapture  # noqa: E402


def as_bits(model, trainer):
    return copy.deepcopy((model.state_dict(), trainer.optimizers[0].state_dict(), torch.get_rng_state()))


def test_a_bad_step_is_named_captured_and_replayed(tmp_path):
    capture = NaNCapture(tmp_path, halt=False)
    trainer, _ = fit(capture)
    (event,) = capture.events
    assert (event.step, event.what, event.action) == (BAD + 1, "gradient", "skip")
    assert event.seen == "1 of 7 gradients are not finite: scale (nan 1)"
    assert (event.cause, event.verdict, event.same_bits) == ("operation", "persistent", True)
    assert (event.finding.file, event.finding.line, event.finding.node) == (FILE, LINE, "SqrtBackward0")
    assert trainer.global_step == 8
    assert capture.captures == [event.capture] == [str(tmp_path / f"rank-0-step-{BAD + 1:08d}")]
    kept = torchnan.load_capture(event.capture)
    ((batch, index),) = kept.batches
    assert index == BAD
    assert torch.equal(batch, data()[ROWS * BAD : ROWS * (BAD + 1)])
    torch.manual_seed(7)
    replayed = kept.replay(Net(), lambda module, arguments: module.training_step(*arguments)["loss"])
    assert (replayed.verdict, replayed.same_bits, replayed.finding.line) == ("persistent", True, LINE)


@pytest.mark.parametrize("try_remedies", [False, True])
def test_a_bad_step_leaves_no_trace(tmp_path, try_remedies):
    state, capture = State(), NaNCapture(tmp_path, halt=False, try_remedies=try_remedies)
    fit(capture, state, gradient_clip_val=0.5)
    assert ("sqrt" in capture.events[0].remedies) == try_remedies
    assert same(state.before[BAD], state.after[BAD])
    assert not any(same(state.before[i], state.after[i]) for i in range(8) if i != BAD)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5},
        {"precision": "bf16-mixed"},
    ],
    ids=["plain", "accumulation and clipping", "bf16-mixed"],
)
def test_a_healthy_run_is_the_same_bit_for_bit(tmp_path, options):
    trainer, model = fit(rows=data(bad=None), **options)
    plain = as_bits(model, trainer)
    metrics = dict(trainer.callback_metrics)
    capture = NaNCapture(tmp_path)
    trainer, model = fit(capture, rows=data(bad=None), **options)
    assert same(as_bits(model, trainer), plain)
    assert same(dict(trainer.callback_metrics), metrics)
    assert capture.events == []
    assert capture.guard.step_number == trainer.global_step


def test_training_halts_in_good_order(tmp_path):
    capture = NaNCapture(tmp_path, replay=False)
    trainer, model = fit(capture, max_epochs=3)
    assert trainer.should_stop
    assert trainer.global_step == BAD + 1
    assert max(index for index, _ in model.seen) == BAD
    assert capture.nan_captured


def test_log_calls_of_a_replay_are_dropped(tmp_path):
    trainer, model = fit(NaNCapture(tmp_path, halt=False))
    assert len(model.seen) > 8  # it has been run again
    assert trainer.callback_metrics["batches"] == 8


def test_a_step_is_all_of_its_micro_batches(tmp_path):
    state, capture = State(), NaNCapture(tmp_path, halt=False)
    trainer, _ = fit(capture, state, accumulate_grad_batches=3)
    (event,) = capture.events
    assert (event.step, event.verdict, event.same_bits) == (2, "persistent", True)
    assert len(event.losses) == 3
    assert [index for _, index in torchnan.load_capture(event.capture).batches] == [3, 4, 5]
    assert same(state.before[3], state.after[5])
    assert trainer.global_step == 3  # the last of two micro-batches


def test_it_runs_under_the_precision_of_the_trainer(tmp_path):
    capture = NaNCapture(tmp_path, halt=False)
    fit(capture, precision="bf16-mixed")
    (event,) = capture.events
    assert (event.verdict, event.same_bits, event.finding.line) == ("persistent", True, LINE)


def loss_scaling(scale):
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2))


def test_a_loss_scaler_does_not_know_of_a_bad_step(tmp_path):
    class Wrong(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)["loss"]
            return loss * float("nan") if batch_idx == BAD else loss

    state, capture = State(), NaNCapture(tmp_path, halt=False)
    trainer, _ = fit(capture, state, model=Wrong(), rows=data(bad=None), plugins=loss_scaling(256.0))
    (event,) = capture.events
    assert (event.step, event.what, event.seen, event.verdict) == (BAD + 1, "loss", "loss is nan", "persistent")
    assert same(state.before[BAD], state.after[BAD])
    assert trainer.precision_plugin.scaler.get_scale() == 256.0 * 2**3  # seven good steps, two to each growth


def test_a_scaler_in_search_of_its_scale_is_not_a_bad_step(tmp_path):
    capture = NaNCapture(tmp_path)
    trainer, _ = fit(capture, rows=data(bad=None), plugins=loss_scaling(2.0**127))
    assert capture.events == []
    assert not trainer.should_stop
    assert trainer.precision_plugin.scaler.get_scale() < 2.0**127


def test_losses_are_reported_as_they_were_before_scaling(tmp_path):
    plain, scaled = (NaNCapture(tmp_path, replay=False, norm_limit=1e-6) for _ in range(2))
    fit(plain, rows=data(bad=None))
    fit(scaled, rows=data(bad=None), plugins=loss_scaling(256.0))
    assert plain.events[0].losses == pytest.approx(scaled.events[0].losses, rel=0.01)


def test_batches_are_kept_as_copies(tmp_path):
    class Writing(Net):
        def training_step(self, batch):
            return super().training_step(batch.neg_().neg(), 0)

    capture = NaNCapture(tmp_path)
    fit(capture, model=Writing())
    (event,) = capture.events
    assert (event.verdict, event.same_bits) == ("persistent", True)
    ((batch,),) = torchnan.load_capture(event.capture).batches
    assert torch.equal(batch, data()[ROWS * BAD : ROWS * (BAD + 1)])


class Descent(torch.optim.Optimizer):
    """One that takes no gradients of what it calls."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure):
        loss = closure()
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad
        return loss


def test_an_optimizer_may_turn_gradients_off(tmp_path):
    class Descending(Net):
        def configure_optimizers(self):
            return Descent(self.parameters())

    capture = NaNCapture(tmp_path)
    fit(capture, model=Descending())
    assert [(event.verdict, event.same_bits) for event in capture.events] == [("persistent", True)]


def test_a_micro_batch_without_a_loss_is_left_out(tmp_path):
    class Sparing(Net):
        def training_step(self, batch, batch_idx):
            return None if batch_idx == BAD - 1 else super().training_step(batch, batch_idx)

    capture = NaNCapture(tmp_path, halt=False)
    fit(capture, model=Sparing(), accumulate_grad_batches=2)
    (event,) = capture.events
    assert (event.step, event.verdict, event.finding.line) == (2, "persistent", LINE)


def test_a_step_abandoned_with_its_epoch_is_not_part_of_the_next(tmp_path):
    class Impatient(Net):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if self.current_epoch == 0 and batch_idx == 1 else None

    capture = NaNCapture(tmp_path, halt=False, replay=False)
    fit(capture, model=Impatient(), rows=data(bad=0), max_epochs=2)
    assert [event.step for event in capture.events] == [1, 3]
    assert [len(torchnan.load_capture(path).batches) for path in capture.captures] == [1, 1]


def test_a_rollback_brings_back_schedulers_too(tmp_path):
    class Scheduled(Net):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    class Rates(lightning.Callback):
        rates = []

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    state, rates = State(), Rates()
    options = dict(snapshot_every=2, on_bad_step="rollback", lr_factor=1.0)
    capture = NaNCapture(tmp_path, halt=False, replay=False, **options)
    fit(capture, state, rates, model=Scheduled())
    (event,) = capture.events
    assert (event.action, event.snapshot) == ("rollback", 2)
    assert same(state.before[2][0], state.after[BAD][0])
    assert rates.rates[BAD + 1] == rates.rates[3]  # it steps after a bad step as after a good one


def test_where_the_policy_has_no_answer_training_stops(tmp_path):
    capture = NaNCapture(tmp_path, replay=False, on_bad_step="raise")
    with pytest.raises(TrainingStopped, match="step 4 was not applied"):
        fit(capture)
    assert capture.nan_captured


def test_the_state_is_in_checkpoints(tmp_path):
    capture = NaNCapture(tmp_path / "captures", replay=False)
    trainer, _ = fit(capture)
    trainer.save_checkpoint(tmp_path / "halted.ckpt")
    resumed = NaNCapture(tmp_path / "captures")
    trainer, _ = fit(resumed, rows=data(bad=None), max_epochs=2, ckpt_path=tmp_path / "halted.ckpt")
    assert resumed.nan_captured
    assert resumed.captures == capture.captures
    assert resumed.events == []
    assert resumed.guard.step_number == trainer.global_step > 8
    assert resumed.guard.state_dict()["decision"]["skips"] == 1


class Manual(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class WithLBFGS(Net):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


class WithIterator(Net):
    def training_step(self, dataloader_iter):
        return super().training_step(*next(dataloader_iter)[:2])


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Manual, "manual optimization of Manual: use torchnan.StepGuard"),
        (WithLBFGS, "cannot guard LBFGS, which runs forward and backward several times"),
        (WithIterator, "training_step takes a dataloader_iter: let it take the batch"),
    ],
)
def test_unsupported_setups_are_rejected(tmp_path, model, text):
    with pytest.raises(lightning.utilities.exceptions.MisconfigurationException, match=text):
        fit(NaNCapture(tmp_path), model=model())
