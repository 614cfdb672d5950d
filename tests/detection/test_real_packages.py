"""Real use: Hugging Face models and Trainer, Lightning, Accelerate."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchnan

transformers = pytest.importorskip("transformers")


def gpt2():
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def train(model, steps=3):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        ids = torch.randint(0, 64, (2, 16))
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_healthy_gpt2_is_silent_and_the_same():
    watched, plain = gpt2(), gpt2()
    watched.load_state_dict(plain.state_dict())
    torch.manual_seed(1)
    train(plain)
    torch.manual_seed(1)
    with torchnan.detect() as watch:
        train(watched)
    assert watch.findings == []
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_weight_that_went_bad_is_named_in_the_model():
    model = gpt2()
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[3, 5] = float("nan")
    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect():
            train(model)
    finding = raised.value.finding
    assert (finding.origin, finding.name) == ("parameter", "transformer.h.1.mlp.c_fc.weight")
    assert finding.module == "transformer.h.1.mlp.c_fc"


def test_an_activation_that_overflows_is_named_in_the_model():
    class Hot(nn.Module):
        def forward(self, x):
            return torch.exp(x + 1000.0)

    model = gpt2()
    model.transformer.h[0].mlp.act = Hot()
    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect():
            train(model)
    finding = raised.value.finding
    assert (finding.op, finding.kind, finding.module) == ("aten::exp", "inf", "transformer.h.0.mlp.act")
    assert finding.file == __file__


def test_generation_with_masks_and_sampling_is_silent():
    model = gpt2().eval()
    with torchnan.detect() as watch:
        model.generate(torch.ones(1, 3, dtype=torch.long), do_sample=True, top_k=5, max_new_tokens=5)
    assert watch.findings == []


def test_the_trainer_runs_and_raises(tmp_path):
    pytest.importorskip("accelerate")

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            ids = torch.arange(i, i + 8) % 64
            return {"input_ids": ids, "labels": ids}

    def trainer(model):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True
        )
        return transformers.Trainer(model=model, args=arguments, train_dataset=Data())

    with torchnan.detect() as watch:
        trainer(gpt2()).train()
    assert watch.findings == []
    model = gpt2()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("inf"))
    with pytest.raises(torchnan.NonFiniteError, match="step 1"):
        with torchnan.detect():
            trainer(model).train()


def test_lightning_runs_forward_and_backward_inside_the_optimizer_step(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self, planted):
            super().__init__()
            self.fc = nn.Linear(4, 1)
            self.planted = planted

        def training_step(self, batch, index):
            loss = self.fc(batch).square().mean()
            return (loss * 0 - 1).log() if self.planted and index == 1 else loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    def fit(model):
        options = dict(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
        trainer = lightning.Trainer(
            default_root_dir=tmp_path, enable_progress_bar=False, enable_model_summary=False, **options
        )
        trainer.fit(model, torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2))

    with torchnan.detect() as watch:
        fit(Model(planted=False))
    assert watch.findings == []
    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect():
            fit(Model(planted=True))
    finding = raised.value.finding
    assert (finding.op, finding.phase, finding.step) == ("aten::log", "forward", 2)
    assert finding.file == __file__
