"""A forged capture touches no file, network or process: through loading, replaying and extracting it."""

from __future__ import annotations

import dataclasses
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from tests.support.guarded_steps import Net, Training, bad_batch, step_of
from tests.support.processes import run_python
from torchnan.capture import CaptureError, load_capture
from torchnan.training.capture.reproducer import write_example
from torchnan.training.guard.step.operation import Operation, schema_of
from torchnan.training.storage import atomic_folder, folder_reader
from torchnan.training.storage.codec import encode


@pytest.fixture
def capture(tmp_path):
    """The folder of a capture with an operation."""
    return Path(Training(captures=tmp_path / "captures").guard.step(bad_batch()).event.capture)


def forged(capture, name, value=None, **changes):
    """A copy of a capture with another value under a name; or with other entries of its event."""
    documents, tensors = folder_reader.read(capture)
    if name in tensors:
        documents["capture"][name], tensors[name] = encode(value, name=name)
    elif name:
        documents["capture"][name] = value
    documents["capture"]["event"].update(changes)
    folder = capture.with_name(f"rank-0-step-{90 + len(list(capture.parent.iterdir())):08d}")
    atomic_folder.write(folder, documents, tensors)
    return folder


def operation(op, *args, overload="", **kwargs):
    return {"op": op, "overload": overload, "args": args, "kwargs": kwargs}


@pytest.mark.parametrize(
    "forbidden",
    [
        operation("aten::from_file", "/etc/passwd", True, 4000),
        operation("aten::from_file", filename="/etc/passwd"),
        operation("aten::from_file", "/etc/passwd", overload="out", out=torch.ones(2)),
        operation("aten::save", torch.ones(2), "/tmp/x"),
        operation("aten::warn", "x"),
        operation("aten::record_stream", torch.ones(2), 1),
        operation("aten::set_", torch.ones(2), 1, overload="source_Storage"),
        operation("aten::get_gradients", 1),
        operation("aten::manual_seed", 1),
        operation("aten::_assert_async", torch.ones(1), "x", overload="msg"),
        operation("image::read_file", "/etc/passwd"),
        operation("_c10d_functional::all_reduce", torch.ones(2), "sum", "0"),
        operation("debugprims::load_tensor", "x", [1], [1]),
        operation("prim::RaiseException", "x"),
        operation("profiler::_record_function_enter", "x"),
        operation("aten::no_such_operator", torch.ones(2)),
        operation("aten::log.__class__", torch.ones(2)),
        operation("aten::log", torch.ones(2), overload="__call__"),
        operation("aten::log", torch.ones(2), torch.ones(2)),
        operation("aten::log", torch.ones(2), self=torch.ones(2)),
        operation("aten::log", torch.ones(2), other="x"),
    ],
    ids=lambda operation: operation["op"],
)
def test_only_operators_on_tensors_are_read_and_written(forbidden, capture):
    with pytest.raises(CaptureError, match="captures hold only operators of PyTorch that compute on tensors"):
        load_capture(forged(capture, "operation", forbidden))
    loaded = load_capture(capture)
    with pytest.raises(CaptureError, match="is not an operator of PyTorch that computes on tensors alone"):
        write_example(dataclasses.replace(loaded, operation=type(loaded.operation)(**forbidden)), capture / "extract")
    assert not (capture / "extract").exists()


@pytest.mark.parametrize(
    "op",
    ["log.", "div.Tensor", "div.Tensor_mode", "gelu.", "addmm.", "_foreach_add_.Scalar", "linalg_eigh.", "einsum.",
     "native_layer_norm_backward.", "scatter_reduce.two", "_softmax.", "convolution.", "full.", "index_put_."],
)  # fmt: skip
def test_operators_on_tensors_are_allowed(op):
    name, _, overload = op.partition(".")
    assert schema_of(f"aten::{name}", overload) is not None


def test_no_allowed_operator_takes_a_name():
    for schema in torch._C._jit_get_all_schemas():
        if schema_of(schema.name, schema.overload_name) is not None:
            names = {argument.name for argument in schema.arguments if "str" in str(argument.type)}
            assert not names & {"filename", "path", "group_name", "msg", "name", "dirname", "url", "address"}, schema


def test_arguments_have_one_place_each():
    a = torch.ones(2, 2)
    assert Operation("aten::addmm", "", (a, a, a), {"beta": 1}).schema() is not None
    assert Operation("aten::addmm", "", (a, a, a, 1), {}).schema() is None
    assert Operation("aten::addmm", "", (a, a), {"self": a}).schema() is None


@pytest.mark.parametrize("name", ["torch.py", "safetensors", "json.py"])
def test_a_prepared_folder_inside_of_a_capture_is_refused(name, capture):
    (capture / "extract").mkdir()
    (capture / "extract" / name).write_text("print('ran')")
    with pytest.raises(FileExistsError, match=r"is inside of the capture and holds .*, which the program could import"):
        write_example(load_capture(capture), capture / "extract")
    (capture / "extract" / name).unlink()
    for _ in range(2):  # and a second time, over its own files
        assert write_example(load_capture(capture), capture / "extract").is_file()


CONSTRUCTED = """
import dataclasses, json, sys, types
from pathlib import Path
from torchnan.capture import CaptureError, load_capture

@dataclasses.dataclass
class CommitOperationAdd:  # as in huggingface_hub
    path_in_repo: str
    path_or_fileobj: str
    def __post_init__(self):
        print("opened", open(self.path_or_fileobj).read())

sys.modules["hub"] = module = types.ModuleType("hub")
CommitOperationAdd.__module__, CommitOperationAdd.__qualname__ = "hub", "CommitOperationAdd"
module.CommitOperationAdd = CommitOperationAdd
(batch,) = load_capture(sys.argv[1]).batches
print(batch.path_or_fileobj)
"""


def test_no_constructor_of_an_imported_class_runs(capture, tmp_path):
    (tmp_path / "secret").write_text("secret")
    documents, tensors = folder_reader.read(capture)
    fields = [["path_in_repo", "x"], ["path_or_fileobj", str(tmp_path / "secret")]]
    node = {"dataclass": {"class": {"module": "hub", "qualname": "CommitOperationAdd"}, "fields": fields}}
    documents["capture"]["batches"] = {"value": [node], "tensors": [], "memory": []}
    folder = capture.with_name("rank-0-step-00000099")
    atomic_folder.write(folder, documents, tensors)
    ended = run_python(CONSTRUCTED, str(folder))
    assert (ended.returncode, ended.stdout) == (0, f"{tmp_path / 'secret'}\n"), ended.stderr


def state(**changes):
    from torchnan.training.guard.step.random_state import RandomState

    return {**dataclasses.asdict(RandomState.now()), **changes}


def words(left, next_):
    made = torch.get_rng_state()
    made[8:24] = torch.tensor([*left.to_bytes(4, "little"), 1, 0, 0, 0, *next_.to_bytes(8, "little")])
    return made


KEY = numpy.zeros(624, numpy.uint32)
DAMAGE = {
    "short_state": ("random", lambda: state(cpu=torch.zeros(3, dtype=torch.uint8))),
    "state_of_floats": ("random", lambda: state(cpu=torch.zeros(5056))),
    "position_after_the_end": ("random", lambda: state(cpu=words(600, 600))),
    "state_of_python": ("random", lambda: state(python=(3, (1, 2, 3), None))),
    "number_of_python": ("random", lambda: state(python=(3, (2**70,) * 625, None))),
    "normal_of_python": ("random", lambda: state(python=(*state()["python"][:2], "x"))),
    "position_of_numpy": ("random", lambda: state(numpy=("MT19937", KEY, 10**6, 0, 0.0))),
    "negative_position_of_numpy": ("random", lambda: state(numpy=("MT19937", KEY, -5, 0, 0.0))),
    "key_of_numpy": ("random", lambda: state(numpy=("MT19937", KEY[:3], 0, 0, 0.0))),
    "generator_of_numpy": ("random", lambda: state(numpy=("PCG64", KEY, 0, 0, 0.0))),
    "cuda": ("random", lambda: state(cuda=("x",))),
    "batch_random": ("batch_random", lambda: [None, None, None]),
    "random_of_a_batch": ("batch_random", lambda: [state(python=())]),
    "batches": ("batches", lambda: {"a": 1}),
    "weights": ("weights", lambda: {"a": 1}),
    "rank": ("rank", lambda: 10**18),
    "negative_rank": ("rank", lambda: -1),
    "ranks": ("ranks", lambda: -1),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_value_that_a_replay_could_not_use_is_refused(damage, capture):
    name, make = DAMAGE[damage]
    with pytest.raises(CaptureError):
        load_capture(forged(capture, name, make()))


@pytest.mark.parametrize(("name", "value"), [("step", -1), ("norm", [1]), ("norm", "x"), ("step", None)])
def test_an_event_that_a_replay_could_not_use_is_refused(name, value, capture):
    with pytest.raises(CaptureError):
        load_capture(forged(capture, "", **{name: value}))


@pytest.mark.parametrize("norm", [None, 3, 0.5, "nan", "inf"])
def test_an_event_as_it_is_written_is_read(norm, capture):
    assert load_capture(forged(capture, "", norm=norm)).event["norm"] == norm


def test_states_as_they_are_after_any_draws_are_read(capture):
    for draws in (0, 1, 623, 624, 625, 1000):
        torch.manual_seed(draws)
        torch.rand(draws)
        assert load_capture(forged(capture, "random", state())).random.cpu.equal(torch.get_rng_state())


def test_weights_of_a_dtype_that_cannot_be_converted_are_refused(capture):
    loaded = load_capture(capture)
    name = next(iter(loaded.weights))
    weight = loaded.weights[name].clone()
    odd = torch.empty(0, dtype=torch.float4_e2m1fn_x2).set_(weight.untyped_storage(), 0, weight.shape)
    with pytest.raises(CaptureError, match=f"parameter {name} cannot be loaded from the capture"):
        dataclasses.replace(loaded, weights={**loaded.weights, name: odd}).replay(Net(), step_of)


# -- memory

LARGE = 2**24  # bytes
DOCUMENTS = {
    "lists": b"[" + b"[]," * (LARGE // 3) + b"0]",
    "dicts": b"[" + b'{"":0},' * (LARGE // 7) + b"0]",
    "deep": b'[' + b'{"a":[[0]]},' * (LARGE // 12) + b"0]",
    "texts": b"[" + b'"ab",' * (LARGE // 5) + b"0]",
}  # fmt: skip


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_document_of_many_small_values_is_not_parsed(kind, capture):
    contents = json.loads((capture / "contents.json").read_text())
    (capture / "capture.json").write_bytes(DOCUMENTS[kind])
    entry = next(file for file in contents["files"] if file["name"] == "capture.json")
    entry.update(bytes=len(DOCUMENTS[kind]), crc32=zlib.crc32(DOCUMENTS[kind]))
    (capture / "contents.json").write_text(json.dumps(contents))
    with pytest.raises(CaptureError, match=r"would take \d+ bytes of memory, and a document takes at most 268435456"):
        load_capture(capture)


def test_a_bound_of_memory_is_an_upper_bound():
    """Each kind of small value, measured."""
    for text in (b"[]", b'{"":0}', b'{"ab":[]}', b'"abc"', b"1234567", b"0.5", b'{"":{"":{"":[]}}}', b"[[[[[]]]]]"):
        document = b"[" + b",".join([text] * 20_000) + b"]"
        assert size_of(json.loads(document)) <= folder_reader.memory_of(document), text


def size_of(value: Any) -> int:
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return sys.getsizeof(value) + sum(map(size_of, inner))


def test_a_header_of_a_million_tensors_is_not_parsed(capture):
    entry = b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    header = b"{" + b",".join(entry % i for i in range(200_000)) + b"}"
    raw = len(header).to_bytes(8, "little") + header
    contents = json.loads((capture / "contents.json").read_text())
    (capture / "batches.safetensors").write_bytes(raw)
    entry_of = next(file for file in contents["files"] if file["name"] == "batches.safetensors")
    entry_of.update(bytes=len(raw), crc32=zlib.crc32(raw))
    (capture / "contents.json").write_text(json.dumps(contents))
    with pytest.raises(CaptureError, match="whose tensors would take"):
        load_capture(capture)


def test_a_document_that_could_not_be_read_again_is_not_written(tmp_path):
    with pytest.raises(CaptureError, match=r"x\.json would take in memory .* keep long lists of numbers as tensors"):
        atomic_folder.write(tmp_path / "it", {"x": [{}] * 1_200_000}, {})
