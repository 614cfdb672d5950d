"""Streams, graphs, memory, autocast and compiled code on a GPU."""

from __future__ import annotations

import pytest
import torch

import torchnan
from torchnan._load import _C

NAN, INF = float("nan"), float("inf")
EVERY_DTYPE = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
]


def errors(watch):
    return [finding.op for finding in watch.findings if finding.level == "error"]


def test_tensors_on_gpus_are_checked():
    assert _C.unscanned_reason("cuda") == ""


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 255, 4096, 65_535, 65_537, 1_000_003])
def test_the_kernels_find_one_element_wherever_it_is(dtype, size):
    for place in {0, size // 2, size - 1}:
        for offset in (0, 1, 3):
            memory = torch.ones(size + offset, dtype=torch.float32).to(dtype).cuda()
            x = memory[offset:]
            with torchnan.detect(action="log", rescan_every=1) as watch:
                clean = computed_from(x)
            assert watch.findings == []
            bad = x.cpu().float() if dtype.itemsize == 1 else x.cpu()
            bad[place] = NAN
            x.copy_(bad.to(dtype))
            with torchnan.detect(action="log", rescan_every=1) as watch:
                held = computed_from(x)
            assert [finding.origin for finding in watch.findings] == ["input"], (dtype, size, place, offset)
            del clean, held


def computed_from(x):
    """A result that is non-finite where the tensor is. There is no arithmetic for numbers of eight bits."""
    return (x.bfloat16() if x.dtype.itemsize == 1 else x) * 1


def test_more_than_two_to_the_31_elements():
    x = torch.zeros(2**31 + 7, dtype=torch.float8_e5m2, device="cuda")
    x.view(torch.uint8)[-1] = 0x7F
    with torchnan.detect(action="log", rescan_every=1) as watch:
        held = computed_from(x)
    assert [(finding.origin, finding.kind) for finding in watch.findings] == [("input", "nan")]
    del held


def test_each_stream_is_scanned_in_its_own_order():
    other = torch.cuda.Stream()
    x = torch.zeros(1 << 20, device="cuda")
    with torchnan.detect(action="log") as watch:
        for _ in range(50):
            y = x + 1
            with torch.cuda.stream(other):
                torch.cuda._sleep(100_000)  # cycles: a scan in the wrong order reads before the next lines have written
                z = torch.full((1 << 20,), 2.0, device="cuda")
                z.mul_(2)
            del y, z
        torch.cuda.synchronize()
        x.add_(1)
    assert watch.findings == []
    with torchnan.detect(action="log") as watch:
        with torch.cuda.stream(other):
            torch.cuda._sleep(100_000_000)
            bad = torch.zeros(8, device="cuda") / 0
        torch.cuda.current_stream().wait_stream(other)
        bad.sum().item()
    assert errors(watch) == ["aten::div"]


def test_a_replay_of_a_graph_is_reported_with_the_operation_that_was_captured():
    given = torch.ones(64, device="cuda")
    with torchnan.detect(action="log") as watch:
        warm = torch.cuda.Stream()
        with torch.cuda.stream(warm):
            given.log().sum()
        torch.cuda.current_stream().wait_stream(warm)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = given.log().sum()
        for replay in range(5):
            if replay == 4:
                given.fill_(-1)
            graph.replay()
            torch.cuda.synchronize()
            if replay < 4:
                assert errors(watch) == []
        result.item()
    assert errors(watch) == ["aten::log"]


def test_memory_is_given_back_as_without():
    def peak():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        x = torch.ones(1 << 22, device="cuda")  # 16 MiB
        for _ in range(100):
            x = x * 1.0001
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    plain = peak()
    with torchnan.detect(rescan_every=1) as watch:  # else a bound proves every result, and none waits
        watched = peak()
    assert watch.stats()["device_bytes"] >= 100 << 24
    assert watched <= plain + (96 << 20)  # what waits for a launch, at most 64 MiB and one result more


def test_autocast_in_float16_names_the_overflow():
    layer = torch.nn.Linear(64, 64).cuda()
    with torch.no_grad():
        layer.weight.fill_(100)
    with torchnan.detect(action="log") as watch:
        with torch.autocast("cuda", torch.float16):
            out = layer(torch.full((4, 64), 100.0, device="cuda"))
        out.float().sum().item()
    assert errors(watch) == ["aten::addmm"]


def test_values_of_a_compiled_graph_are_found_where_they_leave_it():
    compiled = torch.compile(lambda x: torch.log(x).sum())
    x = torch.zeros(64, device="cuda")
    with torchnan.detect(action="log") as watch:
        compiled(x).item()
    assert len(errors(watch)) == 1
