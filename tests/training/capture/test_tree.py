"""A stored value is restored bit for bit; unsupported and damaged values are named."""

from __future__ import annotations

import collections
import dataclasses
import json
import struct
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchnan
from tests.support.forked_python import run_forked
from torchnan.training.storage.codec import check, decode, encode

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
DTYPES = sorted(
    {d for d in vars(torch).values() if isinstance(d, torch.dtype) and not str(d).startswith("torch.q")}, key=str
)


class Pair(NamedTuple):
    left: Any
    right: Any


class Batch(collections.UserDict):
    """As returned by tokenizers."""

    def __init__(self, data, encoding=None):
        super().__init__(data)


@dataclasses.dataclass
class Sample:
    image: Any
    label: Any = 0
    made: Any = dataclasses.field(init=False, default=None)
    cache: Any = dataclasses.field(init=False, default=None, compare=False)

    def __post_init__(self):
        self.made = "by the constructor"


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any

    def __post_init__(self):
        object.__setattr__(self, "value", ("made again", self.value))


@dataclasses.dataclass
class Scaled:
    value: Any
    scale: dataclasses.InitVar[float]


def there_and_back(value, **options):
    """Through the text of a file, as it will be."""
    check(value, name="value")
    document, tensors = encode(value, name="value")
    return decode(json.loads(json.dumps(document, allow_nan=False)), tensors, **options)


def bits(tensor):
    """Every element as an integer, in logical order."""
    if tensor.numel() == 0:
        return []
    storage, size = tensor.untyped_storage(), tensor.dtype.itemsize
    raw = torch.empty(0, dtype=torch.uint8).set_(
        storage, tensor.storage_offset() * size, (*tensor.shape, size), (*(size * s for s in tensor.stride()), 1)
    )
    return raw.tolist()


def same(a, b):
    """Has the same type and the same bits, at every level."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        facts = [(t.dtype, t.shape, t.stride(), t.requires_grad, t.is_conj(), t.is_neg(), bits(t)) for t in (a, b)]
        return facts[0] == facts[1]
    if isinstance(a, np.ndarray | np.generic):
        facts = [(x.dtype.str, x.shape, x.strides if x.size else (), x.tobytes()) for x in (a, b)]
        return facts[0] == facts[1]
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, complex):
        return same([a.real, a.imag], [b.real, b.imag])
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and not same(list(a.items()), list(b.items())):
        return False
    if hasattr(a, "__dict__"):
        return same(vars(a), vars(b))
    return isinstance(a, dict) or a == b


# -- what comes back

text = st.text(st.characters(exclude_categories=()), max_size=6)
keys = text | st.integers() | st.floats() | st.booleans() | st.none()
NUMPY_DTYPES = ["?", "<i4", ">i4", "<u8", "<f2", "<f4", ">f8", "<c8", "<c16", "<f16"]


@st.composite
def made_tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    strides = draw(st.lists(st.integers(0, 12), min_size=len(shape), max_size=len(shape)))
    room = torch.from_numpy(np.random.default_rng(draw(st.integers(0, 9))).integers(0, 256, 16 * 200, np.uint8))
    tensor = torch.empty(0, dtype=dtype).set_(room.untyped_storage(), draw(st.integers(0, 40)), shape, strides)
    if dtype.is_complex and dtype != torch.complex32 and draw(st.booleans()):
        tensor = tensor.conj()
    if (dtype.is_floating_point or dtype.is_complex) and draw(st.booleans()):
        tensor.requires_grad_()
        return torch.nn.Parameter(tensor) if draw(st.booleans()) else tensor
    return tensor


@st.composite
def arrays(draw):
    dtype = np.dtype(draw(st.sampled_from(NUMPY_DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    n = int(np.prod(shape)) * dtype.itemsize
    array = np.frombuffer(draw(st.binary(min_size=n, max_size=n)), dtype=dtype) if n else np.empty(0, dtype)
    array = array.reshape(shape, order=draw(st.sampled_from("CF")))
    if array.size and draw(st.booleans()):
        return array.flat[0]
    return array.copy(order="K")


values = st.deferred(lambda: leaves | leaves | holders)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    text,
    st.binary(max_size=20),
    made_tensors(),
    arrays(),
    st.sampled_from([torch.float32, torch.device("cuda:1"), torch.channels_last, torch.strided, torch.Size([2, 0])]),
)


items = st.dictionaries(keys, values, max_size=3)
holders = st.one_of(
    st.lists(values, max_size=3),
    st.lists(values, max_size=3).map(tuple),
    items,
    items.map(collections.OrderedDict),
    items.map(Batch),
    st.builds(Pair, values, values),
    st.builds(Sample, values, values),
    st.builds(Frozen, values),
)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@settings(deadline=None, max_examples=600)
@given(values | made_tensors() | arrays())
def test_a_value_comes_back_the_same_to_the_last_bit(value):
    assert same(there_and_back(value), value)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_kept_and_stored_as_one_of_safetensors(dtype):
    from safetensors.torch import load, save

    raw = torch.frombuffer(bytearray(range(64)), dtype=torch.uint8)
    tensor = torch.empty(0, dtype=dtype).set_(raw.untyped_storage(), 1, (2, 1), (1, 2))
    document, tensors = encode(tensor, name="x")
    assert same(decode(document, load(save(tensors))), tensor)


FORMS = {
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 3),
    "expanded": lambda x: x[:1, :, :1].expand(7, -1, 9, -1),
    "every_other": lambda x: x[:, ::2, 1:],
    "diagonal": lambda x: x.diagonal(0, 2, 3),
    "empty": lambda x: x[:0, 1:].transpose(0, 1),
    "scalar": lambda x: x[1, 1, 1, 1],
    "conjugate": lambda x: torch.view_as_complex(x[..., :2].contiguous()).mT.conj(),
    "imaginary": lambda x: torch.view_as_complex(x[..., :2].contiguous()).conj().imag,  # has the negative bit
}


@pytest.mark.parametrize("form", FORMS)
def test_memory_formats_come_back(form):
    tensor = FORMS[form](torch.randn(2, 3, 4, 4))
    back = there_and_back(tensor)
    assert same(back, tensor)
    assert torch.equal(back, tensor)


def test_only_the_used_stretch_of_memory_is_kept_with_its_alignment():
    data = torch.arange(100_000.0)
    window = data[50_001:50_011]
    document, tensors = encode(window, name="x")
    assert sum(t.nbytes for t in tensors.values()) <= window.nbytes + 64
    assert decode(document, tensors).data_ptr() % 64 == window.data_ptr() % 64


def test_shared_memory_is_kept_once_and_shared_again():
    embedding = torch.nn.Parameter(torch.randn(50, 20))
    value = {"in": embedding, "out": [embedding], "row": embedding.data[3], "as_int": embedding.data.view(torch.int32)}
    document, tensors = encode(value, name="x")
    assert sum(t.nbytes for t in tensors.values()) == embedding.nbytes
    back = decode(document, tensors)
    assert back["in"] is back["out"][0]
    assert back["row"] is not back["in"]
    back["in"].data[3] = 7
    assert (back["row"] == 7).all()
    assert (back["as_int"][3] == 0x40E00000).all(), "7.0 as an integer"
    assert embedding.data[3].ne(7).all(), "the copy does not share memory"
    assert decode(document, tensors)["row"].ne(7).all(), "and so is each decoding"


@pytest.mark.parametrize("lengths", [(6, 4), (4, 6)])
def test_memory_that_two_libraries_have_is_shared_again(lengths):
    array = np.arange(6.0)
    back = there_and_back([torch.from_numpy(array[:n]) for n in lengths])  # storages of other sizes, at one address
    back[0][2] = 70
    assert [tensor.tolist() for tensor in back] == [[0, 1, 70, 3, 4, 5][:n] for n in lengths]


def test_an_array_held_twice_is_one_array_again():
    array = np.arange(3)
    back = there_and_back({"a": array, "b": [array], "c": array.copy()})
    assert back["a"] is back["b"][0]
    assert back["a"] is not back["c"]
    back["a"][0] = 5  # and can be written


def test_an_encoded_value_does_not_change_with_later_steps():
    x, array = torch.zeros(3), np.zeros(3)
    document, tensors = encode([x, array], name="x")
    x.fill_(1)
    array.fill(1)
    back = decode(document, tensors)
    assert back[0].tolist() == back[1].tolist() == [0, 0, 0]
    back[1][:] = 2
    assert decode(document, tensors)[1].tolist() == [0, 0, 0]


def test_a_default_device_is_of_no_matter():
    value = [torch.ones(3), torch.ones(0), np.ones(2), np.ones(0), torch.nn.Parameter(torch.ones(1))]
    with torch.device("meta"):
        back = there_and_back(value)
    assert same(back, value)


@pytest.mark.parametrize(
    "value",
    [
        "\ud83d\ude00",  # two halves of a character, which JSON would join
        "\ud800",
        -0.0,
        struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0],  # a NaN with a sign and a payload
        complex(-0.0, float("-inf")),
        -(2**53),
        10**5000,
        {True: 1, "1": 2, 0: 3, None: 4, 0.5: 5},
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(24.0).reshape(2, 3, 4).transpose(0, 2, 1),
        np.float64(0.1),
        np.array(1.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_easily_lost_details_come_back(value):
    back = there_and_back(value)
    if isinstance(value, np.ndarray) and not value.flags.f_contiguous:
        value = value.copy(order="C")  # an array in neither order keeps its elements
    assert same(back, value)


def test_a_state_dict_comes_back_with_the_versions_of_its_modules():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    state = module.state_dict()
    back = there_and_back(state)
    assert same(back, state)
    assert back._metadata["1"] == {"version": 2}


def test_model_inputs_of_transformers_and_pytorch_come_back():
    from torch.nn.utils.rnn import PackedSequence, pack_sequence
    from transformers import BatchEncoding
    from transformers.modeling_outputs import BaseModelOutput

    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    value = [
        BatchEncoding({"input_ids": torch.ones(2, 3, dtype=torch.long)}),
        BaseModelOutput(last_hidden_state=torch.ones(2), hidden_states=(torch.ones(1), torch.zeros(1))),
        packed,
    ]
    back = there_and_back(value)
    assert same(back[0], value[0])
    assert type(back[1]) is BaseModelOutput
    assert same(dict(back[1]), dict(value[1]))
    assert type(back[2]) is PackedSequence
    assert same(tuple(back[2]), tuple(packed))


def test_a_dataclass_keeps_compared_fields_only():
    sample = Sample(torch.ones(2), 3)
    sample.made = "changed since"
    sample.cache = object()
    back = there_and_back(sample)
    assert (back.made, back.cache) == ("changed since", None)


def test_where_tensors_go_is_the_callers_choice():
    document, tensors = encode([torch.ones(2), torch.ones(3)], name="x")
    document["memory"][0]["device"] = "cuda:3"  # as on another machine
    asked = []
    back = decode(document, tensors, map_location=lambda device: asked.append(device) or "meta")
    assert asked == ["cuda:3", "cpu"]
    assert back[0].device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_on_a_gpu_come_back_to_where_they_were():
    x = torch.randn(4, 5, device="cuda").t()
    document, tensors = encode({"x": x, "part": x[1:]}, name="batch")
    assert document["memory"] == [{"device": "cuda:0"}]
    assert {t.device.type for t in tensors.values()} == {"cpu"}
    back = decode(document, tensors, map_location=lambda device: device)
    assert torch.equal(back["x"], x)
    assert back["x"].stride() == x.stride()
    assert back["part"].untyped_storage().data_ptr() == back["x"].untyped_storage().data_ptr()


def test_detection_sees_nothing_of_it(monkeypatch):
    bad = torch.tensor([1.0, float("nan")])
    monkeypatch.setattr(torch.Tensor, "untyped_storage", None)  # detection takes it for a write
    monkeypatch.setattr(torch.Tensor, "data_ptr", None)
    with torchnan.detect(action="log", when="origin") as run:
        assert encode({"bad": bad, "p": torch.nn.Parameter(bad)}, name="x")
    assert list(run.findings) == []


def test_of_a_distributed_tensor_the_local_one_is_kept():
    code = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torchnan.training.storage.codec import check, decode, encode
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
whole = torch.arange(6.0).reshape(2, 3)
parameter = torch.nn.Parameter(distribute_tensor(whole, mesh, [Replicate()]))
check(parameter, name="w")
document, tensors = encode([parameter, parameter], name="w")
print(document["tensors"][0]["dtensor"], len(document["tensors"]))
back = decode(document, tensors)
print(type(back[0]).__name__, back[0] is back[1], back[0].tolist())
dist.destroy_process_group()
"""
    done = run_forked(code)
    assert done.stdout.splitlines() == [
        "{'placements': '(Replicate(),)', 'mesh': '(1,)', 'shape': '(2, 3)'} 1",
        "Parameter True [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]",
    ], done.stderr
