"""A job writes weights that ranks share once for each bad step, and captures no more steps than allowed."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from torch import nn

import torchnan
from tests.support.forked_python import run_forked_ranks
from torchnan.capture import CaptureError
from torchnan.training.guard.capture_plan import WRITERS_AT_ONCE, plan_captures
from torchnan.training.guard.fingerprint import fingerprint

# -- which rank writes which part


def test_the_rank_of_the_cause_writes_the_shared_capture():
    plan = plan_captures([[7, 8], [7, 8], [7, 9], [7, 8]], cause=2, most=64)
    assert plan.holders == {0: (2, 0), 1: (2, 0), 2: (2, 2), 3: (2, 0)}
    assert plan.turns == ((2, 0), (1, 3))


def test_16384_ranks_write_their_weights_once_and_few_of_their_batches():
    plan = plan_captures([[7, 8]] * 16384, cause=9000, most=64)
    assert len(plan.writers) == 64
    assert plan.writers[:3] == (9000, 0, 1)
    assert set(plan.holders.values()) == {(9000, 9000)}
    assert max(map(len, plan.turns)) == WRITERS_AT_ONCE


def test_a_shard_that_no_other_rank_has_is_always_written():
    plan = plan_captures([[1 + rank % 128, 5] for rank in range(16384)], cause=200, most=64)
    assert plan.writers[0] == 200
    assert {held[0] % 128 for held in plan.holders.values()} == set(range(128))
    assert len(plan.writers) == 128
    assert all(len(turn) <= WRITERS_AT_ONCE for turn in plan.turns)


def test_a_rank_without_a_folder_writes_nothing_and_holds_nothing():
    plan = plan_captures([[], [7], [7]], cause=0, most=64)
    assert plan.holders == {1: (1,), 2: (1,)}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("w", torch.tensor([2.0, 1.0, 3.0])),
        ("w", torch.tensor([1.0, 2.0, 4.0])),
        ("w", torch.tensor([[1.0, 2.0, 3.0]])),
        ("w", torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)),
        ("v", torch.tensor([1.0, 2.0, 3.0])),
    ],
)
def test_a_fingerprint_changes_with_order_value_shape_dtype_and_name(name, other):
    known = {"w": torch.tensor([1.0, 2.0, 3.0])}
    assert fingerprint(known) == fingerprint({"w": known["w"].clone()})
    assert fingerprint(known) != fingerprint({name: other})


def test_constants_do_not_cancel_in_a_fingerprint():
    assert fingerprint({"w": torch.full((8,), 1.0)}) != fingerprint({"w": torch.full((8,), 2.0)})


# -- jobs

PROGRAM = """
import gc, json, os, shutil, sys
import torch, torch.distributed as dist
from torch import nn
import torchnan

dist.init_process_group("gloo")
rank, folder, kind, cause = dist.get_rank(), sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4096), nn.BatchNorm1d(4096), nn.Linear(4096, 2)
    def forward(self, x):
        return self.b(self.norm(self.a(x)).relu()).square().mean()

model = Net()
if kind == "fully_shard":
    from torch.distributed.fsdp import fully_shard
    fully_shard(model)
else:
    model = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
guard = torchnan.StepGuard(
    model, torch.optim.AdamW(model.parameters()), lambda m, x: m(x), captures=folder, max_captures=2, max_consecutive=9)
said = []
for step in range(1, 5):
    torch.manual_seed(10 * step + rank)
    x = torch.randn(8, 4)
    if step > 1 and rank == cause:
        x[0, 0] = float("nan")
    if step == 3 and kind == "ddp":
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
        dist.barrier()
    event = guard.step(x).event
    said.append(None if event is None else [event.capture, event.notes])
with open(f"{folder}-{rank}.json", "w") as file:
    json.dump(said, file)
# PyTorch 2.13 aborts now and then, torchnan or not, if gloo's thread is the one to let go of a Python object at exit.
del model, guard, event
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4096), nn.BatchNorm1d(4096), nn.Linear(4096, 2)


WEIGHTS = 4 * sum(p.numel() for p in Net().parameters())


def captured(tmp_path, world, kind, cause=1):
    program, folder = tmp_path / "train.py", tmp_path / "captures"
    program.write_text(PROGRAM)
    ended = run_forked_ranks(program, world, str(folder), kind, str(cause))
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder, [json.loads((tmp_path / f"captures-{rank}.json").read_text()) for rank in range(world)]


def sizes(folder, pattern):
    return sorted(path.stat().st_size for path in folder.glob(pattern))


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_under_ddp_the_rank_of_the_cause_writes_the_weights(world, tmp_path):
    folder, said = captured(tmp_path, world, "ddp")
    # step 2 was removed with the folder, so that there is room for steps 3 and 4
    assert len(list(folder.iterdir())) == 2 * world
    written = [path.parent.name for path in folder.glob("*/weights.safetensors")]
    assert sorted(written) == ["rank-1-step-00000003", "rank-1-step-00000004"]
    total = sum(sizes(folder, "*/*"))
    assert 2 * WEIGHTS < total < 2 * WEIGHTS + 2 * world * 2**17  # buffers are of each rank, without broadcasts
    weights = torchnan.load_capture(folder / "rank-1-step-00000003").weights
    for rank in range(world):
        kept = torchnan.load_capture(folder / f"rank-{rank}-step-00000003")
        assert kept.rank == rank
        assert all(torch.equal(tensor, weights[name]) for name, tensor in kept.weights.items())
        assert kept.batches[0].isnan().any() == (rank == 1)
        assert said[rank][2][0] == str(folder / f"rank-{rank}-step-00000003")
    of_cause = f"the bad value is in the capture of rank 1: {folder / 'rank-1-step-00000003'}"
    assert [of_cause in rank[2][1] for rank in said] == [rank != 1 for rank in range(world)]
    shutil.move(folder / "rank-1-step-00000003", folder / "elsewhere")
    with pytest.raises(
        CaptureError, match=r"has no weights: rank 1 has written them, and its capture of the same step"
    ):
        torchnan.load_capture(folder / "rank-0-step-00000003")


def test_the_weights_of_another_step_are_refused(tmp_path):
    folder, _ = captured(tmp_path, 2, "ddp")
    document = json.loads((folder / "rank-1-step-00000003" / "capture.json").read_text())
    document["shared"]["weights"]["fingerprint"] = "0" * 16
    text = json.dumps(document).encode()
    (folder / "rank-1-step-00000003" / "capture.json").write_bytes(text)
    contents = json.loads((folder / "rank-1-step-00000003" / "contents.json").read_text())
    for file in contents["files"]:
        if file["name"] == "capture.json":
            import zlib

            file.update(bytes=len(text), crc32=zlib.crc32(text))
    (folder / "rank-1-step-00000003" / "contents.json").write_text(json.dumps(contents))
    with pytest.raises(CaptureError, match=r"rank-1-step-00000003 has other weights than .*rank-0-step-00000003 was"):
        torchnan.load_capture(folder / "rank-0-step-00000003")


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_shards_are_written_by_each_rank_that_has_them(world, tmp_path):
    folder, said = captured(tmp_path, world, "fully_shard", cause=0)
    assert len(list(folder.iterdir())) == 2 * world
    assert len(sizes(folder, "*/weights.safetensors")) == 2 * world
    assert sum(sizes(folder, "*/weights.safetensors")) < 2 * (WEIGHTS + world * 2048)
    assert said[0][3] == [None, [f"not captured: {folder} holds captures of 2 steps (max_captures)"]]
