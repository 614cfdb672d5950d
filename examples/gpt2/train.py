"""Trains a small GPT-2 on the text of this repository, with a contrastive loss term.

An ordinary training script that does not use torchnan. It has a common bug.
"""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

REPOSITORY = Path(__file__).resolve().parents[2]
CONTEXT = 64


class Text(Dataset):
    """The bytes of the documents and source files of this repository, in pieces of CONTEXT."""

    def __init__(self):
        files = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("torchnan/**/*.py")])
        text = b"\n".join(file.read_bytes() for file in files)
        self.ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self):
        return len(self.ids) // CONTEXT

    def __getitem__(self, i):
        return self.ids[i * CONTEXT : (i + 1) * CONTEXT]


class Contrastive(nn.Module):
    """Pulls the two halves of one text together and apart from those of others."""

    def forward(self, first, second):
        similarity = first @ second.t()
        weights = torch.exp(similarity)
        probability = weights.diagonal() / weights.sum(dim=1)
        return -torch.log(probability).mean()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        config = GPT2Config(
            vocab_size=256, n_positions=CONTEXT, n_embd=128, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0
        )
        self.language = GPT2LMHeadModel(config)
        self.contrastive = Contrastive()

    def forward(self, ids):
        out = self.language(input_ids=ids, labels=ids, output_hidden_states=True)
        halves = out.hidden_states[-1].unflatten(1, (2, -1)).mean(dim=2)
        return out.loss + 0.1 * self.contrastive(halves[:, 0], halves[:, 1])


def main():
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = DataLoader(Text(), batch_size=16, shuffle=True, drop_last=True)
    progress = tqdm(batches, total=60, desc="training", ncols=88)
    for step, ids in enumerate(progress, 1):
        loss = model(ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.set_postfix(loss=f"{loss.item():.3f}")
        if step == 60:
            break


if __name__ == "__main__":
    main()
