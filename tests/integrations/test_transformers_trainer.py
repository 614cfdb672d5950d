"""NaNCallback in the real Trainer of Transformers: a bad step is named, captured and not applied."""

from __future__ import annotations

import copy
import inspect
import types

import pytest
import torch
from torch import nn

import torchnan
from tests.support.state_equality import same
from torchnan.config.options import OptionError
from torchnan.recovery import TrainingStopped

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from accelerate.optimizer import AcceleratedOptimizer  # noqa: E402

from torchnan.integrations.transformers import NaNCallback, _validate_arguments  # noqa: E402

ROWS = 4
BAD = 3  # the micro-batch that is bad, 0-based


class Net(nn.Module):
    """Has everything that a step changes. Where a label is below 0, the loss is finite, and so are all gradients except
    that of ``scale``."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.drop, self.b = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.25), nn.Linear(8, 1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x, labels):
        root = (self.scale * labels.clamp(min=0)).sqrt()  # PLANTED
        out = self.b(self.drop(self.norm(self.a(x)).relu())).squeeze(1)
        return {"loss": (out - root).square().mean(), "out": out}


LINE = inspect.getsourcelines(Net)[1] + next(
    i for i, line in enumerate(inspect.getsourcelines(Net)[0]) if "# PLANTED" in line
)


class Rows(torch.utils.data.Dataset):
    def __init__(self, bad=BAD, batches=8):
        numbers = torch.rand(ROWS * batches, 5, generator=torch.Generator().manual_seed(0)) + 0.1
        self.x, self.labels = numbers[:, :4], numbers[:, 4].clone()
        if bad is not None:
            self.labels[ROWS * bad + 2] = -1

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.labels[i]}


class State(transformers.TrainerCallback):
    """Everything that a step may change, before and after each."""

    def __init__(self):
        self.before, self.after, self.rates = [], [], []

    def on_step_begin(self, args, state, control, **kwargs):
        self.before.append(self.of(**kwargs))

    def on_step_end(self, args, state, control, **kwargs):
        self.after.append(self.of(**kwargs))

    @staticmethod
    def of(model, optimizer, lr_scheduler, **others):
        return copy.deepcopy((model.state_dict(), optimizer.state_dict(), lr_scheduler.state_dict()))


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer_of(folder, *callbacks, model=None, data=None, trainer=InOrder, eval_data=None, **options):
    torch.manual_seed(0)
    defaults = dict(per_device_train_batch_size=ROWS, num_train_epochs=1, report_to=[], use_cpu=True, disable_tqdm=True)
    arguments = transformers.TrainingArguments(
        **{"output_dir": str(folder / "out"), "save_strategy": "no", **defaults, **options}
    )
    model, data = model or Net(), data or Rows()
    return trainer(model=model, args=arguments, train_dataset=data, eval_dataset=eval_data, callbacks=[*callbacks])


def train(folder, *callbacks, **options):
    trainer = trainer_of(folder, *callbacks, **options)
    trainer.train()
    return trainer


def hooks_of(model):
    return [*model._forward_hooks, *model._forward_pre_hooks]


def test_a_bad_step_is_named_captured_and_replayed(tmp_path):
    callback = NaNCallback(captures=tmp_path / "captures")
    trainer = train(tmp_path, callback)
    (event,) = callback.events
    assert (event.step, event.what, event.cause, event.verdict) == (BAD + 1, "gradient", "operation", "persistent")
    assert (event.finding.file, event.finding.line, event.finding.node) == (__file__, LINE, "SqrtBackward0")
    assert event.action == "skip"
    assert trainer.state.global_step == 8
    kept = torchnan.load_capture(event.capture)
    (batch,) = kept.batches
    assert torch.equal(batch["x"], Rows().x[ROWS * BAD : ROWS * (BAD + 1)])
    replayed = kept.replay(Net(), lambda model, batch: model(**batch))
    assert (replayed.verdict, replayed.finding.line) == ("persistent", LINE)


@pytest.mark.parametrize("options", [{"replay": False}, {"try_remedies": True}], ids=["no replay", "remedies"])
def test_a_bad_step_leaves_no_trace(tmp_path, options):
    state, callback = State(), NaNCallback(**options)
    trainer = train(tmp_path, callback, state)
    assert ("sqrt" in callback.events[0].remedies) == ("try_remedies" in options)
    assert same(state.before[BAD], state.after[BAD])  # the scheduler has its part in it, too
    assert trainer.lr_scheduler.last_epoch == 7
    assert not any(same(state.before[i], state.after[i]) for i in range(8) if i != BAD)


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_accumulation_steps": 3}, {"bf16": True}],
    ids=["plain", "accumulation", "bf16"],
)
def test_a_healthy_run_is_the_same_bit_for_bit(tmp_path, options):
    def outcome(*callbacks):
        trainer = train(tmp_path, *callbacks, data=Rows(bad=None), **options)
        return State.of(trainer.model, trainer.optimizer, trainer.lr_scheduler), torch.get_rng_state()

    plain = outcome()
    callback = NaNCallback()
    assert same(outcome(callback), plain)
    assert callback.events == []
    assert callback.guard.step_number > 0


def test_names_that_clipping_has_spoilt_are_reported_as_they_were(tmp_path):
    callback = NaNCallback()
    train(tmp_path, callback)
    (event,) = callback.events
    assert event.seen.startswith("7 of 7 gradients are not finite")
    assert event.same_bits is None
    assert event.notes == [
        "the Trainer clips gradients before callbacks see them, so one bad gradient makes all of them bad; in the "
        "replay, without clipping, 1 of 7: scale (nan 1) were not finite"
    ]


class Gradients:
    """All gradients of a model after each backward pass, added up over a step as they are."""

    def __init__(self, model):
        self.seen = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: self.seen.append(p.grad.clone()))

    def passes(self, parameters):
        return [self.seen[i : i + parameters] for i in range(0, len(self.seen), parameters)]


@pytest.mark.parametrize("options", [{"gradient_accumulation_steps": 3}, {"bf16": True}], ids=["accumulation", "bf16"])
def test_the_replay_is_the_step_bit_for_bit(tmp_path, options):
    """Unclipped, with all micro-batches, their weights in the sum, their dropout and their precision."""
    model = Net()
    gradients = Gradients(model)
    accumulated = options.get("gradient_accumulation_steps", 1)
    data = Rows(bad=None, batches=accumulated)
    callback = NaNCallback(norm_limit=1e-6, max_consecutive=10)
    train(tmp_path, callback, model=model, data=data, max_grad_norm=0.0, **options)
    (event,) = callback.events
    assert (event.what, event.verdict) == ("norm", "persistent")
    passes = gradients.passes(7)
    step, first, second = (passes[i : i + accumulated] for i in range(0, 3 * accumulated, accumulated))
    assert same(first, step)
    assert same(second, step)


def gpt2():
    config = transformers.GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


class Sentences(torch.utils.data.Dataset):
    """No token of the third batch counts in the loss."""

    def __len__(self):
        return 4 * ROWS

    def __getitem__(self, i):
        ids = torch.arange(i, i + 8) % 32
        return {"input_ids": ids, "labels": torch.full_like(ids, -100) if i // ROWS == 2 else ids}


def test_a_model_of_transformers(tmp_path):
    """Whose loss is divided by the number of tokens that count, which the Trainer tells it."""
    callback = NaNCallback(captures=tmp_path / "captures")
    state = State()
    train(tmp_path, callback, state, model=gpt2(), data=Sentences())
    (event,) = callback.events
    assert (event.step, event.verdict, event.finding.op) == (3, "persistent", "aten::div")
    assert "num_items_in_batch" in torchnan.load_capture(event.capture).batches[0]
    assert same(state.before[2], state.after[2])


def test_a_step_is_all_of_its_micro_batches(tmp_path):
    callback = NaNCallback(captures=tmp_path / "captures", replay=False)
    train(tmp_path, callback, gradient_accumulation_steps=3)
    (event,) = callback.events
    assert (event.step, len(event.losses)) == (2, 3)
    batches = torchnan.load_capture(event.capture).batches
    assert torch.equal(torch.cat([batch["labels"] for batch in batches]), Rows().labels[ROWS * 3 : ROWS * 6])


class Looking(transformers.TrainerCallback):
    """Runs the model in between: as it is while it trains, but without gradients; and with gradients, but as it is
    while it is evaluated."""

    def on_step_begin(self, args, state, control, model, **kwargs):
        with torch.no_grad():
            model.train()(**Rows()[:ROWS])
        model.eval()(**Rows()[:ROWS])


def test_data_that_is_not_trained_on_is_not_part_of_a_step(tmp_path):
    callback = NaNCallback(captures=tmp_path / "captures", replay=False)
    options = dict(eval_strategy="steps", eval_steps=1, eval_on_start=True, eval_data=Rows())
    train(tmp_path, callback, Looking(), **options)
    (event,) = callback.events
    assert callback.guard.step_number == 8
    assert (event.step, len(event.losses)) == (4, 1)
    assert len(torchnan.load_capture(event.capture).batches) == 1


def test_where_the_policy_has_no_answer_training_ends(tmp_path):
    callback = NaNCallback(replay=False, on_bad_step="raise")
    trainer = trainer_of(tmp_path, callback)
    with pytest.raises(TrainingStopped, match="step 4 was not applied"):
        trainer.train()
    assert trainer.state.global_step == 3
    assert hooks_of(trainer.model) == []
    assert [event.step for event in callback.events] == [4]


def test_the_choice_of_the_user_precedes_the_policy(tmp_path):
    asked = []

    def stop(event):
        asked.append(event.step)
        return "raise"

    with pytest.raises(TrainingStopped, match="on_instability asked for it"):
        train(tmp_path, NaNCallback(replay=False, on_instability=stop))
    assert asked == [4]


def test_hooks_are_gone_after_training_and_back_for_the_next(tmp_path):
    callback = NaNCallback(replay=False)
    trainer = train(tmp_path, callback)
    assert hooks_of(trainer.model) == []
    assert len(callback.events) == 1
    trainer.train()
    assert hooks_of(trainer.model) == []
    assert [event.step for event in callback.events] == [4]


def test_a_loss_that_is_not_the_models_own_is_refused_unless_nothing_is_replayed(tmp_path):
    class Bare(Net):
        def forward(self, x, labels=None):
            return {"out": super().forward(x, torch.ones(len(x)) if labels is None else labels)["out"]}

    def far(outputs, labels, num_items_in_batch=None):
        return (outputs["out"] - labels.sqrt()).square().mean()

    class Elsewhere(InOrder):
        def __init__(self, **options):
            super().__init__(compute_loss_func=far, **options)

    text = r"the output of the model, a dict, has no loss in it: .* give NaNCallback\(replay=False\)"
    with pytest.raises(ValueError, match=text):
        train(tmp_path, NaNCallback(), model=Bare(), trainer=Elsewhere)
    callback, state = NaNCallback(replay=False), State()
    train(tmp_path, callback, state, model=Bare(), trainer=Elsewhere)
    (event,) = callback.events
    assert (event.step, event.what, event.verdict) == (4, "gradient", None)
    assert same(state.before[BAD], state.after[BAD])


def test_a_loss_that_is_not_used_is_refused(tmp_path):
    class Own(InOrder):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            return outputs["loss"] if self.state.global_step == 0 else (outputs["out"] - 1).square().mean()

    with pytest.raises(ValueError, match="own loss was not used in the backward pass of step 2"):
        train(tmp_path, NaNCallback(), trainer=Own)


def test_terms_added_to_the_models_loss_are_reported_as_missing(tmp_path):
    class Adding(InOrder):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            return outputs["loss"] + outputs["out"].mean() * (float("nan") if self.state.global_step == 1 else 0.0)

    callback = NaNCallback()
    train(tmp_path, callback, data=Rows(bad=None), trainer=Adding)
    (event,) = callback.events
    assert (event.step, event.verdict) == (2, "transient")
    assert "the replay lacks the terms that your compute_loss adds to the loss of the model" in event.notes


def train_in_half_precision(folder, callback, bad):
    """As in the Trainer's loop with fp16=True, which it refuses on the CPU."""
    trainer = trainer_of(folder)
    bare = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    optimizer = AcceleratedOptimizer(bare, scaler=scaler)
    events = (trainer.args, trainer.state, trainer.control)
    around = dict(model=trainer.model, optimizer=optimizer, lr_scheduler=None)
    skipped, states = [], []
    callback.on_train_begin(*events, **around)
    for i in range(4):
        labels = torch.full((ROWS,), float("nan") if i == bad else 1.0)
        scaler.scale(trainer.model(x=Rows().x[:ROWS], labels=labels)["loss"]).backward()
        scaler.unscale_(bare)
        nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        callback.on_pre_optimizer_step(*events, **around)
        optimizer.step()
        skipped.append(optimizer.step_was_skipped)
        trainer.model.zero_grad()
        callback.on_step_end(*events, **around)
        states.append(copy.deepcopy((trainer.model.state_dict(), scaler.state_dict())))
    callback.on_train_end(*events, **around)
    return skipped, states


def test_a_loss_scaler_does_not_know_of_a_bad_step(tmp_path):
    callback = NaNCallback()
    skipped, states = train_in_half_precision(tmp_path, callback, bad=1)
    assert [(event.step, event.what, event.verdict) for event in callback.events] == [(2, "loss", "persistent")]
    assert skipped == [False, True, False, False]
    assert same(states[0], states[1])
    assert states[-1][1]["scale"] == 512.0  # three good steps
    callback = NaNCallback()
    _, states = train_in_half_precision(tmp_path, callback, bad=None)
    _, plain = train_in_half_precision(tmp_path, transformers.TrainerCallback(), bad=None)
    assert callback.events == []
    assert same(states, plain)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (dict(deepspeed="ds.json", n_gpu=1), "cannot guard the steps of DeepSpeed"),
        (dict(deepspeed=None, n_gpu=2), "DataParallel, which the Trainer uses for 2 GPUs in one process: start one"),
    ],
)
def test_unsupported_setups_are_rejected(arguments, text):
    with pytest.raises(ValueError, match=text):
        _validate_arguments(types.SimpleNamespace(**arguments))


def test_norms_after_clipping_are_refused(tmp_path):
    text = r"norm_limit=3.0 cannot be used with TrainingArguments\(max_grad_norm=1.0\)"
    with pytest.raises(OptionError, match=text):
        train(tmp_path, NaNCallback(norm_limit=3.0))
