"""Files are data: nothing in a log, a capture or a configuration is ever executed, or imported because it is named."""

from __future__ import annotations

import ast
import io
import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from tests.guarantees.fuzz import capture as capture_fuzz
from tests.support.processes import REPOSITORY, run, run_python
from torchnan import findings
from torchnan.capture import CaptureError, load_capture
from torchnan.training.capture.reproducer import write_example

pytestmark = pytest.mark.guarantee(18)

# -- the sources

PACKAGE = REPOSITORY / "torchnan"
MODULES = {
    *("pickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "subprocess", "runpy", "code"),
    *("codeop", "ctypes", "cffi", "pty", "imp", "zipimport", "builtins"),
}
NAMES = {"eval", "exec", "compile", "__import__", "__builtins__"}
ATTRIBUTES = {
    *("os.system", "os.popen", "os.posix_spawn", "os.posix_spawnp", "os.startfile", "torch.load", "torch.jit.load"),
    *("torch.hub", "torch.package", "torch.serialization", "torch.ops.load_library", "torch.classes.load_library"),
    *("numpy.load", "np.load", "importlib.import_module", "importlib.reload", "importlib.machinery"),
    *(f"os.{kind}{how}" for kind in ("exec", "spawn") for how in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
}
ALLOWED = {
    ("_load.py", "ctypes"),  # asks Python itself for the number of its interpreter
    ("training/monitor/batch_digest.py", "ctypes"),  # reads the bytes of a private copy
    ("detection/compiled/graph.py", "ctypes"),  # fills memory that a replay has just allocated
    ("detection/compiled/received.py", "ctypes"),  # likewise, with what a collective has brought
    ("__init__.py", "importlib.import_module"),  # modules from a fixed table
    ("detection/compiled/torch_internals.py", "importlib.import_module"),  # PyTorch's modules, from a table
    ("cli/replay.py", "importlib.import_module"),  # modules named on the command line
    ("cli/run.py", "os.execve"),  # becomes the program named on the command line
}


def dangers(source: str) -> list[str]:
    """Parts of the source that could execute text, or unpickle."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name for name in names if name in ATTRIBUTES or name.split(".")[0] in MODULES]
        elif isinstance(node, ast.Name) and node.id in NAMES:
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ATTRIBUTES:
            found.append(ast.unparse(node))
    return found


def test_the_package_cannot_run_code_from_files(figure):
    """Fails when one is added: each of those in the next test is one."""
    sources = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.parent.glob("torchnan_*.py")])
    found = {(os.path.relpath(path, PACKAGE), danger) for path in sources for danger in dangers(path.read_text())}
    assert found == ALLOWED
    figure(f"{len(sources)} files: no pickle, no code from text, no torch.load")


@pytest.mark.parametrize(
    "source",
    [
        "import dill as data",
        "from pickle import loads",
        "from marshal import loads",
        "import yaml",
        "x = eval",
        "run = exec",
        "code = compile(text, '', 'exec')",
        "__import__(name)",
        "torch.load(path, weights_only=True)",
        "from torch import load",
        "os.system(command)",
        "from subprocess import run",
        "from importlib import import_module",
        "os.execvp(name, arguments)",
        "torch.ops.load_library(path)",
    ],
)
def test_code_that_runs_file_contents_is_noticed(source):
    assert dangers(source)
    assert not dangers("import re, json\nre.compile(text)\njson.load(file)\nsafetensors.torch.load_file(path)")


# -- hostile files

CANARY = "canary"
PICKLE = f"cos\nsystem\n(S'touch {CANARY}'\ntR.".encode()  # runs a shell when it is loaded


def zipped() -> bytes:
    """As written by torch.save()."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", PICKLE)
    return made.getvalue()


def linked(folder: Path, name: str) -> None:
    (folder / name).rename(folder.parent / name)
    (folder / name).symlink_to(folder.parent / name)


def piped(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


def batch(node: object) -> bytes:
    return b"batches\n" + json.dumps({"value": [node], "tensors": [], "memory": []}).encode()


def class_named(kind: str, module: str, qualname: str) -> bytes:
    named = {"class": {"module": module, "qualname": qualname}, "fields": [], "items": [], "values": ["touch canary"]}
    return batch({kind: named})


HUGE = b'{"x":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
CLIMBING = b'{"format":1,"files":[{"name":"../x.json","bytes":1,"crc32":0}]}'
PARTS = {
    "contents_that_are_a_pickle": (b"contents.json\n" + PICKLE, "contents.json is damaged: it is not JSON"),
    "document_that_is_a_pickle": (b"capture.json\n" + PICKLE, "capture.json is damaged: it is not JSON"),
    "tensors_that_are_a_pickle": (b"batches.safetensors\n" + PICKLE, "batches.safetensors is damaged"),
    "tensors_that_are_a_zip": (b"batches.safetensors\n" + zipped(), "batches.safetensors is damaged"),
    "tensors_that_are_huge": (b"batches.safetensors\n" + len(HUGE).to_bytes(8, "little") + HUGE, "is damaged"),
    "path_that_climbs": (b"contents.json\n" + CLIMBING, "must be the name of a separate file"),
    "name_twice": (b'batches\n{"value":[],"value":[],"tensors":[],"memory":[]}', "an object has the same name twice"),
    "constant_of_python": (b'batches\n{"value":[NaN],"tensors":[],"memory":[]}', "NaN is not a number"),
    "node_that_is_a_pickle": (batch({"pickle": PICKLE.decode()}), "must be a value, a list, or an object with one of"),
    "class_that_is_a_command": (class_named("namedtuple", "os", "system"), "no such class is known here"),
    "class_that_is_code": (class_named("userdict", "builtins", "eval"), "no such class is known here"),
    "class_that_would_be_imported": (class_named("dataclass", "antigravity", "fly"), "no such class is known here"),
}  # fmt: skip
FOLDERS = {
    "document_that_is_a_link": (lambda folder: linked(folder, "capture.json"), "a link, and torchnan writes none"),
    "tensors_that_are_a_link": (lambda folder: linked(folder, "batches.safetensors"), "it is a link"),
    "contents_that_are_a_pipe": (lambda folder: piped(folder, "contents.json"), "is not a file"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "capture").mkdir()
    yield tmp_path / "capture"
    assert not (tmp_path / CANARY).exists()


@pytest.mark.parametrize("case", PARTS)
def test_a_hostile_part_of_a_capture_is_refused(case, folder):
    data, message = PARTS[case]
    capture_fuzz.forge(folder, data)
    with pytest.raises(CaptureError) as raised:
        load_capture(folder)
    assert message in str(raised.value)


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_that_leads_elsewhere_is_refused(case, folder):
    """Fails when links are followed: seen without O_NOFOLLOW."""
    spoil, message = FOLDERS[case]
    capture_fuzz.forge(folder, b"")
    load_capture(folder)
    spoil(folder)
    with pytest.raises(CaptureError) as raised:
        load_capture(folder)
    assert message in str(raised.value)


def test_a_device_is_not_a_capture():
    with pytest.raises(CaptureError, match="/dev/zero cannot be read: it is a file, and not a folder"):
        load_capture("/dev/zero")


def test_a_log_that_is_a_pickle_has_no_findings(folder):
    (folder / "log").write_bytes(PICKLE + b"\n" + zipped())
    assert len(findings.read(folder / "log").findings) == 0


def test_the_canary_sings(tmp_path):
    """The contents of these files would run if they were unpickled."""
    (tmp_path / "x").write_bytes(PICKLE)
    run([sys.executable, "-m", "pickle", "x"], cwd=tmp_path)
    assert (tmp_path / CANARY).exists()


# -- text written from a capture

EXTRACTED = ["operation", "origin_of_code", "versions_of_code"]
REFUSED = [
    *("operation_of_code", "overload_of_code", "argument_of_code", "argument_that_is_a_keyword"),
    *("operation_that_loads_a_library", "operation_that_imports", "operation_of_privates", "operation_without_a_name"),
    *("argument_that_is_huge", "arguments_of_all_sorts", "text_of_code"),
]


def corpus(name):
    return (capture_fuzz.CORPUS / f"{name}.input").read_bytes()


def with_operation(part: bytes) -> bytes:
    """A whole capture with one part replaced, operation included."""
    name, _, text = part.decode().partition("\n")
    about = json.loads(capture_fuzz.whole()["capture.json"])
    return b"capture.json\n" + json.dumps({**about, name: json.loads(text)}).encode()


@pytest.mark.parametrize("name", EXTRACTED)
def test_an_extract_is_one_operation_for_any_names(name, folder):
    """Fails when a text is pasted as it is: seen with the version of PyTorch in the title."""
    capture_fuzz.forge(folder, with_operation(corpus(name)))
    program = write_example(load_capture(folder), folder / "extract")
    capture_fuzz.want_harmless(program.read_text())
    run([sys.executable, str(program)], cwd=folder.parent)  # the fixture checks for the canary


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_operation_is_not_extracted(name, folder):
    capture_fuzz.forge(folder, corpus(name))
    with pytest.raises(CaptureError, match=r"hold only operators of PyTorch|more elements"):
        write_example(load_capture(folder), folder / "extract")
    assert not (folder / "extract").exists()


def test_an_extract_is_not_written_through_a_link(folder):
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    capture_fuzz.forge(folder, b"")
    (folder / "extract").symlink_to(elsewhere)
    with pytest.raises(FileExistsError, match="extract is a link: give another folder"):
        write_example(load_capture(folder), folder / "extract")
    (folder / "extract").unlink()
    (folder / "extract").mkdir()
    (folder / "extract" / "operation.py").symlink_to(elsewhere / "operation.py")
    (folder / "extract" / "tensors.safetensors").symlink_to(elsewhere / "tensors.safetensors")
    write_example(load_capture(folder), folder / "extract")
    assert list(elsewhere.iterdir()) == []


# -- as seen by Python itself

AUDITED = """
import sys, tempfile, warnings
from itertools import count
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.guarantees.fuzz import capture, log_file, settings
from torchnan import findings
from torchnan.capture import CaptureError, load_capture
from torchnan.training.capture.reproducer import write_example

place = tempfile.gettempdir()
events = []
RUNNING = ("import", "exec", "compile", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen",
           "pickle.find_class", "marshal.loads", "ctypes.dlopen", "socket.connect", "socket.bind", "code.__new__")

def look(event, arguments):
    opens_elsewhere = event == "open" and not str(arguments[0]).startswith(place) and not isinstance(arguments[0], int)
    if watching and (event in RUNNING or opens_elsewhere):
        events.append((event, str(arguments)[:200]))

def load(data):
    folder = Path(root.name, str(next(numbers)))
    folder.mkdir()
    (folder / "log").write_bytes(data)
    list(findings.read(folder / "log").findings)
    settings.one(data)
    capture.forge(folder, data)
    try:
        write_example(load_capture(folder), folder / "extract")
    except CaptureError:
        pass

warnings.simplefilter("ignore")  # PyTorch warns of some dtypes, and Python opens the source to show the line
root, numbers = tempfile.TemporaryDirectory(), count()
inputs = [path.read_bytes() for path in sorted(capture.CORPUS.parent.glob("*/*"))]
watching = False
sys.addaudithook(look)
for seed in [*capture.seeds(), *log_file.seeds(), *settings.seeds(), b"event\\n{}", b"action = 3"]:
    load(seed)  # what a first time imports
watching = True
for data in inputs:
    load(data)
watching = False
print(len(inputs), events)
"""


def test_nothing_is_run_imported_or_opened_for_the_sake_of_an_input(figure):
    """Checked through Python's audit events. Fails when a class is imported to be found: seen."""
    ended = run_python(AUDITED, str(REPOSITORY))
    assert ended.returncode == 0, ended.stderr
    count, events = ended.stdout.strip().splitlines()[-1].split(maxsplit=1)
    assert events == "[]"
    figure(f"{count} hostile inputs through every reader: nothing run, imported, or opened outside of their folder")
