"""A captured step put back into Lightning's loop: the whole program meets it again, on all ranks alike."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from tests.support.processes import REPOSITORY, run

pytest.importorskip("lightning.pytorch")

from tests.support.lightning_runs import FILE, LINE, ROWS, Net, data, fit, trainer_of
from torchnan.integrations.lightning import NaNCapture


def test_a_capture_brings_the_bad_step_back(tmp_path):
    """Injects weights, batches, indices and random numbers into a program that has others."""
    captured = NaNCapture(tmp_path / "first")
    fit(captured, accumulate_grad_batches=3)
    injected = NaNCapture(tmp_path / "second", inject=captured.captures[0])
    trainer, model = fit(injected, rows=data(bad=None), seed=5, accumulate_grad_batches=3)
    (then,), (now,) = captured.events, injected.events
    assert (now.step, now.bits, now.losses, now.finding.line) == (then.step, then.bits, then.losses, LINE)
    assert trainer.global_step == 1
    assert [index for index, _ in model.seen[:3]] == [3, 4, 5]
    assert torch.equal(torch.cat([batch for _, batch in model.seen[:3]]), data()[ROWS * 3 : ROWS * 6])


def test_hooks_of_the_module_see_the_injected_batch(tmp_path):
    class Looking(Net):
        def on_train_batch_start(self, batch, batch_idx):
            self.started = [*getattr(self, "started", []), batch.clone()]

        def validation_step(self, batch, batch_idx):
            self.validated = batch.clone()

    fit(NaNCapture(tmp_path, replay=False), accumulate_grad_batches=2)
    injected = NaNCapture(tmp_path, inject="auto", halt=False, replay=False)
    rows, model = data(bad=None), Looking()
    loaders = DataLoader(rows, batch_size=ROWS), DataLoader(rows + 1, batch_size=ROWS)
    options = dict(max_steps=2, accumulate_grad_batches=2, limit_val_batches=1, val_check_interval=1)
    trainer_of(injected, **options).fit(model, *loaders)
    assert torch.equal(torch.cat(model.started[:2]), data()[ROWS * 2 : ROWS * 4])
    assert torch.equal(torch.cat(model.started[2:]), rows[ROWS * 2 : ROWS * 4])  # from here on those of the loader
    assert torch.equal(model.validated, rows[:ROWS] + 1)
    assert [event.step for event in injected.events] == [2]


def test_nothing_is_injected_where_there_is_nothing(tmp_path):
    capture = NaNCapture(tmp_path, inject="auto")
    trainer, _ = fit(capture, rows=data(bad=None))
    assert (capture.events, trainer.global_step) == ([], 8)


DISTRIBUTED = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from torch import distributed
from tests.support.lightning_runs import Net, data, fit
from torchnan.integrations.lightning import NaNCapture

class Ranks(Net):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch.abs() if self.global_rank == 0 else batch, batch_idx)

def report(capture, inject):
    options = dict(strategy="ddp", devices=2, accumulate_grad_batches=2, use_distributed_sampler=False)
    seed = int(os.environ["RANK"]) + 10 * inject
    trainer, model = fit(capture, model=Ranks(), rows=data(bad=None if inject else 5), seed=seed, **options)
    (event,) = capture.events
    return dict(
        step=event.step, cause=event.cause, verdict=event.verdict, same_bits=event.same_bits, origin=event.origin,
        bits=event.bits, steps=trainer.global_step, stopped=trainer.should_stop, captures=capture.captures,
        weights=[p.double().sum().item() for p in model.parameters()],
    )

folder = sys.argv[2]
captured = NaNCapture(folder + "/captures")
first = report(captured, False)
second = report(NaNCapture(folder + "/again", inject=folder + "/captures/rank-0-step-00000003"), True)
rank = distributed.get_rank()
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump([first, second], file)
import gc
gc.collect()
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.breadth(0)
def test_two_ranks_stop_together_and_meet_it_again_together(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(DISTRIBUTED)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = run([*launch, str(script), str(REPOSITORY), str(tmp_path)], OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr[-3000:]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, (first, second) in enumerate(results):
        assert (first["step"], first["steps"], first["stopped"]) == (3, 3, True)
        assert (first["cause"], first["verdict"], first["same_bits"]) == ("operation", "persistent", True)
        made_by, _, rest = first["origin"].partition(" at ")
        assert made_by == "Inf made by aten::div in SqrtBackward0 in the root module (Ranks)"
        assert FILE.endswith(rest.split(":")[0])  # from the root or from an entry of sys.path
        assert rest.split(":")[1] == str(LINE)
        assert first["origin"].endswith("on rank 1")  # though all ranks have its gradients
        assert first["captures"] == [str(tmp_path / "captures" / f"rank-{rank}-step-00000003")]
        assert (second["step"], second["steps"], second["bits"]) == (3, 1, first["bits"])
        assert second["weights"] == first["weights"]
    assert results[0][0]["weights"] == results[1][0]["weights"]
