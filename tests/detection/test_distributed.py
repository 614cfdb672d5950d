"""Two processes over gloo, started as users start them: by torchrun."""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import torchnan
from tests.support.finding_logs import finding_of, masked_row, received
from tests.support.processes import run
from tests.support.rank_programs import START
from torchnan.distributed import delivery
from torchnan.distributed.job import Job, current

PREAMBLE = f"""{START}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
    def forward(self, x):
        h = self.a(x).relu()
        if planted and rank == 1:
            h = h + (h * 0 - 1).log()  # PLANTED
        return self.b(h).square().mean()
"""

MACHINES = {
    "ddp": """
model = nn.parallel.DistributedDataParallel(Net())
""",
    "fully_shard": """
from torch.distributed.fsdp import fully_shard
model = Net()
fully_shard(model.a); fully_shard(model.b); fully_shard(model)
""",
    "dtensor": """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (world,))
model = parallelize_module(Net(), mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
""",
}

STEPS = """
optimizer = torch.optim.AdamW(model.parameters())
with torchnan.detect(action="log") as watch:
    for _ in range(3):
        loss = model(torch.randn(5, 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
first = watch.first
TOLD = ("op", "rank", "module", "line", "origin", "collective", "hint")
result = dict(
    rank=rank,
    first=None if first is None else {name: getattr(first, name) for name in TOLD},
    internal_errors=watch.stats()["internal_errors"],
    ops=watch.stats()["ops"],
)
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(result, file)
# PyTorch 2.13 aborts now and then, torchnan or not, if gloo's thread is the one to let go of a Python object at exit.
import gc
del model, optimizer, loss
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""


BROUGHT = {"ddp": "allreduce_", "dtensor": "all_reduce", "fully_shard": "_reduce_scatter_base_"}


def run_machine(name, folder, mode):
    script = folder / "train.py"
    script.write_text(PREAMBLE + MACHINES[name] + STEPS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = run([*launch, str(script), str(folder), mode], OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr[-3000:]
    line = next(i for i, text in enumerate(script.read_text().splitlines(), 1) if "# PLANTED" in text)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)], line


@pytest.mark.breadth(1)
@pytest.mark.parametrize("name", MACHINES)
def test_a_healthy_run_is_silent_on_every_rank(name, tmp_path):
    results, _ = run_machine(name, tmp_path, "healthy")
    for result in results:
        assert result["first"] is None
        assert result["internal_errors"] == 0
        assert result["ops"] > 20


@pytest.mark.breadth(1)
@pytest.mark.parametrize("name", MACHINES)
def test_the_rank_that_made_it_names_the_operation(name, tmp_path):
    results, line = run_machine(name, tmp_path, "planted")
    guilty = results[1]["first"]
    assert guilty is not None
    assert (guilty["op"], guilty["rank"], guilty["line"]) == ("aten::log", 1, line)


@pytest.mark.breadth(1)
@pytest.mark.parametrize(("name", "collective"), BROUGHT.items())
def test_another_rank_reports_that_it_was_received(name, collective, tmp_path):
    """By gloo's own copy, or by the one that is waited for."""
    told = run_machine(name, tmp_path, "planted")[0][0]["first"]
    assert (told["origin"], told["rank"]) == ("input", 0)
    assert told["collective"].rpartition("::")[2] == collective
    assert told["hint"] == f"{collective} received it from another rank: see the report of that rank for its origin"


# -- one story

STORY = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    result = model(torch.randn(5, 8))
    if step == 1:
        (result.detach() * 0).log().mean().item()  # on both ranks
    if step == 2 and dist.get_rank() == 1:
        result = result + (result.detach() * 0 - 1).log()  # PLANTED
    loss = result.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
import gc
del model, optimizer, loss
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""


def test_one_rank_reports_each_cause_and_the_end_sums_up_the_other_ranks(tmp_path):
    (tmp_path / "train.py").write_text(STORY)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    ended = run(launch, cwd=tmp_path, TORCHNAN="warn", TORCHNAN_HTML="report.html", OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stderr.count("  made by   aten::log") == 2, ended.stderr  # one of each cause
    assert ended.stderr.count("  made by ") == 2, ended.stderr
    (folder,) = tmp_path.glob("torchnan-job-*")
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.jsonl", "rank-1.jsonl", "told"]
    (end,) = [line for line in ended.stderr.splitlines() if line.startswith("torchnan: ") and "All ranks" in line]
    cause = r"torchnan: Inf at step 2, rank [01] \(cpu\): aten::log at train\.py:11; made by rank [01], too"
    assert re.fullmatch(rf"{cause}, and 1 more cause. All ranks: torchnan show {re.escape(str(folder))}", end)
    assert ended.stderr.count("torchnan: the page of the findings is ") == 1
    page = (tmp_path / "report.html").read_text()
    assert "received by rank 0 through allreduce_" in page
    assert "rank 0</text>" in page
    assert "rank 1</text>" in page


@pytest.mark.parametrize("launched", [None, "5"])
def test_a_process_of_a_group_tells_its_rank_without_a_launcher(launched, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    if launched is not None:
        monkeypatch.setenv("RANK", launched)  # of the machine, say
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        with torchnan.detect(action="log") as watch:
            held = torch.tensor([0.0]).log()
    finally:
        dist.destroy_process_group()
    assert watch.first.rank == 1
    assert "rank 1" in str(watch.first).splitlines()[0]
    del held


@pytest.fixture
def ranks(tmp_path):
    return [Job(tmp_path / "job", rank) for rank in range(4)]


def test_the_first_rank_to_come_with_a_cause_reports_it(ranks):
    for job in (ranks[2], ranks[0]):
        finding = finding_of(masked_row(rank=job.rank))
        text, is_needed = job.text_of(finding, str(finding))
        if job is ranks[2]:
            assert (text, is_needed) == (str(finding), True)
        else:
            assert not is_needed
            assert text.startswith("torchnan: NaN at step 17, rank 0 (cpu): aten::_softmax in layers.0 (Attention) at ")
            assert text.endswith(f"; another rank reports it. All ranks: torchnan show {job.folder}")
    other = finding_of(masked_row(rank=0, op="aten::log"))
    assert ranks[0].text_of(other, str(other)) == (str(other), True)


def test_a_rank_that_received_a_value_says_so_in_a_line(ranks):
    brought = finding_of(received(rank=0))
    text, is_needed = ranks[0].text_of(brought, str(brought))
    assert is_needed  # because there is no other message
    assert "NaN at step 17, rank 0 (cpu): allreduce_ received it from another rank" in text
    made = finding_of(masked_row(rank=1))
    assert ranks[1].text_of(made, str(made)) == (str(made), True)
    later = finding_of(received(rank=3))
    text, is_needed = ranks[3].text_of(later, str(later))
    assert not is_needed
    assert "rank 3 (cpu): received from rank 1, which reports it. All ranks: " in text
    (words,) = filter(None, [job.last_words() for job in ranks])
    assert "received by ranks 0, 3 through allreduce_. All ranks: torchnan show " in words


def test_a_log_has_a_finding_once_and_only_its_owner_can_read_it(ranks):
    finding = finding_of(masked_row(rank=0))
    ranks[0].keep([finding, finding])
    ranks[0].keep([finding])
    assert len(ranks[0].log.read_text().splitlines()) == 1
    assert [path.stat().st_mode & 0o777 for path in (ranks[0].folder, ranks[0].log)] == [0o700, 0o600]


def test_an_unusable_folder_silences_no_rank(ranks, monkeypatch):
    ranks[0].folder.write_text("no folder")
    monkeypatch.setattr("torchnan.distributed.job.current", lambda: ranks[0])
    finding = finding_of(masked_row(rank=0))
    assert str(delivery.NonFiniteError(finding, str(finding))) == str(finding)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "0", "WORLD_SIZE": "2"},  # a launcher that may not end with the job
        {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "a"},
        {"RANK": "x", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a"},
        {},
    ],
)
def test_without_other_ranks_there_is_no_job(variables, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert current.__wrapped__() is None


def test_each_attempt_of_torchrun_is_a_job(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"}.items():
        monkeypatch.setenv(name, value)
    first = current.__wrapped__()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    second = current.__wrapped__()
    assert first.rank == 3
    assert second.folder.name == f"{first.folder.name}-1"
    assert first.log == tmp_path / first.folder.name / "rank-3.jsonl"
    assert list(tmp_path.iterdir()) == []  # nothing is made before something is found
