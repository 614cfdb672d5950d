"""Attention: rows without a key, masks times infinities, uninitialized memory."""

import torch
import torch.nn as nn

from tests.zoo.framework import INF, alt, case, dirty, track


@case(
    "distilbert-all-pad-sample",
    "masked_fill(-inf) over every key of an empty sample, then softmax",
    "huggingface/transformers#15326",
    "masked-softmax",
    "nan",
    "_softmax",
    module="transformer.1.attention",
)
def distilbert_all_pad_sample():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.mute = False

        def forward(self, x, mask):
            s = self.q(x) @ self.k(x).transpose(1, 2) / 2.0
            if not self.mute:
                s = s.masked_fill(~mask[:, None, :], -INF)
            return torch.softmax(s, dim=-1) @ self.v(x)  # ORIGIN

    class Layer(nn.Module):
        def __init__(self, mute):
            super().__init__()
            self.attention = Attention()
            self.attention.mute = mute
            self.norm = nn.LayerNorm(4)

        def forward(self, x, mask):
            return self.norm(x + self.attention(x, mask))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.ModuleList([Layer(True), Layer(False)])

        def forward(self, x, mask):
            for layer in self.transformer:
                x = layer(x, mask)
            return x

    return track(Model())(torch.randn(2, 3, 4), torch.tensor([[1, 1, 0], [0, 0, 0]]).bool())


@case(
    "mask-times-neginf",
    "additive causal mask built as (1 - tril) * -inf: 0 * -inf is NaN",
    "callummcdougall/ARENA_3.0#54",
    "zero-times-inf",
    "nan",
    "mul",
    module="block.attn",
)
def mask_times_neginf():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            bias = (1 - torch.tril(torch.ones(x.shape[1], x.shape[1]))) * -INF  # ORIGIN
            return torch.softmax(q @ k.transpose(1, 2) + bias, dim=-1) @ v

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, x):
            return x + self.attn(x)

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            return self.block(x)

    return track(Gpt())(torch.randn(1, 3, 4))


@case(
    "kv-cache-zero-times-nan",
    "unused slots of a torch.empty value cache hold NaN: probability 0 times NaN",
    "Dao-AILab/flash-attention#2374",
    "uninitialised",
    "nan",
    ["empty", "new_empty", "empty_like"],
    module=None,
    origin="uninit",
    name="v_cache",
    also=[alt("forward", ["bmm", "mm", "baddbmm"])],
    debatable="never-written memory versus the bmm that multiplies it with 0",
    notes="accepting the consumer (bmm of 0 and NaN) is half right; the memory was never written",
)
def kv_cache_zero_times_nan():
    attn = track(nn.Linear(4, 4))
    k_cache = torch.zeros(1, 6, 4)
    v_cache = dirty(torch.empty(1, 6, 4))  # ORIGIN
    x = torch.randn(1, 3, 4)
    k_cache[:, :3] = attn(x)
    v_cache[:, :3] = x
    bias = torch.zeros(6).masked_fill(torch.arange(6) >= 3, -INF)
    prob = torch.softmax(x[:, -1:] @ k_cache.transpose(1, 2) + bias, dim=-1)
    return prob @ v_cache


@case(
    "k-cache-nan-plus-neginf",
    "garbage in the key cache: the mask cannot help, NaN + (-inf) is NaN",
    "deepbeepmeep/Wan2GP#1628",
    "uninitialised",
    "nan",
    ["empty"],
    module=None,
    origin="uninit",
    name="k_cache",
    also=[alt("forward", ["bmm", "mm", "mv"])],
)
def k_cache_nan_plus_neginf():
    q_proj = track(nn.Linear(4, 4))
    k_cache = dirty(torch.empty(5, 4))  # ORIGIN
    k_cache[:2].copy_(torch.randn(2, 4))
    scores = q_proj(torch.randn(1, 4)) @ k_cache.t()
    bias = torch.tensor([0.0, 0.0, -INF, -INF, -INF])
    return torch.softmax(scores + bias, dim=-1)


@case(
    "low-temperature-half",
    "logits divided by temperature 1e-4 in half precision overflow; softmax gives NaN",
    "vllm-project/vllm#1623",
    "overflow-fp16",
    "inf",
    "div",
    module="sampler",
)
def low_temperature_half():
    class Sampler(nn.Module):
        def forward(self, logits):
            scaled = logits / 1e-4  # ORIGIN
            return torch.softmax(scaled.float(), dim=-1)

    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.sampler = Sampler()

        def forward(self, logits):
            return self.sampler(logits)

    logits = torch.tensor([[3.0, 12.5, 11.0, -4.0]]).half()
    return track(Lm())(logits)


@case(
    "mask-1e9-cast-half",
    "a -1e9 mask is finite in float32 and -inf after the cast to half",
    "pytorch/benchmark#794",
    "overflow-fp16",
    "inf",
    ["_to_copy", "to", "copy_"],
    module="bert",
)
def mask_1e9_cast_half():
    class Bert(nn.Module):
        def forward(self, scores, keep):
            bias = (1.0 - keep) * -1e9
            bias = bias.half()  # ORIGIN
            return torch.softmax((scores + bias[:, None]).float(), dim=-1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = Bert()

        def forward(self, s, keep):
            return self.bert(s, keep)

    keep = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    return track(Model())(torch.randn(2, 3, 3).half(), keep)
