"""No handler and no timer is installed, no thread is started; Ctrl-C ends a long check as it ends a long operation."""

from __future__ import annotations

import json
import re
import signal

import pytest

from tests.support.processes import run_python

pytestmark = pytest.mark.guarantee(9)

# Everything in a process that could interrupt it: as seen by the kernel, by libc and by Python.
SNAPSHOTS = """
import ctypes, importlib, json, os, pkgutil, signal, sys
import torch
torch.set_num_threads(1)
libc = ctypes.CDLL(None)

def handler_in_c(number):
    action = (ctypes.c_ubyte * 256)()  # larger than struct sigaction
    if libc.sigaction(number, None, action) != 0:
        return None
    return bytes(action)[:16].hex() + bytes(action)[136:140].hex()  # handler, mask, flags; the rest is not filled in

def snapshot():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {
        "kernel": {name: status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")},
        "libc": [handler_in_c(number) for number in range(1, 65)],
        "python": {int(number): repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
        "timers": [signal.getitimer(timer) for timer in range(3)],
        "posix_timers": open("/proc/self/timers").read(),
        "threads": len(os.listdir("/proc/self/task")),
    }

def train():
    x = torch.ones(3, requires_grad=True)
    (x.exp() * 2).sum().backward()
    x.detach().log_().log().sum().item()

train()
taken = {"before import": snapshot()}
import torchnan
taken["after import"] = snapshot()
for part in pkgutil.walk_packages(torchnan.__path__, "torchnan."):
    if not part.name.startswith(("torchnan.integrations", "torchnan.__main__")):
        importlib.import_module(part.name)
taken["all of it imported"] = snapshot()
with torchnan.detect(action="log", log=sys.argv[1]) as watch:
    taken["enabled"] = snapshot()
    train()
    taken["at work"] = snapshot()
assert watch.findings
taken["disabled"] = snapshot()
torchnan.set_detect(True, action="log")
train()
torchnan.set_detect(False)
taken["after the program-wide one"] = snapshot()
print(json.dumps(taken))
"""


def test_handlers_timers_and_threads_are_unchanged(tmp_path, figure):
    """Fails when install() in hooks.py calls signal.signal(), setitimer() or Thread.start(): seen with each."""
    ended = run_python(SNAPSHOTS, str(tmp_path / "log"), OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr
    taken = json.loads(ended.stdout)
    before = taken.pop("before import")
    assert len(before["python"]) > 60
    for moment, after in taken.items():
        assert after == before, moment
    figure(f"{len(before['libc'])} signals, 4 kinds of timers and the threads, the same at {len(taken)} moments")


# The check is all that this call does: guard() scans, and returns a view. The memory is one page of zeros, mapped again
# and again to eight gigabytes; the number of mapped pages shows how far the scan has come.
LONG_CHECK = """
import json, mmap, os, resource, subprocess, sys
import torch, torchnan
from torchnan._load import _C

BYTES, PAGE, NORESERVE = 8 << 30, 4096, 0x4000
KILLER = '''
import os, signal
def mapped():
    return int(open(f"/proc/{os.getppid()}/stat").read().rsplit(")", 1)[1].split()[7])
enough = mapped() + 200_000
print("ready", flush=True)
while mapped() < enough:
    pass
os.kill(os.getppid(), signal.SIGINT)
'''
pages = mmap.mmap(-1, BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
pages.madvise(mmap.MADV_NOHUGEPAGE)
zeros = torch.frombuffer(pages, dtype=torch.float32)
killer = subprocess.Popen([sys.executable, "-c", KILLER], stdout=subprocess.PIPE)
killer.stdout.readline()
mapped = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before, more, interrupted = mapped(), 0, False
try:
    with torchnan.detect(action="log") as watch:
        torchnan.guard(zeros, "long")  # the signal comes in here
        while True:
            more += 1
except KeyboardInterrupt:
    interrupted = True
read_to_its_end = mapped() - before >= BYTES // PAGE
with torchnan.detect(action="log") as after:
    torch.zeros(1).log().item()
print(json.dumps({
    "interrupted": interrupted,
    "read to its end": read_to_its_end,
    "rounds of the program since": more,
    "scopes": _C.open_scopes(),
    "internal errors": watch.stats()["internal_errors"],
    "findings after": len(after.findings),
}))
"""


def test_ctrl_c_ends_a_long_check_once_it_is_done(figure):
    """Fails when a KeyboardInterrupt is swallowed on the way out: seen with `except KeyboardInterrupt` in guard()."""
    ended = run_python(LONG_CHECK, deadline=120, OMP_NUM_THREADS="1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == {
        "interrupted": True,
        "read to its end": True,
        "rounds of the program since": 0,
        "scopes": 0,
        "internal errors": 0,
        "findings after": 1,
    }
    figure("SIGINT in the middle of a check of 8 GiB: KeyboardInterrupt before the program's next bytecode")


def test_an_uncaught_ctrl_c_ends_the_program_as_it_does_without_torchnan():
    def ended(watched: bool) -> tuple[int, list[str]]:
        scope = "torchnan.detect(action='log')" if watched else "torch.no_grad()"
        code = f"""
import signal, torch, torchnan
with {scope}:
    torch.ones(2) + 1
    signal.raise_signal(signal.SIGINT)
"""
        done = run_python(code)
        return done.returncode, [line for line in done.stderr.splitlines() if not line.startswith("    with")]

    assert ended(True) == ended(False)
    assert ended(True)[0] == -signal.SIGINT


# A crash inside a module, under detection or not: faulthandler prints the same.
CRASH = """
import ctypes, sys
import torch, torchnan

class Crashes(torch.nn.Module):
    def forward(self, x):
        y = x.exp()
        ctypes.string_at(0)
        return y

scope = torchnan.detect(action="log") if sys.argv[1] == "on" else torch.no_grad()
with scope:
    torch.nn.Sequential(torch.nn.Linear(2, 2), Crashes())(torch.ones(2))
"""


def test_faulthandler_reports_the_same():
    def told(watched: str) -> tuple[int, str]:
        done = run_python(CRASH, watched, OMP_NUM_THREADS="1")
        return done.returncode, re.sub("0x[0-9a-f]+", "0x", done.stderr)

    assert told("on") == told("off")
    code, stacks = told("on")
    assert code == -signal.SIGSEGV
    assert re.search("line 8 in forward", stacks), stacks
