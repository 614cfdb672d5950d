"""torchnan writes and shows only what it promises, and only for the eyes of its owner.

A program full of canaries runs: they are in its tensors, its source, its arguments, its environment. Every file that it
leaves and everything that it prints is searched for them. The fields of every format are listed here.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import torchnan
from tests.guarantees.test_hostile_strings import strict_json
from tests.support.forked_python import run_forked
from tests.support.guarded_steps import Training, bad_batch, batch_of, step_of
from tests.support.processes import REPOSITORY, run
from torchnan.detection.containment import Failures
from torchnan.training.capture.reproducer import write_example
from torchnan.training.guard.reporter import RecoveryLog

pytestmark = pytest.mark.guarantee(19)

PROGRAM = """
import logging, os, sys, warnings
import torch, torchnan
from torch import nn
logging.basicConfig(stream=sys.stdout)
secret_of_the_source = "source-canary"  # source-canary
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([4.0, 1.2345678, 2.3456789, 5.0]))
        self.register_buffer("scale", torch.tensor([-9.0, 3.4567891, 9.0, 1.0]))
    def forward(self, x, note="argument-canary"):  # source-canary
        return ((x * self.weight).log() * self.scale)  # source-canary: log of negatives

x = torch.tensor([-8.0, 4.5678912, 5.6789123, 8.0])

def every_way_to_say_it():
    for when in ("harm", "origin"):
        with torchnan.detect(action="log", log="findings.jsonl", when=when) as watch:
            net = Net()
            net(x).sum().backward()
            print(watch.report(), watch.stats(), *watch.findings, *map(repr, watch.findings))
    with warnings.catch_warnings(record=True) as caught, torchnan.detect(action="warn"):
        warnings.simplefilter("always")
        Net()(x).sum().item()
    print(*(warning.message for warning in caught))
    try:
        with torchnan.detect():
            Net()(x).sum().item()
    except torchnan.NonFiniteError as error:
        print(error, repr(error))

def step(model, batch):
    return model(batch["x"]).sum()

def guarded(**options):
    net = Net()
    guard = torchnan.StepGuard(net, torch.optim.Adam(net.parameters()), step, log="recovery.jsonl", **options)
    good = {"x": x.abs()}
    try:
        for batch in (good, {"x": x}, good, {"x": x}):
            guard.step(batch)
    except torchnan.recovery.TrainingStopped as error:
        print(error, repr(error))
    print(*guard.events, *map(repr, guard.events))

every_way_to_say_it()
guarded()
guarded(snapshot_every=1, max_consecutive=1, norm_limit=1e6)
guarded(on_bad_step="raise", replay=False)
print("the end")
"""
CANARIES = [
    # elements that are neither the smallest nor the largest
    "1.2345678", "2.3456789", "3.4567891", "4.5678912", "5.6789123",
    "source-canary", "argument-canary", "argv-canary", "env-canary",
]  # fmt: skip


def digits(canary: str) -> str:
    """A number is shown with all its digits, so any five of them in a row reveal it."""
    return canary[:6] if canary[0].isdigit() else canary


def test_nothing_of_the_program_but_names_and_ranges(tmp_path, figure):
    """Fails when an argument of an operation, a source line or a value is shown: put linecache.getline() into
    _lines."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    work = tmp_path / "work"
    work.mkdir()
    ended = run([sys.executable, str(script), "argv-canary"], cwd=work, SECRET="env-canary", TORCHNAN_LOG="env.jsonl")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("the end\n")
    assert "argv-canary" not in os.environ.values()
    said = {"stdout": ended.stdout, "stderr": ended.stderr}
    files = {str(path.relative_to(work)): path.read_text() for path in work.rglob("*") if path.is_file()}
    assert {"findings.jsonl", "recovery.jsonl"} <= files.keys()
    assert "min -" in ended.stdout  # ranges are shown
    for name, text in {**said, **files}.items():
        for canary in CANARIES:
            assert digits(canary) not in text, f"{canary} in {name}"
    figure(f"{len(CANARIES)} canaries, none in {sum(map(len, [*said.values(), *files.values()])):,} characters told")


# -- the fields of every format: a new one is noticed here first

FRAME = {"file", "line", "function", "installed"}
FINDING = {
    "schema", "level", "kind", "origin", "phase", "op", "overload", "output", "node", "module", "module_type", "name",
    "constant",
    "collective", "stack", "backward_stack", "step",
    "rank", "thread", "process", "item", "device", "dtype", "shape", "strides", "nan", "posinf", "neginf",
    "first_index", "inputs",
    "compiled", "lineage", "lineage_omitted", "harm", "hint", "others", "others_omitted", "repeats",
}  # fmt: skip
INPUT = {
    "name", "dtype", "shape", "min", "max", "absmax", "nan", "posinf", "neginf", "overwritten", "constant",
}  # fmt: skip
STEP = {
    "schema", "step", "what", "seen", "rank", "micro_batch", "host", "device", "cause", "verdict", "same_bits", "bits",
    "finding", "origin", "losses", "norm", "model_note", "action", "reason", "capture", "snapshot", "lr_factor", "lr",
    "consecutive", "notes", "remedies", "finite_in_eager", "finite_in_float32", "good_step", "good_loss",
}  # fmt: skip
LINES = {
    "step": {"time", "kind", *STEP},
    "snapshot": {"time", "kind", "step", "kept"},
    "no_snapshot": {"time", "kind", "step", "reason"},
    "learning_rate": {"time", "kind", "step", "lr_factor", "reason"},
}
CAPTURE = {
    "format", "event", "report", "rank", "ranks", "model", "in_eval", "frozen", "stepped", "scale", "not_held",
    "policy", "versions", "host", "shared",
    "weights", "buffers", "batches", "random", "batch_random", "operation",
}  # fmt: skip
VERSIONS = {"torchnan", "torch", "python", "numpy", "cuda", "machine"}


def check_finding(line: dict) -> None:
    assert line.keys() == FINDING
    assert line["schema"] == 1
    assert all(frame.keys() == FRAME for frame in line["stack"])
    assert all(one.keys() == INPUT for one in line["inputs"])
    assert all(step.keys() == {"op", "file", "line"} for step in line["lineage"])
    assert line["harm"].keys() == {"kind", "name", "file", "line", "applied", "step"}


def check_step(line: dict) -> None:
    assert line.keys() == STEP
    assert line["schema"] == 1
    if line["finding"] is not None:
        check_finding(line["finding"])


def recovered(folder: Path):
    """A training that is rolled back, with every kind of line in a recovery log."""
    training = Training(
        captures=folder / "captures", log=folder / "recovery.jsonl", snapshot_every=1, snapshot_folder=folder / "kept",
        max_consecutive=1, lr_ramp=2,
    )  # fmt: skip
    for batch in (batch_of(0), bad_batch(1), bad_batch(2), batch_of(3), batch_of(4), batch_of(5)):
        training.guard.step(batch)
    (folder / "kept").rename(folder / "moved")
    (folder / "kept").write_text("a file")
    training.guard.step(batch_of(6))
    (folder / "kept").unlink()
    (folder / "moved").rename(folder / "kept")
    return training


def test_the_fields_of_every_format(tmp_path, figure):
    training = recovered(tmp_path)
    kinds = {}
    for line in (tmp_path / "recovery.jsonl").read_text().splitlines():
        document = strict_json(line)
        kinds.setdefault(document["kind"], document)
        assert document.keys() == LINES[document["kind"]], document["kind"]
    assert kinds.keys() == LINES.keys()
    for event in training.guard.events:
        check_step(strict_json(event.to_json()))
    with torchnan.detect(action="log", log=tmp_path / "findings.jsonl"):
        (torch.ones(2).neg().log() + 1).exp().sum().item()
    for line in (tmp_path / "findings.jsonl").read_text().splitlines():
        check_finding(strict_json(line))
    capture = Path(training.guard.events[0].capture)
    about = strict_json((capture / "capture.json").read_text())
    assert about.keys() == CAPTURE
    assert about["versions"].keys() == VERSIONS
    assert {path.name for path in capture.iterdir()} == {
        "capture.json", "contents.json",
        *(f"{part}.safetensors" for part in ("weights", "buffers", "batches", "random", "batch_random", "operation")),
    }  # fmt: skip
    assert strict_json((capture / "contents.json").read_text()).keys() == {"format", "files"}
    fields = len(FINDING | INPUT | FRAME | STEP) + len(CAPTURE | VERSIONS)
    figure(f"{fields} fields in findings, steps, {len(LINES)} kinds of lines and captures, each in a list")


# -- files


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask 000", "umask 022", "umask 077"])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.breadth(1)
def test_files_are_their_owners_alone(tmp_path, umask, figure):
    """Also the folders that had to be created, including parents. Fails when a mode is left out."""
    where = tmp_path / "made" / "for" / "it"
    training = recovered(where)
    with torchnan.detect(action="log", log=where / "findings.jsonl"):
        torch.log(torch.tensor(-1.0)).item()
        if os.fork() == 0:
            torch.log(torch.tensor(-2.0)).item()
            os._exit(0)
        os.wait()
    write_example(torchnan.load_capture(training.guard.events[0].capture), where / "a" / "b" / "example")
    made = [path for path in tmp_path.rglob("*") if path != tmp_path]
    assert len(list(where.glob("findings.jsonl*"))) == 2
    for path in made:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, f"{path} {oct(path.stat().st_mode)}"
    assert len(made) > 30
    figure(f"umask {umask:03o}: {len(made)} files and folders, 0600 and 0700")


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("mine")
    yield path
    assert path.read_text() == "mine"


def test_logs_are_never_written_through_a_link(tmp_path, victim):
    """Fails without O_NOFOLLOW."""
    for target in (victim, tmp_path / "not there"):
        link = tmp_path / f"link to {target.name}"
        link.symlink_to(target)
        with pytest.raises(OSError, match=r"cannot be opened .give a path that is not a link"):
            torchnan.detect(log=link)
        with pytest.raises(OSError, match=r"cannot be opened .give a path that is not a link"):
            RecoveryLog(link, Failures())
    assert not (tmp_path / "not there").exists()


def test_a_forked_childs_log_neither(tmp_path, victim):
    """Guessing the number of the process leads to a reported error, and nothing is written."""
    code = f"""
import os, torch, torchnan, warnings
with torchnan.detect(action="log", log={str(tmp_path / "log")!r}) as watch:
    if os.fork() == 0:
        os.symlink({str(victim)!r}, {str(tmp_path / "log")!r} + f".{{os.getpid()}}")
        torch.log(torch.tensor(-1.0)).item()
        print(watch.stats()["internal_errors"], flush=True)
        os._exit(0)
    os.wait()
"""
    ended = run_forked(code)
    assert ended.stdout.strip() == "1"
    assert "give a path that is not a link" in ended.stderr


def test_captures_and_snapshots_neither(tmp_path, victim):
    folder = tmp_path / "captures"
    folder.mkdir()
    (folder / "rank-0-step-00000001").symlink_to(tmp_path / "elsewhere")
    training = Training(captures=folder)
    event = training.guard.step(bad_batch()).event
    assert event.capture is None
    assert "it exists already" in "".join(event.notes)
    assert not (tmp_path / "elsewhere").exists()


def test_an_example_replaces_links_and_is_not_written_into_one(tmp_path, victim):
    """A capture may come from anybody, with links in it. Fails when the files are opened by name."""
    capture = torchnan.load_capture(Training(captures=tmp_path / "captures").guard.step(bad_batch()).event.capture)
    where = tmp_path / "example"
    where.mkdir()
    for name in ("operation.py", "tensors.safetensors"):
        (where / name).symlink_to(victim)
    write_example(capture, where)
    assert {path.name for path in where.iterdir() if not path.is_symlink()} == {"operation.py", "tensors.safetensors"}
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(FileExistsError, match="is a link: give another folder"):
        write_example(capture, link)


def test_a_log_that_is_there_is_appended_to_and_keeps_its_rights(tmp_path):
    """The owner may have opened it to others on purpose."""
    path = tmp_path / "log"
    path.write_text("before\n")
    path.chmod(0o640)
    with torchnan.detect(action="log", log=path):
        torch.log(torch.tensor(-1.0)).item()
    RecoveryLog(path, Failures()).record("snapshot", step=1)
    assert path.read_text().startswith("before\n{")
    assert len(path.read_text().splitlines()) == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


# -- reports

RENDER = """
import json, os, sys, torch, torchnan
from tests.support.hostile_programs import renamed
from tests.support.captured_output import printed
from torchnan import cli
canary, folder = sys.argv[1:]
opened = []

def made(x):
    return x.log()

class Net(torch.nn.Module):
    forward = renamed(lambda self, x: made(x), canary)

made = renamed(made, canary)

def step(model, batch):
    return model(batch).sum() * model.weight

def build():
    net = Net()
    net.weight = torch.nn.Parameter(torch.ones(()))
    return net

if __name__ == "__main__":
    model = build()
    with torchnan.detect(action="log") as watch:
        kept = model(torch.tensor([-1.0]))
        torchnan.guard(kept, canary)
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), step, captures=folder)
    guard.step(torch.tensor([-1.0]))
    sys.addaudithook(lambda name, args: opened.append(str(args[0])) if name in ("open", "os.open") else None)
    told = watch.report() + "".join(str(f) + repr(f) + f.to_json() for f in watch.findings)
    told += "".join(str(e) + repr(e) + e.to_json() for e in guard.events)
    capture = guard.events[0].capture
    told += str(torchnan.load_capture(capture))
    told += "".join(printed(
        lambda: cli.main(["extract", capture, "--out", folder + "/out"]),
        lambda: cli.main(["replay", capture, "--step", "__main__:step", "--model", "__main__:build"]),
    ))
    assert canary in told
    print(json.dumps(opened))
"""


def test_a_report_opens_no_path_that_it_names(tmp_path, figure):
    """Fails when a report shows source lines: put linecache.getlines(f.file) into Finding.__str__."""
    canary = tmp_path / "canary.py"
    canary.write_text("source-canary\n" * 100)
    script = tmp_path / "render.py"
    script.write_text(RENDER)
    path = os.pathsep.join([str(REPOSITORY), *sys.path])
    ended = run([sys.executable, str(script), str(canary), str(tmp_path / "captures")], PYTHONPATH=path)
    assert ended.returncode == 0, ended.stderr
    opened = json.loads(ended.stdout)
    assert any(name.endswith("capture.json") for name in opened)  # proves that the hook works
    assert str(canary) not in opened
    assert "source-canary" not in ended.stdout + ended.stderr
    figure(f"reports, replay and extract: {len(opened)} files opened, none that a finding names")


def test_the_core_opens_one_kind_of_file():
    """Audit hooks do not see files opened by C++. Among the headers that can open a file, one source includes one. The
    others allocate memory without a file, or find the folder of the program."""
    opens = re.compile(r"#include <(fcntl\.h|fstream|cstdio|stdio\.h|sys/mman\.h|dlfcn\.h|filesystem)>")
    sources = [path for kind in ("*.cpp", "*.h") for path in (REPOSITORY / "csrc").rglob(kind)]
    found = {(path.name, header) for path in sources for header in opens.findall(path.read_text())}
    others = {(name, "sys/mman.h") for name in ("call_site_ring.cpp", "own_memory.cpp")}
    others |= {("json_lines_sink.cpp", "filesystem")}
    others |= {("load_cuda.cpp", "filesystem"), ("load_cuda.cpp", "dlfcn.h")}  # torchnan's own library, beside it
    assert found == {("append_only_file.cpp", "fcntl.h"), *others}


def test_step_values_are_those_that_are_documented():
    """A report of a bad step shows losses, norms and the host, but no batch and no weight."""
    training = Training(norm_limit=1e-6)
    x, y = batch_of(0)
    event = training.guard.step((x, y)).event
    assert event.losses == (pytest.approx(step_of(training.model.train(), (x, y)).item(), rel=1.0),)
    assert event.host
    line = json.loads(event.to_json())
    assert {name for name, value in line.items() if isinstance(value, float)} <= {"norm", "lr_factor"}
    assert isinstance(nn.Linear(1, 1), nn.Module)
