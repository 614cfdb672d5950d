"""Trains a small GPT-2 on sentences of a made-up language: two ranks, DDP, AdamW. recover.py starts it.

torchrun --standalone --nproc-per-node 2 train.py --out FOLDER --seeds 0 1 2     plain, once for each seed
torchrun --standalone --nproc-per-node 2 train.py --out FOLDER --faults          under a StepGuard, with four faults
"""

import argparse
import gc
import hashlib
import json
import logging
import math
from pathlib import Path

import torch
import torch.distributed as dist
from faults import Faults
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

import torchnan

WORDS, LENGTH = 64, 32  # words of the language, words of a sentence
ROWS = 8  # sentences of a batch on each rank
CHANCES = torch.tensor([0.7, 0.1, 0.1, 0.1])  # probabilities of the four words that may follow a word
HELD_OUT = 10**6  # a seed that no training uses


class Language:
    """Generates sentences in which four words may follow each word, one of them mostly.

    Args:
        seed: seed of the sentences; the language itself is always the same.
    """

    def __init__(self, seed):
        grammar = torch.Generator().manual_seed(0)
        self.followers = torch.stack([torch.randperm(WORDS, generator=grammar)[:4] for _ in range(WORDS)])
        self.random = torch.Generator().manual_seed(seed)

    def sentences(self, rows):
        """Returns tokens and their weights in the loss, which are all one."""
        words = [torch.randint(WORDS, (rows,), generator=self.random)]
        while len(words) < LENGTH:
            choice = torch.multinomial(CHANCES, rows, replacement=True, generator=self.random)
            words.append(self.followers[words[-1], choice])
        return {"tokens": torch.stack(words, dim=1), "counts": torch.ones(rows, LENGTH - 1)}


def new_model():
    size = dict(vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4)
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))


def loss_of(model, batch):
    """Returns the mean loss over the tokens that count."""
    logits = model(input_ids=batch["tokens"]).logits[:, :-1]
    losses = F.cross_entropy(logits.flatten(0, 1), batch["tokens"][:, 1:].flatten(), reduction="none")
    counts = batch["counts"].flatten()
    return (losses * counts).sum() / counts.sum()


def prepared(seed, steps):
    """Returns model, optimizer, scheduler and data. Only the sentences differ from rank to rank."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(new_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    return model, optimizer, scheduler, Language(1000 * seed + dist.get_rank())


def train_plainly(seed, steps, bar):
    """Trains without torchnan and without faults. Returns the model, and (step, loss, applied) of each step."""
    model, optimizer, scheduler, language = prepared(seed, steps)
    history = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = loss_of(model, language.sentences(ROWS))
        loss.backward()
        optimizer.step()
        scheduler.step()
        history.append((step, loss.item(), True))
        show(bar, step, loss)
    return model, history


def train_guarded(seed, steps, bar, folder):
    """Trains with faults, under a step guard. Returns the same."""
    model, optimizer, scheduler, language = prepared(seed, steps)
    faults = Faults(model.module, steps, dist.get_rank())
    guard = torchnan.StepGuard(
        model,
        optimizer,
        loss_of,
        scheduler=scheduler,
        captures=folder / "captures",
        snapshot_every=steps // 12,
        snapshot_folder=folder / "snapshots",
        lr_ramp=10,
        out_of_memory="split",
        log=folder / "recovery.jsonl",
    )
    history, reported = [], 0
    while guard.step_number < steps:
        batch = language.sentences(ROWS)
        faults.plant(guard.step_number + 1, batch)
        result = guard.step(batch)
        history.append((result.step, result.loss.item(), result.applied))
        show(bar, guard.step_number, result.loss)
        for event in guard.events[reported:]:
            report(bar, event)
        reported = len(guard.events)
    return model, history


def show(bar, step, loss):
    """Shows the current step, which is lower after a rollback."""
    bar.update(step - bar.n)
    bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)


def report(bar, event):
    """Prints a short line above the bar; the full report is in the log of the rank."""
    if not bar.disable:
        what = event.what.replace("_", " ")
        bar.write(f"step {event.step}, rank {event.rank}: {what}, {event.cause}: {event.action}")


def write_reports_to(path):
    """Redirects reports from the terminal, where the progress bars are, to a file."""
    log = logging.getLogger("torchnan")
    log.addHandler(logging.FileHandler(path))
    log.propagate = False


def write_results(folder, model, history):
    """Writes the history of this rank and a digest of its final weights."""
    bits = hashlib.sha256()
    for weight in model.parameters():
        bits.update(weight.detach().numpy().tobytes())
    facts = {
        "history": [(step, loss if math.isfinite(loss) else None, applied) for step, loss, applied in history],
        "held_out": held_out_loss(model.module),
        "weights": bits.hexdigest(),
    }
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(facts) + "\n")


def held_out_loss(model):
    """Returns the loss on sentences that no run is trained on."""
    model.eval()
    with torch.no_grad():
        return loss_of(model, Language(HELD_OUT).sentences(1000)).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--faults", action="store_true")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    for seed in given.seeds:
        folder = given.out / ("recovered" if given.faults else f"clean-{seed}")
        folder.mkdir(parents=True, exist_ok=True)
        title = "with four faults" if given.faults else f"clean, seed {seed}"
        with tqdm(total=given.steps, desc=title, ncols=100, disable=dist.get_rank() != 0) as bar:
            if given.faults:
                write_reports_to(folder / f"rank-{dist.get_rank()}.log")
                model, history = train_guarded(seed, given.steps, bar, folder)
            else:
                model, history = train_plainly(seed, given.steps, bar)
        write_results(folder, model, history)
    # PyTorch 2.13 aborts now and then if gloo's thread is the one to let go of a Python object at exit.
    del model
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
