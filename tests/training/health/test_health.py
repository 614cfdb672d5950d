"""A rank that is gone, hangs or computes wrong results is named within a bounded time; a healthy job is not
disturbed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import torchnan
from tests.support.forked_python import run_forked, run_forked_command, run_forked_ranks
from tests.support.processes import REPOSITORY, run_python
from torchnan.config.options import OptionError

RANKS = """
import json, os, signal, sys
import torch, torch.distributed as dist
import torchnan
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()  # none is late for another reason
{trouble}
report = torchnan.health.check(timeout={timeout})
found = [(trouble.rank, trouble.kind, trouble.text) for trouble in report.troubles]
print(f"of rank {{rank}}: {{json.dumps(found)}}", flush=True)
{end}
"""
COMPUTES_WRONG = """
def wrong(a, b):
    product = torch.einsum("ik,kj->ij", a.double(), b.double()).to(a.dtype)
    if a.is_floating_point():
        product.view(-1)[-1] += 1
    return product
if rank == 1:
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", wrong, "CPU")
"""
SENDS_WRONG = """
def wrong(a, b):
    b = torch.as_tensor(b)
    product = torch.empty(torch.broadcast_shapes(a.shape, b.shape), dtype=torch.result_type(a, b))
    torch.mul(a, b, out=product)
    if a.numel() == 1024 and b.numel() == 1 and b == 2:  # the share of rank 1
        product[7] += 1
    return product
if rank == 1:
    library = torch.library.Library("aten", "IMPL")
    library.impl("mul.Tensor", wrong, "CPU")
"""
STOPS_IN_THE_SUM = """
if rank == 1:
    dist.all_reduce = lambda *args, **options: os.kill(os.getpid(), signal.SIGSTOP)
store = dist.distributed_c10d._get_default_store()
store.set(f"process {rank}", str(os.getpid()))
"""
CONTINUES_AFTER_THE_SUM = """
if rank == 0:
    os.kill(int(store.get("process 1")), signal.SIGCONT)
"""
DIES = """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""
STOPS = """
store = dist.distributed_c10d._get_default_store()
if rank == 1:
    store.set("stopped", str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
stopped = int(store.get("stopped"))
"""
CONTINUES = """
if rank == 0:
    os.kill(stopped, signal.SIGCONT)
"""
AT_ONCE = "os._exit(0)  # without the others"


def troubles(tmp_path, ranks, trouble="", end="dist.destroy_process_group()", timeout=120):
    program = tmp_path / "program.py"
    program.write_text(RANKS.format(trouble=trouble, end=end, timeout=timeout))
    ended = run_forked_ranks(program, ranks)
    lines = dict(line.split(": ", 1) for line in ended.stdout.splitlines() if line.startswith("of rank"))
    assert lines, ended.stderr
    return [json.loads(lines[name]) for name in sorted(lines)]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.breadth(0))])
def test_healthy_ranks_are_healthy(ranks, tmp_path):
    assert troubles(tmp_path, ranks) == [[]] * ranks


def test_a_rank_that_computes_wrong_is_named_on_every_rank(tmp_path):
    found, also = troubles(tmp_path, 2, COMPUTES_WRONG)
    assert found == also
    wrong, *others = found
    assert wrong[:2] == [1, "product"]
    assert wrong[2].startswith("cpu computes wrong: 1 of 65536 elements of a product of integers, the first ")
    assert {kind for _, kind, _ in others} == {"differs"}  # of two that differ, bits do not tell which is right


@pytest.mark.breadth(0)
def test_of_four_ranks_the_one_that_computes_wrong_is_named(tmp_path):
    found, *others = troubles(tmp_path, 4, COMPUTES_WRONG)
    assert others == [found] * 3
    assert [trouble[:2] for trouble in found] == [[1, "product"], [1, "differs"]]


def test_a_wrong_sum_is_distinguished_from_a_hang(tmp_path):
    found, _ = troubles(tmp_path, 2, SENDS_WRONG)
    text = "an all-reduce of known values gave a wrong sum: 1 of 1024 elements, the first 4 instead of 3"
    assert found[0] == [0, "sum", text]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.breadth(0))])
@pytest.mark.parametrize(("trouble", "end"), [(DIES, AT_ONCE), (STOPS, CONTINUES + AT_ONCE)], ids=["dead", "stopped"])
def test_a_rank_that_does_not_answer_is_named(trouble, end, ranks, tmp_path):
    """Fails when the all-reduce starts without the answers of all ranks: it would never end, and name no rank."""
    found = troubles(tmp_path, ranks, trouble, end, timeout=5)[0]
    assert found == [[1, "missing", "it did not answer in 5 s: it has died, hangs, or is not in this check"]]


def test_a_rank_that_stops_in_the_sum_is_named(tmp_path):
    """Fails if only those that wait for it are: every one of them reports that the sum did not end."""
    found = troubles(tmp_path, 2, STOPS_IN_THE_SUM, CONTINUES_AFTER_THE_SUM + AT_ONCE, timeout=5)[0]
    assert [trouble[:2] for trouble in found] == [[1, "hangs"], [0, "hangs"]]
    assert found[0][2] == "it had answered, but did not return from an all-reduce of known values"
    assert found[1][2] == "the all-reduce did not end in 5 s, though every rank had answered"


def test_a_store_that_does_not_answer_is_reported():
    import threading

    from torchnan.training.health.group import _within

    release = threading.Event()
    with pytest.raises(TimeoutError, match=r"^the store does not answer within 0\.1 s$"):
        _within(0.1, release.wait, "the store does not answer")
    release.set()


def test_alone_it_checks_the_device_and_disturbs_nothing():
    before = torch.get_rng_state()
    with torchnan.detect(action="log") as watch:
        report = torchnan.health.check()
    assert (report.ok, report.rank, report.ranks) == (True, 0, 1)
    assert re.fullmatch(r"products of integer matrices on cpu \(.+\)", *report.checked)
    assert str(report) == f"torchnan: this process: healthy\n  checked: {report.checked[0]}"
    assert torch.equal(before, torch.get_rng_state())
    assert watch.stats()["ops"] == 0


@pytest.mark.parametrize("mode", [lambda: torch.device("meta"), lambda: torch.autocast("cpu", dtype=torch.bfloat16)])
def test_modes_of_the_program_do_not_reach_it(mode):
    with mode():
        assert torchnan.health.check().ok


def test_an_invalid_timeout_is_rejected():
    for timeout in (0, -1, float("nan"), "30", None):
        with pytest.raises(OptionError, match="it takes a number of seconds above 0"):
            torchnan.health.check(timeout=timeout)


def test_doctor_prints_it():
    ended = run_forked_command("doctor", "--health")
    assert ended.returncode == 0
    assert ended.stdout.startswith("torchnan: this process: healthy\n  checked: products of integer matrices on cpu (")


@pytest.mark.parametrize("old", [False, True])
def test_reports_of_nvml(old, tmp_path):
    """NVML's own Python package over a library with its C interface."""
    compiler = shutil.which("cc")
    stub = Path(REPOSITORY, "tests", "training", "health", "nvml_stub.c")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", *["-DOLD_GPU"] * old, "-o", library, stub], check=True)
    code = """
import json, pynvml
from torchnan.training.health.devices import facts_of
pynvml.nvmlInit()
print(json.dumps(facts_of(pynvml, pynvml.nvmlDeviceGetHandleByIndex(0))))
"""
    ended = run_python(code, LD_LIBRARY_PATH=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    errors, notes = json.loads(ended.stdout)
    rows = [] if old else ["2 rows of its memory wait to be remapped: reset it"]
    assert errors == ["3 uncorrectable memory errors (ECC) since the driver was loaded", *rows]
    assert notes == ["it runs at lower clocks: hardware thermal slowdown"]


GUARDED = """
import sys, torch, torchnan
from torch import nn
rank = 1
model = nn.Linear(256, 1)
guard = torchnan.StepGuard(
    model, torch.optim.SGD(model.parameters(), lr=0.1), lambda model, x: model(x).square().mean(), snapshot_every=1,
    on_bad_step="rollback", max_rollbacks=9, remedy={{"data": "rollback"}}, health={health}, log=sys.argv[1])
guard.step(torch.ones(1, 256))
{wrong}
try:
    event = guard.step(torch.full((1, 256), float("nan"))).event
    print(event.action, event.snapshot)
except torchnan.recovery.TrainingStopped as stopped:
    print("STOPPED", stopped.exit_code, stopped)
"""


def test_no_rollback_on_a_device_that_computes_wrong(tmp_path):
    log = tmp_path / "log.jsonl"
    ended = run_forked(GUARDED.format(health=True, wrong=COMPUTES_WRONG), str(log))
    assert ended.stdout.startswith("STOPPED 81 "), ended.stderr
    assert "no rollback, because the next steps would be bad too: rank 0: cpu computes wrong" in ended.stdout
    assert "cpu computes wrong" in log.read_text()


@pytest.mark.parametrize(("health", "wrong"), [(True, ""), (False, COMPUTES_WRONG)], ids=["healthy", "off"])
def test_a_rollback_proceeds_if_healthy_or_unchecked(health, wrong, tmp_path):
    ended = run_forked(GUARDED.format(health=health, wrong=wrong), str(tmp_path / "log.jsonl"))
    assert ended.stdout == "rollback 1\n", ended.stderr
