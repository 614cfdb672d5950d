"""A process can fork at any moment; the child continues training, writes to a separate file, and repeats nothing."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY, run, run_python
from torchnan._load import _C

pytestmark = pytest.mark.guarantee(8)

UNDER_LOAD = Path(__file__).with_name("programs") / "fork_under_load.py"


def test_a_process_under_load_forks_at_random_moments(tmp_path, soak, figure):
    """Fails when the locks in csrc/ are std::mutex: hung within 30 forks, in the child's end of detection."""
    forks, seed = (1000, random.randrange(10**6)) if soak else (30, 1)
    ended = run([sys.executable, str(UNDER_LOAD), str(tmp_path), str(seed), str(forks)], OMP_NUM_THREADS="1")
    assert ended.returncode == 0, f"seed {seed}\n{ended.stderr}"
    done = json.loads(ended.stdout)
    assert done["forks"] == forks
    assert done["findings"] > 0
    figure(
        f"{forks:,} forks beside 4 threads that made {done['findings']:,} findings, 0 hangs, 0 lines lost or doubled"
    )


# Another thread holds a lock of the Python part for as long as the fork takes, and a little longer.
STRETCHED = """
import os, threading
import torch, torchnan
from torchnan.detection import hooks

is_held, is_forking, shared = threading.Event(), threading.Event(), torchnan.detect(action="log")

def hold():
    with shared, hooks.lock:
        is_held.set()
        is_forking.wait()
        threading.Event().wait(0.3)

threading.Thread(target=hold).start()
is_held.wait()
is_forking.set()
if os.fork() == 0:
    with torchnan.detect(action="log") as own:
        torch.zeros(1).log().item()
    with shared:
        (torch.zeros(1) / torch.zeros(1)).item()
        held = torch.full((1,), -1.0).sqrt()
    ops = [finding.op for scope in (own, shared) for finding in scope.findings]
    os._exit(0 if ops == ["aten::log", "aten::div", "aten::sqrt"] else 1)
_, status = os.wait()
assert status == 0, status
"""


def test_a_fork_waits_for_a_section_that_another_thread_is_in():
    """Fails without register_at_fork in session.py: the child waits for the lock forever. Fails without the function
    that forgets other threads in the child: it does not report values that are left at the end."""
    ended = run_python(STRETCHED, deadline=120)
    assert ended.returncode == 0, ended.stderr


LOADERS = """
import json, os, sys
import torch, torchnan
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        x = torch.full((4,), float(i))
        if i == 13:
            (x * 0).log().sum().item()  # PLANTED
        return x.sin()

def main():
    torch.manual_seed(0)
    method, epochs, watched = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    scope = torchnan.detect(action="log", log=watched) if watched else torch.no_grad()
    total = torch.zeros(4)
    with scope:
        for epoch in range(epochs):
            loader = DataLoader(Numbers(), 4, shuffle=True, num_workers=4, multiprocessing_context=method)
            for batch in loader:
                total += batch.sum(0) * (epoch + 1)
        if os.environ.get("TORCHNAN") or watched:
            torch.full((2,), -1.0).sqrt().sum().item()  # the parent's own
    print(json.dumps(total.tolist()))

if __name__ == "__main__":
    main()
"""


def loaders(folder: Path, method: str, epochs: int, *, log: str = "", **variables: str) -> str:
    program = folder / "loaders.py"
    program.write_text(LOADERS)
    ended = run(
        [sys.executable, "-W", "ignore:This DataLoader will", str(program), method, str(epochs), log],
        cwd=folder,
        OMP_NUM_THREADS="1",
        **variables,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def ops_in(logs: list[Path]) -> list[str]:
    return [json.loads(line)["op"] for log in logs for line in log.read_text().splitlines()]


@pytest.mark.parametrize("by_environment", [False, True], ids=["detect", "TORCHNAN=log"])
def test_a_data_loader_with_forked_workers(tmp_path, soak, figure, by_environment):
    """Each epoch has four new workers, and one of them finds something: in its own file, never in its parent's.

    Fails when the sink writes into its parent's file: seen with `path_here()` cut to `path_`."""
    epochs = 100 if soak else 3
    log = tmp_path / "log"
    if by_environment:
        watched = loaders(tmp_path, "fork", epochs, TORCHNAN="log", TORCHNAN_LOG=str(log))
    else:
        watched = loaders(tmp_path, "fork", epochs, log=str(log))
    assert watched == loaders(tmp_path, "fork", epochs)
    assert ops_in([log]) == ["aten::sqrt"]
    of_workers = list(tmp_path.glob("log.*"))
    assert ops_in(of_workers) == ["aten::log"] * epochs
    assert len(of_workers) == epochs
    figure(
        f"{4 * epochs} forked workers of a DataLoader, {epochs} findings of theirs in {epochs} files, the same batches"
    )


@pytest.mark.slow
def test_a_data_loader_with_spawned_workers(tmp_path, figure):
    """Independent processes that log to the same path: complete lines, each once."""
    log = tmp_path / "log"
    watched = loaders(tmp_path, "spawn", 1, TORCHNAN="log", TORCHNAN_LOG=str(log))
    assert watched == loaders(tmp_path, "spawn", 1)
    assert sorted(ops_in(list(tmp_path.glob("log*")))) == ["aten::log", "aten::sqrt"]
    figure("4 spawned workers, every finding once")


# The files that may use std::mutex, because the other locks are built from it.
MAY_LOCK = {"csrc/base/fork_safe_mutex.cpp"}


def test_every_lock_is_one_that_a_fork_waits_for():
    """Fails when a std::mutex is added anywhere else in csrc/."""
    locks = re.compile(
        r"std::(?:recursive_|shared_|timed_)*mutex\b|std::(?:call_once|condition_variable)|pthread_mutex"
    )
    found = {
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "csrc").rglob("*.*")
        if locks.search(path.read_text())
    }
    assert found == MAY_LOCK


# Called once, before any session exists; does not wait for anything.
MADE_LATE = {"everything_is_off", "is_disabled"}


def test_nothing_is_made_by_a_first_call():
    """The compiler guards the initialization of a function's statics with a lock; a fork during the first call leaves
    it locked. Fails when a `static auto* made = new ...` returns to a function."""
    for library in (Path(_C.__file__), Path(_C.__file__).with_name("libtorchnan.so")):
        listed = subprocess.run(["readelf", "-sW", library], capture_output=True, text=True, check=True).stdout
        guards = re.findall(r" OBJECT .* (_ZGVZNK?8torchnan\S*)", listed)
        late = [guard for guard in guards if not any(name in guard for name in MADE_LATE)]
        assert late == [], f"{library.name}: made by a first call"
