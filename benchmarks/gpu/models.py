"""Models that need only PyTorch, for a machine without other packages."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.workloads import Workload, training


class Block(nn.Module):
    """A block of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, tokens, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.before_mlp(x))


class GPT2(nn.Module):
    """GPT-2 with tied embeddings; by default the one of 124M parameters."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50257, tokens: int = 1024):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.norm(self.blocks(x)) @ self.words.weight.t()


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(given, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.short: nn.Module = nn.Identity()
        if stride != 1 or given != 4 * width:
            self.short = nn.Sequential(nn.Conv2d(given, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.short(x))


def resnet50_model() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    given = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(given, width, stride if block == 0 else 1))
            given = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, 1000))


def gpt2(device: torch.device, small: bool) -> Workload:
    """GPT-2 124M, 8 x 1024 tokens, bfloat16 autocast; small: 2 layers of 64, 2 x 32."""
    with torch.device(device):
        model = GPT2(2, 64, 4, 256, 32) if small else GPT2()
    ids = torch.randint(0, 256, (2, 32) if small else (8, 1024)).to(device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=not small):
            return functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    return training("GPT-2 124M, 8x1024, bf16", model, ids, loss, 20)


def resnet50(device: torch.device, small: bool) -> Workload:
    """ResNet-50, 64 images of 224 x 224, bfloat16 autocast, channels last; small: 4 images of 64 x 64.

    With less data, the last batch normalisations have too few numbers to normalise, and each enlarges the gradients.
    """
    model = resnet50_model().to(device)
    pixels = torch.randn(4, 3, 64, 64).to(device) if small else torch.randn(64, 3, 224, 224).to(device)
    if not small:
        model, pixels = model.to(memory_format=torch.channels_last), pixels.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (len(pixels),)).to(device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=not small):
            return functional.cross_entropy(model(pixels).float(), labels)

    return training("ResNet-50, 64x224², bf16", model, pixels, loss, 20)


def mlp(device: torch.device, small: bool) -> Workload:
    """Launch-bound: 8 layers of 256, batch 64, float32."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.Tanh())]
    model, x = nn.Sequential(*layers).to(device), torch.randn(64, 256).to(device)
    return training("MLP 8x256, batch 64", model, x, lambda: model(x).square().mean(), 20 if small else 400)


ALL = {"mlp": mlp, "gpt2": gpt2, "resnet50": resnet50}
