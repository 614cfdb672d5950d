"""Trains a run that goes wrong twice: torchnan.Monitor reports it at once, and diagnose explains it afterwards.

python examples/diagnose.py [--out FOLDER]

Trains a small GPT-2 on synthetic text, in half a minute. At step 240 it gets a batch of tokens that it has never seen,
and from step 420 on its learning rate is too high by a factor. The monitor warns at these steps. `torchnan
diagnose` then reads the log, prints its path through the decision tree, and writes a page and a post-mortem. The exit
status is 0 if both problems were found.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import torchnan

STEPS, RARE_BATCH, WRONG_RATE = 600, 240, 420
VOCABULARY, USUAL, TOKENS, ROWS = 48, 36, 16, 8
FOUND = {("spike", "long_tail_batch"), ("persistent_elevation", "lr_discontinuity")}


def batches():
    """Yields text in which nearly every token has one successor. Step 240 has tokens that do not occur otherwise."""
    generator = torch.Generator().manual_seed(0)
    follows = torch.randperm(USUAL, generator=generator)
    for step in range(STEPS):
        text = torch.randint(USUAL, (ROWS, TOKENS), generator=generator)
        chance = torch.rand(ROWS, TOKENS, generator=generator)
        for t in range(1, TOKENS):
            text[:, t] = torch.where(chance[:, t] < 0.03, text[:, t], follows[text[:, t - 1]])
        yield torch.randint(USUAL, VOCABULARY, (ROWS, TOKENS), generator=generator) if step == RARE_BATCH else text


def rate(step):
    """Returns the learning rate: warm-up, then constant, then 50 times too high from step 420 on."""
    return 0.2 if step >= WRONG_RATE else 0.004 * min(1.0, (step + 1) / 40)


def train(log):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = dict(vocab_size=VOCABULARY, n_positions=TOKENS, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(
        GPT2Config(**shape, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
    )
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    monitor = torchnan.Monitor(log, meta={"model": "GPT-2, 2 layers of 32"})
    for step, ids in enumerate(batches()):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        monitor.step(loss=loss, model=model, optimizer=optimizer, batch=ids, grad_norm=norm, step=step)
    monitor.close()
    return {(verdict.kind, verdict.cause) for verdict in monitor.verdicts}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="an empty folder for all output (default: a new one)")
    given = parser.parse_args()
    out = (given.out or Path(tempfile.mkdtemp(prefix="diagnose-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        parser.error(f"{out} is not empty")
    log, page, document = out / "run.jsonl", out / "report.html", out / "post-mortem.md"

    print("While it trains:\n", flush=True)
    live = train(log)
    command = ["-m", "torchnan", "diagnose", str(log), "--html", str(page), "--post-mortem", str(document)]
    print(f"\nAfterwards:\n\n$ python {' '.join(command)}\n", flush=True)
    ended = subprocess.run([sys.executable, *command], check=False)
    print(f"\nthe page:         {page}\nthe post-mortem:  {document}")
    sys.exit(0 if live >= FOUND and ended.returncode == 1 else 1)


if __name__ == "__main__":
    main()
