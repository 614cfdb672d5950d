"""Programs as in public issues about NaN under ``torch.compile``: the report is that of the same program without it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.detection.test_compiled_as_eager import assert_as_eager


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(8, 24)

    def forward(self, x, hidden):
        q, k, v = self.projection(x).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)).masked_fill(hidden, float("-inf"))
        scores = scores - scores.amax(-1, keepdim=True)
        return x + scores.softmax(-1) @ v


class LanguageModel(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Attention() for _ in range(3))
        self.head = nn.Linear(8, 16)
        self.run = run

    def forward(self, tokens, hidden):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self.run(block, x, hidden)
        return self.head(x)


def hidden_row_in_compiled_blocks(compiler):
    model = LanguageModel(compiler(lambda block, x, hidden: block(x, hidden)))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        tokens = torch.randint(0, 16, (2, 5))
        hidden = torch.ones(5, 5, dtype=torch.bool).triu(1).repeat(2, 1, 1)
        hidden[1, 3] |= step == 2
        loss = F.cross_entropy(model(tokens, hidden).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, *, features, labels):
        logits = self.head(features)
        chosen = (logits.softmax(-1) * 0)[torch.arange(2), labels]
        return Output(-torch.log(chosen).mean(), logits)


def keywords_and_a_dataclass(compiler):
    compiler(Classifier())(features=torch.randn(2, 4), labels=torch.tensor([0, 1])).loss.backward()


def gradient_of_a_transform(compiler):
    slopes = compiler(lambda x: torch.vmap(torch.func.grad(lambda row: torch.sqrt(row).sum()))(x).sum())
    slopes(torch.zeros(2, 2)).item()


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x):
        return x * self.scale * self.scale


def checkpointed_blocks(compiler):
    blocks = nn.ModuleList([Scaled(1.0), Scaled(1e30), Scaled(1.0)])

    def loss_of(x):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.sum()

    compiler(loss_of)(torch.ones(3)).backward()


def normalized_inputs_of_a_cell(compiler):
    cell = nn.GRUCell(3, 4)

    def loss_of(inputs):
        state = torch.zeros(2, 4)
        for x in inputs:
            state = cell(x / x.norm(dim=-1, keepdim=True), state)
        return state.sum()

    inputs = torch.randn(3, 2, 3)
    inputs[1, 0] = 0
    compiler(loss_of)(inputs).backward()


def mean_of_no_words(compiler):
    embedding = nn.Embedding(10, 4)
    loss_of = compiler(lambda i, kept: ((embedding(i) * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)).sum())
    optimizer = torch.optim.SGD(embedding.parameters(), 0.1)
    for step in range(3):
        kept = torch.ones(2, 3)
        kept[0] *= step != 1
        loss = loss_of(torch.randint(0, 10, (2, 3)), kept)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("program", "op", "step", "module"),
    [
        (hidden_row_in_compiled_blocks, "aten::sub", 3, "blocks.0"),
        (keywords_and_a_dataclass, "aten::log", 1, ""),
        (gradient_of_a_transform, "aten::div", 1, None),
        (checkpointed_blocks, "aten::mul", 1, "1"),
        (normalized_inputs_of_a_cell, "aten::div", 1, None),
        (mean_of_no_words, "aten::div", 2, None),
    ],
)
def test_a_compiled_program_is_reported_as_it_is_without(program, op, step, module):
    (finding,) = assert_as_eager(program, 1)
    assert (finding.op, finding.step, finding.module) == (op, step, module)
