"""A folder that is missing, truncated, damaged or forged is an error that names the file, soon and in little memory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import zlib

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.privileges import permissions_enforced
from torchnan.capture import CaptureError
from torchnan.training.storage import atomic_folder, folder_reader
from torchnan.training.storage.codec import decode, encode

DOCUMENT, TENSORS = encode(
    {"x": torch.arange(12.0).t(), "y": [torch.ones(3, dtype=torch.int64), 0.5, "text"]}, name="batch"
)
DOCUMENTS = {"capture": {"format": 1, "batch": DOCUMENT}, "other": {"format": 1, "batch": 3}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    target = tmp_path_factory.mktemp("captures") / "step-1"
    atomic_folder.write(target, DOCUMENTS, {"batch": TENSORS})
    return target


@pytest.fixture
def target(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "step-1")


def sealed(target):
    """Corrects the sizes and checksums of the contents, as a forger would."""
    path = target / "contents.json"
    contents = json.loads(path.read_text())
    for file in contents["files"]:
        data = (target / file["name"]).read_bytes()
        file.update(bytes=len(data), crc32=zlib.crc32(data))
    path.write_text(json.dumps(contents))


def is_what_was_written(read):
    documents, tensors = read
    same = tensors.keys() == {"batch"} and tensors["batch"].keys() == TENSORS.keys()
    return documents == DOCUMENTS and same and all(torch.equal(tensors["batch"][key], TENSORS[key]) for key in TENSORS)


FILES = ["capture.json", "other.json", "batch.safetensors", "contents.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_is_named(target, name):
    (target / name).unlink()
    with pytest.raises(CaptureError, match=rf"step-1/{name} is missing: the folder is incomplete\."):
        folder_reader.read(target)


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(CaptureError, match=r"step-9 cannot be read: there is no such folder\."):
        folder_reader.read(tmp_path / "step-9")


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "findings.jsonl").touch()
    with pytest.raises(CaptureError, match=r"findings\.jsonl cannot be read: it is a file, and not a folder\."):
        folder_reader.read(tmp_path / "findings.jsonl")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0, 0.5, 0.999])
def test_a_file_that_was_cut_is_named(target, name, share):
    size = (target / name).stat().st_size
    os.truncate(target / name, int(size * share))
    with pytest.raises(CaptureError, match=rf"step-1/{name} (has \d+ bytes and had {size} when|is damaged)"):
        folder_reader.read(target)


DAMAGE = st.tuples(
    st.sampled_from(FILES),
    st.floats(0, 1, exclude_max=True),
    st.lists(st.integers(1, 255), min_size=1, max_size=4),
    st.sampled_from(["flip", "cut", "insert"]),
)


def damaged(whole, tmp_path, name, share, flips, what):
    """A copy of the folder, with bytes of one of its files changed."""
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    target = shutil.copytree(whole, tmp_path / "copy")
    data = bytearray((target / name).read_bytes())
    at = int(share * len(data))
    if what == "cut":
        del data[at:]
    elif what == "insert":
        data[at:at] = bytes(flips)
    else:
        for i, flip in enumerate(flips):
            data[(at + i) % len(data)] ^= flip
    (target / name).write_bytes(data)
    return target


@settings(deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DAMAGE)
def test_damage_is_found(whole, tmp_path, how):
    target = damaged(whole, tmp_path, *how)
    try:
        read = folder_reader.read(target)
    except CaptureError:
        return
    assert is_what_was_written(read)
    assert how[0] == "contents.json", "of the other files every byte is watched"


@pytest.mark.filterwarnings("ignore")
@settings(deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DAMAGE)
def test_damage_that_was_sealed_is_an_error_or_a_value(whole, tmp_path, how):
    target = damaged(whole, tmp_path, *how)
    if how[0] != "contents.json":
        sealed(target)
    with contextlib.suppress(CaptureError):
        documents, tensors = folder_reader.read(target)
        capture = documents["capture"]
        decode(capture["batch"] if isinstance(capture, dict) and "batch" in capture else None, tensors["batch"])


FORGED = {
    "newer": (
        "contents.json",
        '{"format": 2}',
        "step-1 was made by a newer torchnan: format 2, this one reads 1. Update",
    ),
    "newer_document": (
        "capture.json",
        '{"format": 7}',
        "step-1 was made by a newer torchnan: format 7, this one reads 1",
    ),
    "older": ("contents.json", '{"format": 0}', "contents.json['format'] must be 1 but is 0"),
    "no_format": ("contents.json", "{}", "contents.json must be an object with 'format' but is {}"),
    "no_object": ("contents.json", "[]", "contents.json must be an object but is []"),
    "no_files": ("contents.json", '{"format": 1, "files": 3}', "contents.json['files'] must be a list but is 3"),
    "outside": (
        "contents.json",
        '{"format": 1, "files": [{"name": "../x.json", "bytes": 1, "crc32": 0}]}',
        "['files'][0]['name'] must be the name of a separate file, *.json or *.safetensors but is '../x.json'",
    ),
    "other_suffix": (
        "contents.json",
        '{"format": 1, "files": [{"name": "x.pkl", "bytes": 1, "crc32": 0}]}',
        "must be the name of a separate file, *.json or *.safetensors but is 'x.pkl'",
    ),
    "itself": (
        "contents.json",
        '{"format": 1, "files": [{"name": "contents.json", "bytes": 1, "crc32": 0}]}',
        "but is 'contents.json'",
    ),
    "no_size": (
        "contents.json",
        '{"format": 1, "files": [{"name": "a.json", "bytes": "1", "crc32": 0}]}',
        "['files'][0]['bytes'] must be a number without fraction but is '1'",
    ),
    "no_json": ("capture.json", "{", "capture.json is damaged: it is not JSON (Expecting"),
    "no_text": ("capture.json", b"\xff\xfe\xfd", "capture.json is damaged: it is not JSON"),
    "nan": ("capture.json", '{"a": NaN}', "capture.json is damaged: it is not JSON (NaN is not a number)"),
    "deep": ("capture.json", "[" * 100_000, "capture.json is damaged: it is nested too deep."),
    "long_number": ("capture.json", "9" * 100_000, "capture.json is damaged: it is not JSON (Exceeds the limit"),
    "no_header": ("batch.safetensors", b"\x00" * 7, "batch.safetensors is damaged: Error while deserializing header"),
    "huge_header": ("batch.safetensors", b"\xff" * 7 + b"\x7f{}", "batch.safetensors is damaged: Error while"),
    "huge_tensor": (
        "batch.safetensors",
        b"\x48" + b"\x00" * 7 + b'{"x":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,399999999996]}}'[:72],
        "batch.safetensors is damaged: Error while",
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_folder_is_rejected(target, case):
    name, data, message = FORGED[case]
    (target / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    if name != "contents.json":
        sealed(target)
    with pytest.raises(CaptureError) as raised:
        folder_reader.read(target)
    assert message in str(raised.value)


def test_one_file_cannot_stand_for_two(target):
    contents = json.loads((target / "contents.json").read_text())
    contents["files"].append(contents["files"][0])
    (target / "contents.json").write_text(json.dumps(contents))
    with pytest.raises(CaptureError, match="must be the name of a separate file"):
        folder_reader.read(target)


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_is_not_waited_for(target, name):
    (target / name).unlink()
    os.mkfifo(target / name)
    writer = threading.Thread(target=lambda: open(target / name, "wb").close())  # lets a reader go, should there be one
    writer.start()
    try:
        with pytest.raises(CaptureError, match=rf"{name} is not a file"):
            folder_reader.read(target)
    finally:
        reader = os.open(target / name, os.O_RDONLY | os.O_NONBLOCK)
        writer.join()
        os.close(reader)


@pytest.mark.parametrize("name", ["capture.json", "contents.json"])
def test_a_document_of_gigabytes_is_not_read(target, name):
    size = 2**40
    os.truncate(target / name, size)  # takes no room on the disk
    if name != "contents.json":
        contents = json.loads((target / "contents.json").read_text())
        next(file for file in contents["files"] if file["name"] == name)["bytes"] = size
        (target / "contents.json").write_text(json.dumps(contents))
    with pytest.raises(CaptureError, match=f"{name} has {size} bytes, and a document has at most 67108864"):
        folder_reader.read(target)


def test_a_file_that_may_not_be_read_is_named(target):
    (target / "batch.safetensors").chmod(0)
    refused = r"batch\.safetensors cannot be read: Permission denied"
    with permissions_enforced(), pytest.raises(CaptureError, match=refused):
        folder_reader.read(target)
