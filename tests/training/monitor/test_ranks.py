"""With several ranks, one writes, or each writes a separate file; all take the table's action for the finding of
any."""

from __future__ import annotations

import pytest

from tests.support.forked_python import run_forked_ranks
from tests.support.monitored_training import rows_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def launched(program, *arguments):
    return run_forked_ranks(program, 2, *arguments)


RANKS = """
import sys
import torch, torch.distributed as dist
import torchnan
dist.init_process_group("gloo")
monitor = torchnan.Monitor(log=sys.argv[1], all_ranks=sys.argv[2] == "all")
for i in range(3):
    monitor.step(loss=float(dist.get_rank()))
dist.destroy_process_group()
"""


@pytest.mark.breadth(1)
@pytest.mark.parametrize(("ranks", "names"), [("first", ["run.jsonl"]), ("all", ["run.jsonl", "run.rank-1.jsonl"])])
def test_the_first_rank_writes_or_each_its_own_file(path, tmp_path, ranks, names):
    program = tmp_path / "program.py"
    program.write_text(RANKS)
    folder = tmp_path / "logs"
    folder.mkdir()
    ended = launched(program, str(folder / "run.jsonl"), ranks)
    assert ended.returncode == 0, ended.stderr
    assert sorted(file.name for file in folder.iterdir()) == names
    for rank, name in enumerate(names):
        assert [row["loss"] for row in rows_of(folder / name)] == [rank] * 3


GUARDED = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
import torchnan
dist.init_process_group("gloo")
rank = dist.get_rank()

class Spiky(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))
    def forward(self, level):
        return level + (self.w * 0.01).sum()

model = nn.parallel.DistributedDataParallel(Spiky())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
unlike = int(sys.argv[2])
guard = torchnan.StepGuard(
    model, optimizer, lambda model, level: model(level),
    monitor=torchnan.Monitor(log=sys.argv[1], all_ranks=True), instability={"spike": "skip"},
)
losses = (2 + 0.05 * torch.randn(150, generator=torch.Generator().manual_seed(rank))).tolist()
applied = [guard.step(torch.tensor(loss)).applied for loss in [*losses, 6.0 if rank == unlike else 2.0, 2.0]]
event = guard.events[-1]
words = event.seen.split(" ")[0]
told = (rank, sum(applied), applied[150:], event.action, event.rank, words, guard.failures)
sys.stdout.write(" ".join(map(str, told)) + "\\n")  # in one piece: the ranks share the pipe
sys.stdout.flush()
dist.barrier()
os._exit(0)  # PyTorch aborts now and then if gloo's thread is the last to let go of a tensor
"""


@pytest.mark.breadth(1)
@pytest.mark.parametrize("unlike", [0, 1])
def test_a_verdict_of_one_rank_is_acted_on_by_all(path, tmp_path, unlike):
    program = tmp_path / "program.py"
    program.write_text(GUARDED)
    ended = launched(program, str(path), str(unlike))
    assert ended.returncode == 0, ended.stderr
    wanted = f"151 [False, True] skip {unlike} spike {{}}"
    assert sorted(ended.stdout.splitlines()) == [f"{rank} {wanted}" for rank in range(2)]
    assert [row["skipped"] for row in rows_of(path)][-2:] == [True, False]
