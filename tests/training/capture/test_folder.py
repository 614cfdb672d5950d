"""A folder appears whole or not at all, whatever happens to the process or the disk; damage to it is found."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys

import pytest
import torch

from tests.support.forked_python import run_forked
from tests.support.privileges import permissions_enforced
from tests.support.processes import run, run_python
from torchnan.capture import CaptureError
from torchnan.training.storage import atomic_folder, folder_reader
from torchnan.training.storage.codec import decode, encode

VALUE = {
    "x": torch.arange(12.0).reshape(3, 4).t(),
    "lr": 0.1,
    "names": ("a", None),
    "w": torch.nn.Parameter(torch.ones(5)),
}


def written(target):
    document, tensors = encode(VALUE, name="batch")
    size = atomic_folder.write(
        target, {"capture": {"format": 1, "batch": document}, "more": [1, 2]}, {"batch": tensors, "none": {}}
    )
    return size, {"capture": {"format": 1, "batch": document}, "more": [1, 2]}, {"batch": tensors, "none": {}}


def same_tensors(a, b):
    if a.keys() != b.keys():
        return False
    return all(
        a[stem].keys() == b[stem].keys() and all(torch.equal(a[stem][k], b[stem][k]) for k in a[stem]) for stem in a
    )


def modes(target):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in [target, *target.iterdir()]}


def test_written_folders_are_read_back(tmp_path):
    size, documents, tensors = written(tmp_path / "step-1")
    back, back_tensors = folder_reader.read(tmp_path / "step-1")
    assert back == documents
    assert same_tensors(back_tensors, tensors)
    assert decode(back["capture"]["batch"], back_tensors["batch"])["lr"] == 0.1
    assert size == sum(path.stat().st_size for path in (tmp_path / "step-1").iterdir())
    assert os.listdir(tmp_path) == ["step-1"]


def test_its_owner_alone_can_read_it(tmp_path, monkeypatch):
    import safetensors.torch

    def save_file(tensors, path):  # as older versions do, which leave it to the umask
        path.write_bytes(safetensors.torch.save(tensors))

    monkeypatch.setattr(safetensors.torch, "save_file", save_file)
    before = os.umask(0)
    try:
        written(tmp_path / "step-1")
    finally:
        os.umask(before)
    expected = dict.fromkeys(
        ["batch.safetensors", "none.safetensors", "capture.json", "more.json", "contents.json"], 0o600
    )
    assert modes(tmp_path / "step-1") == {"step-1": 0o700, **expected}


def test_it_is_on_disk_before_it_gets_its_name_and_the_name_is_synced(tmp_path, monkeypatch):
    events = []
    sync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda fd: events.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))) or sync(fd)
    )
    monkeypatch.setattr(os, "rename", lambda a, b: events.append("rename") or rename(a, b))
    written(tmp_path / "step-1")
    files = ["batch.safetensors", "none.safetensors", "capture.json", "more.json", "contents.json"]
    assert events == [*files, f".step-1.partial-{os.getpid()}", "rename", tmp_path.name]


# -- what cannot be written


def test_a_folder_that_exists_is_left_alone(tmp_path):
    (tmp_path / "step-1").mkdir()
    with pytest.raises(FileExistsError, match=r"step-1 cannot be written: it exists already \(\d+ bytes are needed\)"):
        written(tmp_path / "step-1")
    assert os.listdir(tmp_path) == ["step-1"]
    assert os.listdir(tmp_path / "step-1") == []


def test_a_parent_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"step-1 cannot be written: No such file or directory \(\d+ bytes"):
        written(tmp_path / "none" / "step-1")


@pytest.mark.parametrize("stem", ["", ".hidden", "a/b", "../a", "contents", "a b", "ü", "a\n"])
def test_a_stem_that_is_not_a_file_name_is_rejected(tmp_path, stem):
    with pytest.raises(ValueError, match="cannot be a file name"):
        atomic_folder.write(tmp_path / "x", {stem: 1}, {})
    with pytest.raises(ValueError, match="cannot be a file name"):
        atomic_folder.write(tmp_path / "x", {}, {stem: {}})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("document", [float("nan"), [float("inf")], {"a": object()}])
def test_documents_that_are_not_strict_json_are_rejected(tmp_path, document):
    with pytest.raises((ValueError, TypeError), match=r"not JSON compliant|not JSON serializable"):
        atomic_folder.write(tmp_path / "x", {"a": document}, {})
    assert os.listdir(tmp_path) == []


def test_a_document_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_folder, "MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(CaptureError, match=r"a\.json would have 102 bytes, and at most 100 can be read again"):
        atomic_folder.write(tmp_path / "x", {"a": "x" * 100}, {})
    assert os.listdir(tmp_path) == []


def test_a_disk_with_too_little_room_is_not_written_to(tmp_path, monkeypatch):
    full = os.statvfs(tmp_path)
    few = os.statvfs_result([*full[:4], 3, *full[5:]])
    monkeypatch.setattr(os, "statvfs", lambda path: few)
    monkeypatch.setattr(os, "mkdir", lambda *given: pytest.fail("it began to write"))
    tensors = {"a": {"x": torch.zeros(100_000)}}
    with pytest.raises(
        OSError, match=rf"the disk has {3 * full.f_frsize} bytes free \(4\d\d\d\d\d bytes are needed\)"
    ) as raised:
        atomic_folder.write(tmp_path / "x", {}, tensors)
    assert raised.value.errno == 28


FULL = """
import errno, os, resource, sys
from pathlib import Path
import torch
from torchnan.training.storage import atomic_folder
atomic_folder._check_free_space = lambda parent, needed: None  # as if another process had taken the room since
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
for documents, tensors in (({}, {"a": {"x": torch.zeros(100_000)}}), ({"a": "x" * 400_000}, {})):
    try:
        atomic_folder.write(Path(sys.argv[1]) / "step-1", documents, tensors)
        print("written")
    except OSError as error:
        text = str(error)
        print(errno.errorcode[error.errno], "step-1 cannot be written: " in text, "bytes are needed)" in text)
print(os.listdir(sys.argv[1]))
"""


@pytest.fixture
def small_disk(tmp_path):
    """64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting needs root")
    if run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]).returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield place
    assert run(["umount", str(place)]).returncode == 0


def test_a_disk_that_fills_while_it_is_written_to_keeps_nothing(small_disk):
    done = run_python(FULL, str(small_disk), "disk")
    assert done.stdout.splitlines() == ["ENOSPC True True", "ENOSPC True True", "[]"], done.stderr


def test_a_file_that_may_not_grow_is_an_error_and_keeps_nothing(tmp_path):
    done = run_python(FULL, str(tmp_path), "limit")
    assert done.stdout.splitlines() == ["EFBIG True True", "EFBIG True True", "[]"], done.stderr


def test_a_folder_that_may_not_be_written_to_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    refused = r"step-1 cannot be written: Permission denied \(\d+ bytes are needed\)"
    with permissions_enforced(), pytest.raises(PermissionError, match=refused):
        written(tmp_path / "step-1")


def test_an_interruption_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "rename", lambda a, b: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path / "step-1")
    assert os.listdir(tmp_path) == []


# -- processes that are killed

KILLED = """
import json, os, signal, sys
from pathlib import Path
import safetensors.torch, torch
from torchnan.training.storage import atomic_folder, folder_reader
place, verb = Path(sys.argv[1]), sys.argv[2]
target = place / "step-1"
documents, tensors = {"capture": {"format": 1}}, {"batch": {"x": torch.arange(1000.0)}}

def write():
    atomic_folder.write(target, documents, tensors)

def killed_at(line):
    # Lines of the folder's own code are counted; at the given one the process is gone.
    seen = 0
    def trace(frame, event, argument):
        nonlocal seen
        if frame.f_code.co_filename not in (atomic_folder.__file__, folder_reader.__file__):
            return None
        seen += event == "line"
        if seen == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)

count = {"killed": 0, "whole": 0, "absent": 0, "partial": 0}
while True:
    if verb == "remove" and not target.exists():
        write()
    child = os.fork()
    if child == 0:
        killed_at(count["killed"] + 1)
        atomic_folder.remove(target) if verb == "remove" else write()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.path.lexists(target):
        count["whole"] += 1
        read, read_tensors = folder_reader.read(target)
        assert read == documents and torch.equal(read_tensors["batch"]["x"], tensors["batch"]["x"])
    else:
        count["absent"] += 1
    left = [name for name in os.listdir(place) if name != "step-1"]
    assert set(left) <= {f".step-1.partial-{child}"}, left
    count["partial"] += len(left)
    atomic_folder.remove_partial(place, "step-")
    assert set(os.listdir(place)) <= {"step-1"}
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    count["killed"] += 1
    if verb == "write" and target.exists():
        atomic_folder.remove(target)
print(json.dumps(count))
"""


@pytest.mark.parametrize("verb", ["write", "remove"])
def test_killed_at_any_line_it_is_whole_or_absent(tmp_path, verb):
    done = run_forked(KILLED, str(tmp_path), verb)
    assert done.returncode == 0, done.stderr
    count = json.loads(done.stdout)
    least = {"write": 60, "remove": 4}[verb]
    assert count["killed"] >= least
    assert count["whole"] >= 2  # by the last run, and by some that were killed after the renaming, or before
    assert count["absent"] >= 1
    assert count["partial"] >= 1


def test_only_partial_folders_of_dead_processes_are_removed(tmp_path):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    gone = [f".step-1.partial-{child}", f".step-2.partial-{os.getpid()}", f".step-3\n.partial-{child}"]
    stays = [f".other.partial-{child}", f".step-1.partial-{os.getppid()}", ".step-1.partial-x", "step-1"]
    for name in [*gone, *stays]:
        (tmp_path / name / "inner").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / f".step-4.partial-{child}").symlink_to(outside)
    (tmp_path / f".step-5.partial-{child}").write_text("a file")
    atomic_folder.remove_partial(tmp_path, "step-")
    expected = [*stays, "outside", f".step-4.partial-{child}", f".step-5.partial-{child}"]
    assert sorted(os.listdir(tmp_path)) == sorted(expected)
    atomic_folder.remove_partial(tmp_path / "nowhere", "step-")


def test_leftovers_of_a_process_with_the_same_number_are_replaced(tmp_path):
    left = tmp_path / f".step-1.partial-{os.getpid()}"
    left.mkdir()
    (left / "capture.json").write_text("half")
    _, documents, _ = written(tmp_path / "step-1")
    assert folder_reader.read(tmp_path / "step-1")[0] == documents
    assert os.listdir(tmp_path) == ["step-1"]


def test_without_safetensors_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    for use in (lambda: atomic_folder.write(tmp_path / "x", {}, {}), lambda: folder_reader.read(tmp_path)):
        with pytest.raises(CaptureError, match="captures need safetensors: pip install safetensors"):
            use()
