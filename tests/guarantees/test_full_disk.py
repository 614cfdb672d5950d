"""Promise 13: if a log cannot be written, training continues, warns once, and counts the missing lines."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import torchnan
from tests.support.bad_training import own_warnings, train
from tests.support.privileges import permissions_enforced
from tests.support.processes import REPOSITORY, run, run_python

pytestmark = pytest.mark.guarantee(13)

NATIVE = Path(__file__).with_name("native")


@pytest.fixture(scope="module")
def expected():
    return train()


def whole_lines(path: Path) -> int:
    """The number of lines. Each must be complete JSON."""
    text = path.read_text() if path.exists() else ""
    assert text == "" or text.endswith("\n")
    return len([json.loads(line) for line in text.splitlines()])


def check(watch, caught, lines: int, expected, results) -> None:
    """The same bits; missing lines are counted, and warned about once."""
    assert results == expected
    stats = watch.stats()
    assert stats["dropped"] == 0
    assert lines == stats["findings"] - stats["log_failures"]
    assert stats["internal_errors"] == stats["log_failures"]
    said = own_warnings(caught)
    assert len(said) == (1 if stats["log_failures"] else 0), said
    assert all("recording a finding failed: log '" in text for text in said)


def watched(log, *, between=lambda: None):
    """A training with a log; `between` runs after the log was opened."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torchnan.detect(action="log", log=log) as watch:
            between()
            results = train()
    return watch, caught, results


# -- every write in turn

FAILING_WRITES = """
import sys, warnings
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import ctypes
import torch

import torchnan
from tests.support.bad_training import train
from tests.guarantees.test_full_disk import check, watched, whole_lines

log, library = Path(sys.argv[1]), ctypes.CDLL(sys.argv[2])
expected = train()
runs, failures = 0, 0
for error in (28, 5, 0):  # ENOSPC, EIO, and a write that stops half way, with ENOSPC after it
    for for_ever in (0, 1):
        nth = 1
        while True:
            log.unlink(missing_ok=True)
            library.fail_write(str(log).encode(), nth, for_ever, error)
            watch, caught, results = watched(log)
            failed = library.writes_failed()
            library.fail_write(b"", 0, 0, 0)
            check(watch, caught, whole_lines(log), expected, results)
            lost = watch.stats()["log_failures"]
            assert lost == failed, (lost, failed, nth, for_ever, error)
            runs, failures = runs + 1, failures + failed
            if failed == 0:
                break
            nth += 1
print(runs, failures)
"""


@pytest.fixture(scope="module")
def failing_writes(tmp_path_factory):
    """A library that fails the nth write to a path."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    built = tmp_path_factory.mktemp("preload") / "failing_write.so"
    made = run([compiler, "-shared", "-fPIC", "-O1", "-o", str(built), str(NATIVE / "failing_write.c"), "-ldl"])
    assert made.returncode == 0, made.stderr
    return built


@pytest.mark.breadth(0)
def test_every_write_of_a_log_fails_in_turn(failing_writes, tmp_path, figure):
    """Once and forever, with nothing written and with a part of the line. Fails when ``LineFile::append`` does not
    remove the part that was written, or ``FindingLog`` does not count."""
    ended = run_python(
        FAILING_WRITES, str(tmp_path / "log"), str(failing_writes), str(REPOSITORY), LD_PRELOAD=str(failing_writes)
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    runs, failures = map(int, ended.stdout.split())
    assert runs > 40
    figure(f"{runs} trainings, {failures} writes of a log that failed or stopped half way, 0 lines broken, 0 uncounted")


# -- locations


def test_a_device_that_is_always_full(expected, figure):
    watch, caught, results = watched("/dev/full")
    check(watch, caught, 0, expected, results)
    assert watch.stats()["log_failures"] == watch.stats()["findings"] > 5
    assert "No space left on device" in own_warnings(caught)[0]
    figure(
        f"/dev/full: {watch.stats()['log_failures']} of {watch.stats()['findings']} findings counted as log_failures"
    )


def test_a_small_file_system(expected, tmp_path):
    """64 KB, almost filled by another file of the program; later there is room again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)])
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        log = disk / "log"
        watch, caught, results = watched(log, between=lambda: _fill(disk / "data"))
        check(watch, caught, whole_lines(log), expected, results)
        assert watch.stats()["log_failures"] > 0
        (disk / "data").unlink()
        before = whole_lines(log)
        watch, caught, results = watched(log)
        assert not own_warnings(caught)
        assert whole_lines(log) == before + watch.stats()["findings"]
    finally:
        run(["umount", str(disk)])


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while file.write(b"x" * 512):
                pass


def test_a_folder_that_is_removed_and_made_again(expected, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "log"
    watch, caught, results = watched(log, between=lambda: shutil.rmtree(folder))
    check(watch, caught, 0, expected, results)
    assert "No such file or directory" in own_warnings(caught)[0]

    folder.mkdir()
    with torchnan.detect(action="log", log=log) as watch:
        train()
        log.rename(folder / "log.1")  # like logrotate
        make_one_more()
    assert whole_lines(folder / "log.1") == watch.stats()["findings"] - 1
    assert whole_lines(log) == 1


def make_one_more():
    torch.atanh(torch.full((2,), 3.0)).sum().item()


def test_a_place_that_becomes_read_only(expected, tmp_path):
    log = tmp_path / "log"
    with permissions_enforced():
        watch, caught, results = watched(log, between=lambda: log.chmod(0o400))
    check(watch, caught, 0, expected, results)


def test_a_place_that_cannot_be_written_to_is_refused_before_the_training(tmp_path):
    fifo, directory, link = tmp_path / "fifo", tmp_path / "directory", tmp_path / "link"
    os.mkfifo(fifo)
    directory.mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    places = [fifo, directory, link, tmp_path / "socket", tmp_path / "no" / "such", Path("/dev/no/such")]
    for place in places:
        with pytest.raises(OSError, match=r"log '.*' cannot be opened \(give "):
            torchnan.detect(log=place)
    assert not (tmp_path / "elsewhere").exists()


def test_a_pipe_that_is_read_is_refused_as_well(tmp_path):
    """Its reader may stop reading at any time, which would block the training. Fails when ``LineFile`` accepts any
    file."""
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="the reader of a pipe may keep training waiting"):
            torchnan.detect(log=tmp_path / "fifo")
    finally:
        os.close(reader)


def test_a_terminal_that_takes_nothing_does_not_stop_the_training(expected):
    """Its other end is never read, and holds a few lines. Fails, by its deadline, without O_NONBLOCK."""
    controller, terminal = os.openpty()
    try:
        results, stats = [], {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(20):
                with torchnan.detect(action="log", log=os.ttyname(terminal)) as watch:
                    results.append(train())
                stats = watch.stats()
        assert all(result == expected for result in results)
        assert stats["log_failures"] == stats["findings"] == stats["internal_errors"]
        assert own_warnings(caught)
    finally:
        os.close(controller)
        os.close(terminal)


# -- limits

LIMITED = """
import resource, signal, sys, warnings
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from tests.support.bad_training import train
from tests.guarantees.test_full_disk import check, watched, whole_lines

if sys.argv[2] == "default":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
expected = train()
log = Path(sys.argv[1])
whole, limits = watched(log)[0].stats()["findings"], 0
size = log.stat().st_size
for limit in (0, 1, size // 3, size // 2, size - 1, size):
    log.unlink()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    watch, caught, results = watched(log)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    check(watch, caught, whole_lines(log), expected, results)
    assert (watch.stats()["log_failures"] == 0) == (limit == size), (limit, size)
    limits += 1
print(limits)
"""


@pytest.mark.parametrize("on_limit", [pytest.param("ignored", marks=pytest.mark.slow), "default"])
def test_a_limit_on_the_size_of_files(on_limit, tmp_path, figure):
    """The signal kills a process that does not ignore it. Fails when ``LineFile`` does not check the limit."""
    ended = run_python(LIMITED, str(tmp_path / "log"), on_limit, str(REPOSITORY))
    assert ended.returncode == 0, (ended.returncode, ended.stderr)
    figure(f"{ended.stdout.strip()} limits on the size of files, SIGXFSZ {on_limit}: no line in parts, nobody killed")


def test_a_limit_on_descriptors(expected, tmp_path):
    log = tmp_path / "log"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open(os.devnull, os.O_RDONLY)
    os.close(spare)
    try:
        watch, caught, results = watched(
            log, between=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard[1]))
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, hard)
    check(watch, caught, 0, expected, results)
    assert "Too many open files" in own_warnings(caught)[0]


# -- descriptors

DAEMON = """
import os, sys
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from tests.support.bad_training import train
import torch

import torchnan
log, own = Path(sys.argv[1]), Path(sys.argv[2])
read = log.absolute()
watch = torchnan.detect(action="log", log=log)
with watch:
    os.chdir("/")
    os.closerange(3, 256)
    mine = [os.open(own, os.O_RDWR | os.O_CREAT) for _ in range(250)]
    train()
assert own.stat().st_size == 0, "a file of the program's own was written to"
del watch
for number in mine:
    os.fstat(number)  # nor has anybody closed it
print(len(read.read_text().splitlines()))
"""


def test_a_program_that_closes_every_descriptor(tmp_path):
    """And opens other files under the same numbers. Fails when the log keeps its descriptor."""
    ended = run_python(DAEMON, "log", str(tmp_path / "own"), str(REPOSITORY), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) == whole_lines(tmp_path / "log") > 5


def test_no_descriptor_is_kept(tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    with torchnan.detect(action="log", log=tmp_path / "log"):
        train()
        assert set(os.listdir("/proc/self/fd")) == before
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_a_partial_line_of_a_killed_process_is_not_extended(tmp_path):
    """Fails when ``LineFile`` does not check how the file ends. (test_fork.py tests, under load, when it checks.)"""
    log = tmp_path / "log"
    log.write_text('{"schema": 1}\n{"schema": 1, "op": "aten::lo')
    os.utime(log, (0, 0))  # no other process is writing it
    with torchnan.detect(action="log", log=log) as watch:
        train()
    first, cut, *rest = log.read_text().splitlines()
    assert json.loads(first) == {"schema": 1}
    assert cut == '{"schema": 1, "op": "aten::lo'
    assert len([json.loads(line) for line in rest]) == watch.stats()["findings"]


def test_several_processes_write_whole_lines_to_one_file(tmp_path, soak, figure):
    code = "import sys; sys.path[:0] = sys.argv[2:]; import torchnan; from tests.support.bad_training import train\n"
    code += "for _ in range(4):\n  with torchnan.detect(action='log', log=sys.argv[1]) as w: train()\n"
    arguments = [sys.executable, "-c", code, str(tmp_path / "log"), str(REPOSITORY)]
    processes = 4 if soak else 2
    children = [subprocess.Popen(arguments) for _ in range(processes)]
    assert {child.wait(300) for child in children} == {0}
    lines = whole_lines(tmp_path / "log")
    assert lines % (4 * processes) == 0
    figure(f"{processes} processes, {lines} lines to one file, every one of them whole")
