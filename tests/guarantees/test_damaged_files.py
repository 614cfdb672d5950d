"""Logs and captures that were cut or changed anywhere: a reader returns the readable part or one error, quickly, in
little memory.

Captures with structurally changed documents: ``tests/training/capture/test_damage.py``. Folders:
``tests/training/capture/test_reading.py``.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import json
import random
import time

import pytest

from tests.guarantees.fuzz import capture as capture_fuzz
from tests.support.processes import run_python
from torchnan import Finding, findings
from torchnan.capture import CaptureError, load_capture

pytestmark = [pytest.mark.guarantee(12), pytest.mark.filterwarnings("ignore")]

LINES = capture_fuzz.CORPUS.with_name("finding")
DEADLINE = 1200  # seconds; only a hang reaches it, and then all stacks are printed


@pytest.fixture(autouse=True)
def deadline():
    faulthandler.dump_traceback_later(DEADLINE, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


class Clock:
    """The processor time of the longest of many reads, which does not depend on other programs."""

    def __init__(self) -> None:
        self.longest = 0.0

    @contextlib.contextmanager
    def read(self):
        before = time.process_time()
        yield
        self.longest = max(self.longest, time.process_time() - before)
        assert self.longest < 1


@pytest.fixture(scope="module")
def log():
    lines = [LINES / f"{name}.input" for name in ("whole", "every_kind_of_number", "markup")]
    return b"".join(Finding.from_json(line.read_bytes()).to_json().encode() + b"\n" for line in lines)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """With one to four changes."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        what = chance.choice(("flip", "flip", "insert", "cut", "delete", "repeat"))
        if what == "flip" and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif what == "insert":
            changed[at:at] = chance.randbytes(chance.randint(1, 9))
        elif what == "cut":
            del changed[at:]
        elif what == "delete":
            del changed[at : at + chance.randint(1, 99)]
        else:
            changed[at:at] = changed[at : at + chance.randint(1, 999)]
    return bytes(changed)


# -- logs


def test_a_log_that_was_cut_gives_its_whole_lines(log, tmp_path, figure):
    """Fails when a last line must be whole: seen without the handler of ValueError in the reader."""
    clock, path = Clock(), tmp_path / "log"
    for size in range(len(log) + 1):
        path.write_bytes(log[:size])
        with clock.read():
            read = findings.read(path)
        whole = log[: size + 1].count(b"\n")  # the line break itself may be missing
        rest = 0 if log[size : size + 1] == b"\n" else size - (log[:size].rfind(b"\n") + 1)
        assert (len(read.findings), read.damaged_lines, read.ignored_bytes) == (whole, 0, rest), size
        assert read.truncated == (rest > 0), size
    figure(f"a log cut at each of its {len(log):,} bytes: its whole lines; the longest read took {clock.longest:.3f} s")


def test_a_damaged_log_gives_its_readable_lines(log, tmp_path, soak, figure):
    """Fails when a damaged line ends the reading: seen."""
    clock, path = Clock(), tmp_path / "log"
    lines = set(log.splitlines())
    seeds = 100_000 if soak else 1_000
    found = 0
    for seed in range(seeds):
        data = damaged(log, random.Random(seed))
        path.write_bytes(data)
        with clock.read():
            read = findings.read(path)
        there = [f.to_json().encode() for f in read.findings]
        unharmed = collections.Counter(line for line in data.split(b"\n") if line in lines)
        assert unharmed <= collections.Counter(there), f"seed {seed}"
        assert sum(map(len, there)) + read.ignored_bytes <= len(data) + 99, f"seed {seed}"
        found += len(read.findings)
    figure(f"{seeds:,} logs with random changes: {found:,} findings read; the longest read took {clock.longest:.3f} s")


# -- captures


def test_a_capture_that_was_cut_is_an_error(tmp_path, soak, figure):
    """Every file, with its size and sum made right. Fails when safetensors' errors are let through: seen."""
    clock, cuts, loaded = Clock(), 0, 0
    files = {name: text for name, text in capture_fuzz.whole().items() if len(text) > 16}
    for name, text in files.items():
        for size in range(0, len(text), 1 if soak else 101):
            capture_fuzz.forge(tmp_path, name.encode() + b"\n" + text[:size])
            with clock.read(), contextlib.suppress(CaptureError):
                load_capture(tmp_path)
                loaded += 1
            cuts += 1
    assert loaded == 0
    figure(f"files of a capture cut at {cuts:,} places: CaptureErrors, the longest after {clock.longest:.3f} s")


def test_a_capture_that_was_changed_is_an_error_or_a_capture(tmp_path, soak, figure):
    """Fails when safetensors' errors are let through: seen."""
    clock, loaded = Clock(), 0
    seeds = 10_000 if soak else 300
    names = sorted(capture_fuzz.whole())
    for seed in range(seeds):
        chance = random.Random(seed)
        name = chance.choice(names)
        data = damaged(capture_fuzz.whole()[name], chance)
        try:
            capture_fuzz.forge(tmp_path, name.encode() + b"\n" + data)
            with clock.read(), contextlib.suppress(CaptureError):
                load_capture(tmp_path)
                loaded += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, {name}") from error
    figure(f"{seeds:,} captures with random changes: {loaded:,} load; the longest load took {clock.longest:.3f} s")


# -- memory

MOST = 64 * 2**20  # bytes, beside the file itself
LARGE = 24 * 2**20

MEASURED = """
import json, sys
from torchnan import findings
from torchnan.capture import CaptureError, load_capture

def status(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))

def read(path):
    if sys.argv[1] == "log":
        return len(findings.read(path).findings)
    try:
        return len(load_capture(path).batches)
    except CaptureError as error:
        return str(error)

def measured(path):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins again
    before = status("VmRSS")
    return read(path), status("VmHWM") - before

read(sys.argv[2])  # what a first time loads
print(json.dumps([measured(path) for path in sys.argv[3:]]))
"""


def measured(what, small, paths):
    """The result of reading each path, and how much memory grows meanwhile."""
    ended = run_python(MEASURED, what, str(small), *map(str, paths), OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.strip().splitlines()[-1])


def line_with(text: bytes, part: bytes, line: bytes) -> bytes:
    """A line of a mebibyte, with one part as large as fits."""
    room = 2**20 - len(line)
    return line.replace(text, text + part * (room // len(part)), 1)


LARGE_LOGS = {
    "findings": lambda line: line + b"\n",
    "findings_with_long_lists": lambda line: line_with(b'"shape":[', b"1,", line) + b"\n",
    "findings_with_long_stacks": lambda line: line_with(
        b'"stack":[', b'{"file":"","line":0,"function":"","installed":false},', line
    ) + b"\n",
    "empty_objects": lambda line: b'{"schema":1,"x":[' + b"{}," * (2**20 // 3 - 8) + b"0]}\n",
    "names": lambda line: b'{"schema":1,' + b",".join(b'"%x":0' % i for i in range(100_000)) + b"}\n",
    "nesting": lambda line: b'{"schema":' + b"[" * (2**20 - 20) + b"\n",
    "no_line_breaks": lambda line: b'{"schema":' + b"x" * 2**20,
}  # fmt: skip


@pytest.mark.breadth(0)
def test_a_log_takes_little_more_memory_than_it_has_bytes(log, tmp_path, figure):
    """Fails when findings are kept as objects: seen for lists and stacks."""
    (tmp_path / "small").write_bytes(log)
    paths = [tmp_path / kind for kind in LARGE_LOGS]
    for path in paths:
        piece = LARGE_LOGS[path.name](log.splitlines()[0])
        with open(path, "wb") as file:
            for _ in range(LARGE // len(piece)):
                file.write(piece)
    told = measured("log", tmp_path / "small", paths)
    for path, (found, grown) in zip(paths, told, strict=True):
        assert (found > 0) == path.name.startswith("findings"), path.name
        assert grown < MOST + path.stat().st_size, path.name
    most = max(grown for _, grown in told)
    figure(f"{len(paths)} hostile logs of {LARGE / 2**20:.0f} MiB take at most {most / 2**20:.0f} MiB of memory")


def tensors(shape: str, size: int) -> bytes:
    header = f'{{"x":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,{size}]}}}}'.encode()
    return b"batches.safetensors\n" + len(header).to_bytes(8, "little") + header


CLAIMS = {
    "header_of_2**63_bytes": b"batches.safetensors\n" + b"\xff" * 7 + b"\x7f{}",
    "header_of_99_megabytes": b"batches.safetensors\n" + (99_000_000).to_bytes(8, "little") + b"{}",
    "tensor_of_4_terabytes": tensors("1099511627776", 2**42),
    "shape_whose_product_overflows": tensors("4294967296,4294967296", 4),
    "view_of_2**124_elements": (capture_fuzz.CORPUS / "tensor_that_overflows.input").read_bytes(),
    "array_told_in_many_ways": (capture_fuzz.CORPUS / "array_told_twice.input").read_bytes(),
    "nesting_of_a_million": b"batches\n" + b"[" * 10**6,
    "number_of_a_million_digits": b"batches\n" + b"9" * 10**6,
    "file_of_2**62_bytes": b'contents.json\n{"format":1,"files":[{"name":"capture.json","bytes":%d,"crc32":0}]}'
    % (2**62),
}


def test_claims_of_a_capture_are_checked_before_memory_is_allocated(tmp_path, figure):
    """Fails when the document may describe an array in several ways: seen, as a capture that loads."""
    paths = [tmp_path / claim for claim in ("small", *CLAIMS)]
    for path in paths:
        path.mkdir()
        capture_fuzz.forge(path, CLAIMS.get(path.name, b""))
    told = measured("capture", paths[0], paths[1:])
    for (claim, data), (found, grown) in zip(CLAIMS.items(), told, strict=True):
        assert isinstance(found, str), f"{claim}: it is not a CaptureError"
        assert grown < MOST + len(data), claim
    most = max(grown for _, grown in told)
    figure(f"{len(told)} captures that claim terabytes and millions: refused in at most {most / 2**20:.0f} MiB")
