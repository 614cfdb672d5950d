"""The log of a process survives kill -9.

Captures and snapshots, killed at every call by which files come and go: ``tests/training/guard/test_step_captures.py``.
"""

from __future__ import annotations

import json

import pytest

from tests.support.forked_python import run_forked

pytestmark = pytest.mark.guarantee(11)

# A process that forks one child after another. The children find NaNs in four threads and report through a pipe which
# guards have returned. Each child is killed after a number of reports that the seed determines, wherever its threads
# are by then.
KILLED = """
import json, os, random, signal, sys, threading
import torch, torchnan
from torchnan import findings

folder, kills = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)

def find(watch, number, pipe):
    with watch:
        for i in range(10**9):
            name = f"{number}.{i}."
            torchnan.guard(torch.zeros(1) / 0, name + "x" * (i % 7 * 700))  # lines of less than a page and of more
            os.write(pipe, name.encode() + b" ")

def child(path, pipe):
    watch = torchnan.detect(action="log", log=path, max_findings=10**9)
    threads = [threading.Thread(target=find, args=(watch, number, pipe)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def killed(path, after):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(path, writer)
    os.close(writer)
    told = b""
    while told.count(b" ") < after:
        told += os.read(reader, 4096) or sys.exit(f"the child has ended after {told.count(b' ')}")
    os.kill(pid, signal.SIGKILL)
    while more := os.read(reader, 65536):
        told += more
    os.waitpid(pid, 0)
    return {name.decode() for name in told[:told.rindex(b" ")].split(b" ")}

sums = dict(kills=0, lines=0, acknowledged=0, partial=0, ignored=0)
for seed in range(kills):
    path = f"{folder}/{seed}.jsonl"
    acknowledged = killed(path, after=random.Random(seed).randrange(1, 300))
    log = findings.read(path)
    assert log.damaged_lines == 0, (seed, log.damaged)
    whole, _, rest = open(path, "rb").read().rpartition(b"\\n")
    for line in whole.split(b"\\n"):
        json.loads(line)
    assert log.ignored_bytes == len(rest) and log.truncated == bool(rest), seed
    there = {finding.harm.name.split("x")[0] for finding in log.findings}
    assert acknowledged <= there, (seed, sorted(acknowledged - there)[:9])
    sums["kills"] += 1
    sums["lines"] += len(log.findings)
    sums["acknowledged"] += len(acknowledged)
    sums["partial"] += log.truncated
    sums["ignored"] += log.ignored_bytes
    os.unlink(path)
print(json.dumps(sums))
"""


def test_every_finding_that_was_delivered_is_in_the_log(tmp_path, soak, figure):
    """Fails when the sink keeps lines back: seen with a buffer of 64 KiB in front of its write()."""
    ended = run_forked(KILLED, str(tmp_path), "200" if soak else "10")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    sums = json.loads(ended.stdout)
    assert sums["acknowledged"] > 0
    figure(
        f"{sums['kills']} kills at random moments of 4 threads: {sums['lines']:,} lines, all whole but "
        f"{sums['partial']} last ones; of {sums['acknowledged']:,} findings that were delivered 0 lost"
    )
