"""Models with absurd weights, learning rates or dtypes give the same findings as with ``rescan_every=1``."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
import torch

import torchnan

pytest.importorskip("transformers")

Loss = Callable[[], torch.Tensor]

SMALL = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 256}


def language_model(kind: str, **config) -> tuple[torch.nn.Module, Loss]:
    import transformers

    model = getattr(transformers, kind)(getattr(transformers, kind).config_class(**config))

    def loss_of() -> torch.Tensor:
        ids = torch.randint(0, 256, (2, 64))
        return model(input_ids=ids, labels=ids).loss

    return model, loss_of


def vision_transformer() -> tuple[torch.nn.Module, Loss]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=192, image_size=64)
    model = ViTForImageClassification(config)
    return model, lambda: model(pixel_values=torch.randn(2, 3, 64, 64), labels=torch.tensor([0, 1])).loss


def padded_encoder() -> tuple[torch.nn.Module, Loss]:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    padding = torch.arange(40) >= torch.tensor([40, 20, 30, 40])[:, None]
    return model, lambda: model(torch.randn(4, 40, 64), src_key_padding_mask=padding).square().mean()


def convolutions() -> tuple[torch.nn.Module, Loss]:
    nn = torch.nn
    model = nn.Sequential(
        *[nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Conv2d(32, 32, 3), nn.GroupNorm(4, 32), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()],
        nn.Linear(512, 10),
    )
    labels = torch.arange(8)
    return model, lambda: nn.functional.cross_entropy(model(torch.randn(8, 3, 32, 32)), labels)


MODELS = {
    "GPT-2": lambda: language_model(
        "GPT2LMHeadModel", n_layer=3, n_embd=96, n_head=4, vocab_size=256, bos_token_id=0, eos_token_id=0
    ),
    "BERT": lambda: language_model("BertForMaskedLM", **SMALL, intermediate_size=192),
    "T5": lambda: language_model(
        "T5ForConditionalGeneration",
        num_layers=2,
        d_model=96,
        d_kv=24,
        num_heads=4,
        d_ff=192,
        vocab_size=256,
        decoder_start_token_id=0,
    ),
    "Llama": lambda: language_model("LlamaForCausalLM", **SMALL, intermediate_size=192, num_key_value_heads=2),
    "Mamba": lambda: language_model(
        "MambaForCausalLM", hidden_size=64, num_hidden_layers=2, state_size=8, vocab_size=256
    ),
    "ViT": vision_transformer,
    "padded encoder": padded_encoder,
    "convolutions": convolutions,
}


def findings_of(name: str, seed: int, **options) -> list[tuple]:
    torch.manual_seed(seed)
    random_ = random.Random(f"{name} {seed}")
    model, loss_of = MODELS[name]()
    kind = random_.choice([torch.optim.AdamW, torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
    optimizer = kind(model.parameters(), lr=random_.choice([1e-3, 1e-2, 1.0, 1e4]))
    weight = random_.choice(list(model.parameters()))
    at, factor = random_.randrange(3), 10.0 ** random_.randint(3, 36)
    is_clipped, is_narrow = random_.random() < 0.5, random_.random() < 0.3
    with torchnan.detect(action="log", **{"rescan_every": 0, **options}) as watch:
        for step in range(4):
            if step == at:
                with torch.no_grad():
                    weight.mul_(factor)
            with torch.autocast("cpu", torch.bfloat16) if is_narrow else contextlib.nullcontext():
                loss = loss_of()
            optimizer.zero_grad()
            loss.backward()
            if is_clipped:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert watch.stats()["internal_errors"] == 0
    return [
        (f.kind, f.op, f.node, f.module, f.line, f.step, f.nan, f.posinf, f.neginf, f.harm.kind) for f in watch.findings
    ]


@pytest.mark.breadth(3)
@pytest.mark.parametrize("name", MODELS)
def test_absurd_weights_are_found_as_if_everything_were_read(name):
    """Fails for Llama when the rule of attention ignores the rounding of large scores."""
    for seed in (5, 18):
        assert findings_of(name, seed) == findings_of(name, seed, rescan_every=1), f"findings_of({name!r}, {seed})"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_many_absurd_weights_are_found_as_if_everything_were_read(name):
    for seed in range(100, 140):
        assert findings_of(name, seed) == findings_of(name, seed, rescan_every=1), f"findings_of({name!r}, {seed})"
