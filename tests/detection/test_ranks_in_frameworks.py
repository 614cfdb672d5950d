"""Two ranks as Accelerate and Lightning make them of a model, and as torchrun starts them again after a crash."""

from __future__ import annotations

import json

import pytest

from tests.support.processes import run
from tests.support.rank_programs import PREAMBLE, Program, launcher, line_of_fault, made, received, results_of

LIGHTNING = """
import lightning.pytorch as lightning
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def configure_model(self):
        if in_shards:
            for part in (self.net.a, self.net.b, self.net):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])
    def training_step(self, batch, batch_idx):
        hidden = self.net(batch)
        if planted and rank == 1 and batch_idx == 1:
            hidden = hidden + (hidden * 0 - 1).log()  # PLANTED
        return hidden.square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1) if in_shards else "ddp"
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, **quiet)
with torchnan.detect(action="log") as watch:
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(24, 8), batch_size=4))
del trainer
"""

ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = Net()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
with torchnan.detect(action="log") as watch:
    for step in range(3):
        optimizer.zero_grad()
        hidden = model(torch.randn(4, 8))
        if planted and rank == 1 and step == 1:
            hidden = hidden + (hidden * 0 - 1).log()  # PLANTED
        accelerator.backward(hidden.square().mean())
        optimizer.step()
"""

PROGRAMS = {
    "accelerate": Program(ACCELERATE, (received("allreduce_"), made("log", line=True))),
    "lightning": Program(f"in_shards = False{LIGHTNING}", (received("allreduce_"), made("log", line=True))),
    "lightning in shards": Program(
        f"in_shards = True{LIGHTNING}", (received("_reduce_scatter_base_"), made("log", line=True))
    ),
}


@pytest.fixture(params=PROGRAMS)
def program(request):
    pytest.importorskip(request.param.partition(" ")[0])
    return PROGRAMS[request.param]


@pytest.mark.breadth(1)
def test_each_rank_names_the_fault(program, tmp_path):
    for result, told in zip(results_of(program, tmp_path, "planted"), program.told, strict=True):
        assert result["internal_errors"] == 0
        assert result["first"] is not None
        assert {key: result["first"][key] for key in told} == told


@pytest.mark.breadth(1)
def test_without_the_fault_each_rank_is_silent(program, tmp_path):
    assert results_of(program, tmp_path, "healthy") == [{"first": None, "internal_errors": 0}] * 2


GROUP = 'dist.init_process_group("gloo")'
# The workers of a second attempt find addresses of the first in torchrun's store (PyTorch 2.13 with gloo, which then
# fails to connect, with torchnan or without).
GROUP_OF_ATTEMPT = """
import os
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
place = dict(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(sys.argv[1])}/store-{attempt}", **place)
"""

RESTARTED = """
model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    hidden = model(torch.randn(4, 8))
    if planted and rank == 1 and step == 1 and attempt == 0:
        hidden = hidden + (hidden * 0 - 1).log()  # PLANTED
    optimizer.zero_grad()
    hidden.square().mean().backward()
    optimizer.step()
finite = all(bool(parameter.isfinite().all()) for parameter in model.parameters())
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(dict(attempt=attempt, finite=finite), file)
del model, optimizer, hidden
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""


# Without torchnan the first attempt ends, with weights that are NaN.
@pytest.mark.breadth(2)
@pytest.mark.parametrize(
    ("mode", "action", "attempt", "is_finite"),
    [("planted", "raise", 1, True), ("planted", "0", 0, False), ("healthy", "raise", 0, True)],
)
def test_torchrun_starts_a_job_again_that_a_finding_has_ended(mode, action, attempt, is_finite, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PREAMBLE.replace(GROUP, GROUP_OF_ATTEMPT) + RESTARTED)
    started = [*launcher("--max-restarts", "1"), str(script), str(tmp_path), mode]
    ended = run(started, cwd=tmp_path, TORCHNAN=action, OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr[-3000:]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert results == [{"attempt": attempt, "finite": is_finite}] * 2
    reports = ended.stderr.count(f"made by   aten::log, output 0   at {script.name}:{line_of_fault(script)}")
    assert reports == attempt
