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
        guards: the step guards of its steps, by mode.
    """

    name: str
    step: Callable[[], None]
    model: torch.nn.Module
    repeat: int
    optimizer: torch.optim.Optimizer
    loss_of: Callable[[], torch.Tensor]
    batch: Any
    eager: Callable[[], Workload] | None = None
    guards: dict[str, Any] = dataclasses.field(default_factory=dict)

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


def training_on_tokens(name: str, model: torch.nn.Module, vocabulary: int, count: int, tokens: int) -> Workload:
    """A language model of Transformers, on this many texts of that many tokens."""
    ids = torch.randint(0, vocabulary, (count, tokens))
    return training(name, model, {"input_ids": ids}, lambda: model(input_ids=ids, labels=ids).loss, 1)


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
    return training_on_tokens(f"GPT-2 256x4, 4x{tokens}", GPT2LMHeadModel(config), 8192, 4, tokens)


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
    return training_on_tokens("T5 256x3+3, 4x128", T5ForConditionalGeneration(config), 4096, 4, 128)


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
    return training_on_tokens("Mamba 128x4, 4x64", MambaForCausalLM(config), 2048, 4, 64)


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
    return training_on_tokens("Llama 256x4, 4x256", LlamaForCausalLM(config), 8192, 4, 256)


def mixture_of_experts() -> Workload:
    """A small Mixtral: 4 layers of 128, 8 experts of which 2 are chosen, 4 x 64 tokens."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        num_hidden_layers=4,
        hidden_size=128,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=2048,
        num_local_experts=8,
    )
    return training_on_tokens("MoE 128x4, 8 experts", MixtralForCausalLM(config), 2048, 4, 64)


def convnext() -> Workload:
    """A small ConvNeXt: stages of 32 to 256, 4 images of 128 x 128."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 4, 2])
    return training_on_images("ConvNeXt, 4x128²", ConvNextForImageClassification(config), 4, 128)


def whisper() -> Workload:
    """A small Whisper: 2 + 2 layers of 128, 2 recordings of two seconds, 32 tokens."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=1024,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        max_source_positions=100,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model, sound = WhisperForConditionalGeneration(config), torch.randn(2, 80, 200)
    labels = torch.randint(3, 1024, (2, 32))
    batch = {"input_features": sound, "labels": labels}
    return training("Whisper 128x2+2", model, batch, lambda: model(**batch).loss, 1)


class Denoiser(torch.nn.Module):
    """A U-Net of two scales, conditioned on the time step."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> torch.nn.Module:
            return torch.nn.Sequential(
                torch.nn.Conv2d(inputs, outputs, 3, padding=1), torch.nn.GroupNorm(8, outputs), torch.nn.SiLU()
            )

        self.time = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.SiLU(), torch.nn.Linear(width, width))
        self.enter, self.down = block(3, width), block(width, 2 * width)
        self.middle, self.up = block(2 * width, 2 * width), block(4 * width, width)
        self.leave = torch.nn.Conv2d(2 * width, 3, 1)

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(torch.arange(16) * -0.5)
        angles = time[:, None] * frequencies
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        fine = self.enter(image) + embedding[:, :, None, None]
        coarse = self.down(torch.nn.functional.avg_pool2d(fine, 2))
        coarse = torch.cat([coarse, self.middle(coarse)], dim=1)
        coarse = torch.nn.functional.interpolate(self.up(coarse), scale_factor=2.0)
        return self.leave(torch.cat([fine, coarse], dim=1))


def diffusion() -> Workload:
    """A diffusion step: a small U-Net predicts the noise in 8 images of 32 x 32."""
    model, image = Denoiser(), torch.randn(8, 3, 32, 32)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0)

    def loss_of() -> torch.Tensor:
        time, noise = torch.randint(0, 1000, (8,)), torch.randn_like(image)
        share = kept[time][:, None, None, None]
        noisy = share.sqrt() * image + (1 - share).sqrt() * noise
        return torch.nn.functional.mse_loss(model(noisy, time.float()), noise)

    return training("diffusion U-Net, 8x32²", model, image, loss_of, 1)


def graph_network() -> Workload:
    """Three layers of message passing with attention over neighbours: 2,000 nodes of 64, 12,000 edges."""
    nodes, edges, width = 2000, 12000, 64
    source, target = torch.randint(0, nodes, (2, edges))
    x, labels = torch.randn(nodes, width), torch.randint(0, 8, (nodes,))
    layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
    scores, out = torch.nn.ModuleList(torch.nn.Linear(2 * width, 1) for _ in range(3)), torch.nn.Linear(width, 8)

    def loss_of() -> torch.Tensor:
        h = x
        for layer, score in zip(layers, scores, strict=True):
            h = layer(h)
            logit = torch.nn.functional.leaky_relu(score(torch.cat([h[source], h[target]], dim=1)), 0.2)
            largest = torch.full((nodes, 1), -1e9).scatter_reduce(0, target[:, None], logit.detach(), "amax")
            weight = (logit - largest[target]).exp()
            total = torch.zeros(nodes, 1).index_add(0, target, weight) + 1e-12
            h = torch.relu(torch.zeros(nodes, width).index_add(0, target, weight / total[target] * h[source]))
        return torch.nn.functional.cross_entropy(out(h), labels)

    return training("graph network, 2,000 nodes", torch.nn.ModuleList([*layers, *scores, out]), x, loss_of, 1)


def policy() -> Workload:
    """A policy gradient: 32 actions, one after the other, each of hundreds of operations on a few elements."""
    body = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh())
    actor, critic = torch.nn.Linear(32, 2), torch.nn.Linear(32, 1)
    drift = torch.randn(4, 4) * 0.1

    def loss_of() -> torch.Tensor:
        state, log_probs, values, rewards = torch.zeros(4), [], [], []
        for _ in range(32):
            hidden = body(state)
            choice = torch.distributions.Categorical(logits=actor(hidden))
            action = choice.sample()
            log_probs.append(choice.log_prob(action))
            values.append(critic(hidden).squeeze(-1))
            force = 2.0 * action.item() - 1.0
            state = (state + drift @ state + 0.1 * torch.tensor([force, 0.0, -force, 0.0])).clamp(-2, 2)
            rewards.append(1.0 - state.abs().max().item())
        returns, total = [], 0.0
        for reward in reversed(rewards):
            total = reward + 0.99 * total
            returns.insert(0, total)
        target = torch.tensor(returns)
        target = (target - target.mean()) / (target.std() + 1e-6)
        advantage = target - torch.stack(values)
        return -(torch.stack(log_probs) * advantage.detach()).sum() + advantage.square().mean()

    return training("policy, 32 actions", torch.nn.ModuleList([body, actor, critic]), drift, loss_of, 1)


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
    "moe": mixture_of_experts,
    "convnext": convnext,
    "whisper": whisper,
    "diffusion": diffusion,
    "graph": graph_network,
    "policy": policy,
}
COMPILED = {f"{key}-compiled": compiled(EAGER[key]) for key in ("mlp", "gpt2", "bert", "resnet50")}
ALL = {**EAGER, **COMPILED}
