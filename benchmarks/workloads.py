"""Whole training steps, forward, backward and optimizer, on made-up data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch


@dataclasses.dataclass
class Workload:
    """One training step to be timed.

    Attributes:
        name: for the table.
        step: runs one step.
        model: its model, for the peers that use hooks on modules.
        repeat: steps per timing, so that one timing is not too short to be measured.
        optimizer, loss_of, batch: the parts of the step, for modes that run it themselves.
        eager: makes the same step without its compilation; ``None`` if it is not compiled.
    """

    name: str
    step: Callable[[], None]
    model: torch.nn.Module
    repeat: int
    optimizer: torch.optim.Optimizer
    loss_of: Callable[[], torch.Tensor]
    batch: Any
    eager: Callable[[], Workload] | None = None

    def under(self, context: Callable[[], AbstractContextManager[Any]], name: str) -> Workload:
        """Returns the same step with its loss computed in a context, such as autocast."""
        plain = self.loss_of

        def loss_of() -> torch.Tensor:
            with context():
                return plain()

        return training(name, self.model, self.batch, loss_of, self.repeat)


def training(
    name: str, model: torch.nn.Module, batch: Any, loss_of: Callable[[], torch.Tensor], repeat: int
) -> Workload:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return Workload(name, step, model, repeat, optimizer, loss_of, batch)


def training_on_images(name: str, model: torch.nn.Module, count: int, size: int) -> Workload:
    """A classifier of Transformers, on this many square images of that size."""
    batch = {"pixel_values": torch.randn(count, 3, size, size), "labels": torch.randint(0, 2, (count,))}
    return training(name, model, batch, lambda: model(**batch).loss, 1)


def mlp() -> Workload:
    """Launch-bound: 8 layers of 64, batch 16."""
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
    model, x = torch.nn.Sequential(*layers), torch.randn(16, 64)
    return training("MLP 8x64, batch 16", model, x, lambda: model(x).square().mean(), 40)


def gpt2(tokens: int = 256) -> Workload:
    """A small GPT-2: 4 layers of 256, 4 x 256 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4, n_embd=256, n_head=8, vocab_size=8192, n_positions=256, bos_token_id=0, eos_token_id=0
    )
    model, ids = GPT2LMHeadModel(config), torch.randint(0, 8192, (4, tokens))
    return training(
        f"GPT-2 256x4, 4x{tokens}", model, {"input_ids": ids}, lambda: model(input_ids=ids, labels=ids).loss, 1
    )


def gpt2_bf16() -> Workload:
    """The same under autocast to bfloat16; fewer tokens, because many processors are slow in it."""
    return gpt2(64).under(lambda: torch.autocast("cpu", torch.bfloat16), "GPT-2 256x4, 4x64, bf16")


def bert() -> Workload:
    """A small BERT: 4 layers of 256, 4 x 128 tokens, padded."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=8, intermediate_size=1024, vocab_size=4096
    )
    model, ids = BertForMaskedLM(config), torch.randint(0, 4096, (4, 128))
    mask = torch.ones(4, 128, dtype=torch.long)
    mask[:, 100:] = 0
    return training(
        "BERT 256x4, 4x128",
        model,
        {"input_ids": ids, "attention_mask": mask},
        lambda: model(input_ids=ids, attention_mask=mask, labels=ids).loss,
        2,
    )


def resnet50() -> Workload:
    """ResNet-50, 4 images of 224 x 224."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig())
    return training_on_images("ResNet-50, 4x224²", model, 4, 224)


def t5() -> Workload:
    """A small T5: 3 + 3 layers of 256, 4 x 128 tokens."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        num_layers=3, d_model=256, d_kv=32, num_heads=8, d_ff=1024, vocab_size=4096, decoder_start_token_id=0
    )
    model, ids = T5ForConditionalGeneration(config), torch.randint(0, 4096, (4, 128))
    return training("T5 256x3+3, 4x128", model, {"input_ids": ids}, lambda: model(input_ids=ids, labels=ids).loss, 1)


def vit() -> Workload:
    """A small ViT: 6 layers of 192, 8 images of 128 x 128."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_hidden_layers=6, hidden_size=192, num_attention_heads=6, intermediate_size=768, image_size=128
    )
    return training_on_images("ViT 192x6, 8x128²", ViTForImageClassification(config), 8, 128)


def lstm() -> Workload:
    """A language model of two LSTM layers of 256, 16 x 64 tokens."""
    words, layers = torch.nn.Embedding(4096, 256), torch.nn.LSTM(256, 256, num_layers=2, batch_first=True)
    out, ids = torch.nn.Linear(256, 4096), torch.randint(0, 4096, (16, 64))

    def loss_of() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(out(layers(words(ids))[0]).flatten(0, 1), ids.flatten())

    return training("LSTM 256x2, 16x64", torch.nn.ModuleList([words, layers, out]), ids, loss_of, 1)


def mamba() -> Workload:
    """A small Mamba: 4 layers of 128, 4 x 64 tokens, its scan a loop of small operations."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(num_hidden_layers=4, hidden_size=128, state_size=16, vocab_size=2048)
    model, ids = MambaForCausalLM(config), torch.randint(0, 2048, (4, 64))
    return training("Mamba 128x4, 4x64", model, {"input_ids": ids}, lambda: model(input_ids=ids, labels=ids).loss, 1)


def llama() -> Workload:
    """A small Llama: 4 layers of 256, 4 x 256 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=4,
        hidden_size=256,
        intermediate_size=688,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=8192,
    )
    model, ids = LlamaForCausalLM(config), torch.randint(0, 8192, (4, 256))
    return training("Llama 256x4, 4x256", model, {"input_ids": ids}, lambda: model(input_ids=ids, labels=ids).loss, 1)


def compiled(make: Callable[[], Workload], **options: Any) -> Callable[[], Workload]:
    """The same step with its model compiled by Inductor, with these of its options."""

    def make_compiled() -> Workload:
        workload = make()
        workload.model.compile(options=options or None)
        return dataclasses.replace(workload, name=f"{workload.name}, compiled", eager=make)

    return make_compiled


EAGER = {
    "mlp": mlp,
    "gpt2": gpt2,
    "gpt2-bf16": gpt2_bf16,
    "bert": bert,
    "resnet50": resnet50,
    "t5": t5,
    "vit": vit,
    "lstm": lstm,
    "mamba": mamba,
    "llama": llama,
}
COMPILED = {f"{key}-compiled": compiled(EAGER[key]) for key in ("mlp", "gpt2", "bert", "resnet50")}
ALL = {**EAGER, **COMPILED}
