"""Remedies that are tried on a step: what makes it finite, at its call site only, with nothing of the run changed."""

from __future__ import annotations

import random
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchnan
from tests.support import write_remedies_table
from tests.support.guarded_steps import Net, Training, assert_same, bad_batch, batch_of, step_of
from tests.support.remedied_faults import program
from tests.support.remedied_faults import step_of as step_of_program
from torchnan import cli
from torchnan.config.options import OptionError
from torchnan.training.guard.errors import TrainingStopped
from torchnan.training.guard.event import text_of_log_line
from torchnan.training.guard.remedies.call import CallMode, Makers


class Contrastive(nn.Module):
    """A loss of two logarithms, of which one meets zeros."""

    def __init__(self):
        super().__init__()
        self.encode, self.head, self.drop = nn.Linear(4, 8), nn.Linear(8, 1), nn.Dropout(0.25)

    def forward(self, x, log_of_scores=lambda scores: scores.softmax(1).log()):
        z = self.encode(x)
        spread = (self.head(self.drop(z)).square() + 1e-20).log().mean()
        return 1e-3 * spread - log_of_scores(z @ z.T).diagonal().mean()


def contrast(model, batch):
    return model(batch)


def sample(seed, is_bad=False):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    if is_bad:
        x[3] *= 30
    return x


def captured(tmp_path, model, step, *batches):
    """The capture of the last of these steps."""
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), 1e-3), step, captures=tmp_path)
    for batch in batches:
        event = guard.step(batch).event
    return torchnan.load_capture(event.capture)


def contrastive_capture(tmp_path):
    torch.manual_seed(0)
    return captured(tmp_path, Contrastive(), contrast, sample(0), sample(1), sample(2, is_bad=True))


def by_text(trials):
    return {re.sub(r" at \S+$", "", trial.text): trial for trial in trials.trials}


def test_the_command_names_the_remedies_that_make_the_step_finite(tmp_path, capsys):
    capture = contrastive_capture(tmp_path)
    here = __name__
    given = ["replay", str(capture.path), "--step", f"{here}:contrast", "--model", f"{here}:Contrastive", "--remedies"]
    assert cli.main(given) == 1
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert table[0] == "remedies tried on step 3 (replayed 5 times)"
    assert re.search(
        r"  log_softmax at test_remedies.py:\d+  +finite  loss \S+  \(step 2: \S+\) +other gradients ", table[1]
    )
    assert re.search(r"  clamp\(min=1e-12\) before log at test_remedies.py:\d+  +finite  ", table[2])
    assert re.search(r"  the whole step in float64  +finite  .* other gradients moved by \S+$", table[3])
    assert re.search(r"  skip row.* of 8 in the batch +finite", table[4])


def test_a_guard_tries_them_once_for_an_origin_and_shows_the_table_of_the_capture(tmp_path):
    torch.manual_seed(0)
    model = Contrastive()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    log = tmp_path / "log.jsonl"
    guard = torchnan.StepGuard(model, optimizer, contrast, captures=tmp_path / "all", log=log, try_remedies=True)
    guard.step(sample(0))
    guard.step(sample(1))
    event = guard.step(sample(2, is_bad=True)).event
    table = str(torchnan.load_capture(event.capture).try_remedies(Contrastive(), contrast))
    assert event.remedies == table
    assert table.splitlines()[0] == "remedies tried on step 3 (replayed 5 times)"
    assert str(event).endswith("\n".join(f"  {line}" for line in table.splitlines()))
    assert text_of_log_line(log.read_bytes().splitlines()[-1]) == str(event)
    assert guard.step(sample(2, is_bad=True)).event.remedies == ""
    assert guard.failures == {}


def test_a_guard_that_tries_them_trains_as_one_that_does_not():
    """The step after a bad one has the same weights, running statistics and random numbers."""
    trained = []
    for try_remedies in (False, True):
        training = Training(try_remedies=try_remedies)
        for batch in (batch_of(0), bad_batch(1), batch_of(2)):
            last = training.guard.step(batch)
        trained.append((training.state(), last.loss, torch.get_rng_state()))
        assert bool(training.guard.events[0].remedies) == try_remedies
    assert_same(*trained)


def test_a_guard_without_replays_cannot_try_them():
    with pytest.raises(OptionError, match=r"try_remedies=True cannot be used: with replay=False no origin is found"):
        Training(try_remedies=True, replay=False)


@pytest.mark.parametrize(
    ("remedy", "by_hand"),
    [
        ("log_softmax", lambda scores: scores.log_softmax(1)),
        ("clamp(min=1e-12) before log", lambda scores: scores.softmax(1).clamp(min=1e-12).log()),
    ],
)
def test_a_remedy_gives_the_bits_of_the_program_mended_by_hand_and_changes_one_call_site(tmp_path, remedy, by_hand):
    capture = contrastive_capture(tmp_path)
    tried = by_text(capture.try_remedies(Contrastive(), contrast))[remedy]
    mended = Contrastive()
    capture.restore(mended)
    capture.random.restore()
    assert tried.is_finite
    assert tried.loss == mended(capture.batches[0], by_hand).item()


def test_the_state_is_unchanged(tmp_path):
    """With a model that a run goes on with: weights, running statistics, gradients, random numbers."""
    training = Training(captures=tmp_path)
    training.guard.step(batch_of(0))
    capture = torchnan.load_capture(training.guard.step(bad_batch()).event.capture)
    model = Net()
    step_of(model, batch_of(5)).backward()
    replayed = capture.replay(Net(), step_of)
    before = [t.clone() for t in (*model.parameters(), *model.buffers())]
    gradients = [p.grad for p in model.parameters()]
    bits = [gradient.clone() for gradient in gradients]
    random_state = torch.get_rng_state(), random.getstate()
    assert capture.try_remedies(model, step_of, replayed=replayed).finite
    assert_same([*model.parameters(), *model.buffers()], before)
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))
    assert_same(gradients, bits)
    assert torch.equal(torch.get_rng_state(), random_state[0])
    assert random.getstate() == random_state[1]
    assert_same(capture.batches, [bad_batch()])


def test_a_run_in_which_nothing_is_replaced_has_the_same_bits():
    """Attention, batch statistics, dropout, autocast and recomputation, above autograd and below."""

    def run():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.GELU())
        x = torch.randn(4, 8, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            h = checkpoint(net, x, use_reentrant=False)
        y = F.scaled_dot_product_attention(h[None], h[None], h[None]).float()
        loss = F.cross_entropy(y[0], torch.tensor([0, 1, 2, 3])) + nn.LSTM(8, 8)(x)[0].std()
        loss.backward()
        return [loss.detach(), x.grad, *(p.grad for p in net.parameters())]

    plain = run()
    with CallMode(lambda call: call.run(), Makers()):
        intercepted = run()
    assert_same(intercepted, plain)


def test_the_event_has_the_loss_of_the_last_good_step(tmp_path):
    training = Training(captures=tmp_path)
    good = training.guard.step(batch_of(0))
    event = training.guard.step(bad_batch()).event
    assert (event.good_step, event.good_loss) == (1, good.loss.item())
    assert torchnan.load_capture(event.capture).event["good_loss"] == good.loss.item()


def test_of_bad_data_the_hole_is_filled_and_the_row_left_out(tmp_path):
    training = Training(captures=tmp_path)
    training.guard.step(batch_of(0))
    capture = torchnan.load_capture(training.guard.step(bad_batch()).event.capture)
    tried = by_text(capture.try_remedies(Net(), step_of))
    assert list(tried) == ["nan_to_num(0) before linear", "skip row 2 of 8 in the batch"]
    assert all(trial.is_finite for trial in tried.values())
    x, y = bad_batch()
    kept = [0, 1, 3, 4, 5, 6, 7]
    model = Net()
    capture.restore(model)
    capture.random.restore()
    assert tried["skip row 2 of 8 in the batch"].loss == step_of(model, (x[kept], y[kept])).item()


def test_of_a_spike_the_gradient_is_clipped(tmp_path):
    training = Training(captures=tmp_path, norm_limit=1000.0)
    x, y = batch_of(0)
    capture = torchnan.load_capture(training.guard.step((x, y + 1e6)).event.capture)
    (trial,) = capture.try_remedies(Net(), step_of).trials
    assert (trial.text, trial.is_finite) == ("gradient clipping, max_norm=1", True)
    assert trial.norm == pytest.approx(1.0, rel=1e-3)


def test_of_a_bad_weight_nothing_is_tried(tmp_path):
    def step(model, batch):
        return model(batch).square().mean()

    model = nn.Linear(4, 1)
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), 1e-3), step, captures=tmp_path)
    with torch.no_grad():
        model.weight[0, 2] = torch.nan
    with pytest.raises(TrainingStopped) as stopped:
        guard.step(torch.randn(8, 4))
    capture = torchnan.load_capture(stopped.value.event.capture)
    trials = capture.try_remedies(nn.Linear(4, 1), step)
    assert (trials.trials, trials.runs) == ((), 0)
    assert str(trials) == (
        "no remedy was tried on step 1: the weights were not finite before the step: load an earlier checkpoint"
    )


def test_of_a_step_that_is_finite_now_nothing_is_tried(tmp_path):
    capture = contrastive_capture(tmp_path)
    trials = capture.try_remedies(Contrastive(), lambda model, batch: model.encode(batch).sum())
    assert str(trials) == "no remedy was tried on step 3: the step is finite here"


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 64), nn.Linear(64, 1)

    def forward(self, x):
        return self.down(self.up(x))


def test_a_product_that_overflows_in_float16_runs_in_another_dtype_alone_or_with_its_module():
    torch.manual_seed(0)
    model, x = Narrow(), torch.randn(4, 8)
    with torch.no_grad():
        model.up.weight.mul_(30000)

    def step():
        with torch.autocast("cpu", torch.float16):
            loss = model(x).float().square().mean()
        loss.backward()
        return loss

    tried = by_text(torchnan.try_remedies(step, model=model))
    for dtype in ("float32", "bfloat16"):
        assert tried[f"linear in {dtype}"].is_finite
        assert tried[f"down in {dtype}"].is_finite
        assert tried[f"linear in {dtype}"].moved < 0.01


def test_a_maximum_is_subtracted_only_where_the_exponentials_are_normalized():
    def by_hand():
        logits = torch.tensor([[1000.0, 0.0], [0.0, 1.0]], requires_grad=True)
        e = logits.exp()
        loss = (e / e.sum(1, keepdim=True))[:, 0].sum()
        loss.backward()
        return loss

    def variance():
        logvar = torch.tensor([0.0, 95.0], requires_grad=True)
        loss = logvar.exp().mul(2).mean()
        loss.backward()
        return loss

    normalized = by_text(torchnan.try_remedies(by_hand))["subtract the maximum before exp"]
    assert normalized.loss == torch.tensor([[1000.0, 0.0], [0.0, 1.0]]).softmax(1)[:, 0].sum().item()
    assert "subtract the maximum before exp" not in by_text(torchnan.try_remedies(variance))


def test_a_power_whose_exponent_is_a_tensor_has_its_base_clamped():
    def step():
        base, exponent = torch.tensor([-2.0, 4.0]), nn.Parameter(torch.tensor([2.0, 0.5]))
        loss = base.pow(exponent).sum()
        loss.backward()
        return {"loss": loss, "exponent": exponent}

    tried = by_text(torchnan.try_remedies(step))["clamp(min=1e-12) before pow"]
    assert (tried.is_finite, tried.loss, tried.moved) == (True, 2.0, 0.0)


def test_calls_recomputed_in_the_backward_pass_are_changed_too():
    weight = nn.Parameter(torch.tensor([0.0, 2.0]))

    def logarithm(x):
        return (x * weight).log().exp()

    def step():
        weight.grad = None
        loss = checkpoint(logarithm, torch.ones(2), use_reentrant=False).sum().log()
        loss.backward()
        return {"loss": loss, "weight": weight}

    assert by_text(torchnan.try_remedies(step))["clamp(min=1e-12) before log"].is_finite


def test_where_updates_are_replayed_the_learning_rate_is_lowered_until_they_are_finite():
    def train():
        weight = nn.Parameter(torch.tensor([1.0]))
        optimizer = torch.optim.SGD([weight], lr=1e3)
        for _ in range(20):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        return weight

    tried = by_text(torchnan.try_remedies(train))
    assert [name for name in tried if name.startswith("learning rate")] == [
        "learning rate / 10",
        "learning rate / 100",
        "learning rate / 1000",
    ]
    assert tried["learning rate / 1000"].is_finite


def test_effects_of_a_remedy_on_the_program_are_reported():
    def step():
        x = torch.zeros(2, requires_grad=True)
        y = x.log()
        if y.isfinite().all():
            raise ValueError("finite")
        y.sum().backward()
        return y.sum()

    tried = by_text(torchnan.try_remedies(step))["clamp(min=1e-12) before log"]
    assert (tried.is_finite, tried.left) == (False, "cannot be run: ValueError: finite")


def test_arguments_of_another_type_are_refused():
    with pytest.raises(TypeError, match=re.escape("try_remedies(3): step is a function")):
        torchnan.try_remedies(3)
    with pytest.raises(TypeError, match=re.escape("try_remedies(model=3): model is a torch.nn.Module")):
        torchnan.try_remedies(print, model=3)


def test_a_finite_step_says_so_and_a_switched_off_package_refuses(monkeypatch):
    assert str(torchnan.try_remedies(lambda: torch.ones(()))) == "no remedy was tried: the step is finite"
    monkeypatch.setattr("torchnan._load._C.is_disabled", lambda: True)
    with pytest.raises(OptionError, match="TORCHNAN=0 is set, and remedies are tried under detection: unset it"):
        torchnan.try_remedies(lambda: torch.ones(()))


@pytest.mark.breadth(4)
@pytest.mark.parametrize("seed", range(40))
def test_each_of_forty_faults_in_four_models_has_a_remedy(seed, tmp_path):
    planted = program(seed)
    capture = captured(
        tmp_path,
        planted.build(),
        step_of_program,
        planted.batch(0, is_bad=False),
        planted.batch(1, is_bad=False),
        planted.batch(2, is_bad=True),
    )
    trials = capture.try_remedies(planted.build(), step_of_program)
    assert trials.finite, f"{planted}\n{trials}"


def test_the_page_has_the_table_of_the_registry():
    """To write it: python -m tests.support.write_remedies_table."""
    assert write_remedies_table.table() in write_remedies_table.PAGE.read_text()
