"""The time of the scan's kernel, by dtype, size, alignment and strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

import torchnan
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.verdict import Verdict, at_most

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
]
SIZES = {"1 element": 0, "64 KiB": 64 << 10, "16 MiB": 16 << 20, "1 GiB": 1 << 30}  # bytes
SMALL_SIZES = {"1 element": 0, "8 KiB": 8 << 10}  # where times mean nothing
LARGEST_RATIO = 1.25  # bytes a second of a copy, read and written, to those of the scan
SECONDS_OF_A_ROW = 3  # at most
REPEAT = 10
BATCH, BATCH_BYTES = 110, 4096  # tensors that one launch scans


def rows_of(memory: torch.Tensor, count: int) -> torch.Tensor:
    width = min(count, 1024)
    return memory[: 2 * count].view(-1, 2 * width)[:, :width]


LAYOUTS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "contiguous": lambda memory, count: memory[:count],
    "off by one element": lambda memory, count: memory[1 : count + 1],
    "every other element": lambda memory, count: memory[: 2 * count : 2],
    "half of each row": rows_of,
}


def sweep(bench: Bench) -> Iterator[Verdict]:
    """Bytes a second of the scan beside those of a copy on the device, and microseconds by size."""
    sizes = SIZES if bench.is_gpu else SMALL_SIZES
    largest = list(sizes)[-1]
    copied = rate_of_copy(bench, sizes[largest])
    yield Verdict(f"copy on the device, {largest}: GB/s read and written", copied)
    launches, microseconds, _ = scans(bench, lambda: [filled(bench, BATCH_BYTES) for _ in range(BATCH)])
    what = f"{BATCH} new results of {BATCH_BYTES} bytes: launches of the scan"
    yield Verdict(what, launches, detail=f"{microseconds:.1f} us")
    for layout, view in LAYOUTS.items():
        for dtype in DTYPES:
            if bench.seconds_left < SECONDS_OF_A_ROW:
                return
            microseconds_of, rate = {}, 0.0
            for size, count in ((size, max(1, sizes[size] // dtype.itemsize)) for size in sizes):
                target = view(torch.zeros(2 * count + 1, dtype=dtype, device=bench.device), count)
                launches, microseconds, read = scans(bench, lambda target=target: refill(target))
                assert read >= REPEAT * count * dtype.itemsize, f"{dtype}, {layout}, {size}: {read} bytes scanned"
                microseconds_of[size] = microseconds / REPEAT
                rate = read / microseconds / 1e3 if microseconds else 0.0
            name = f"{str(dtype).removeprefix('torch.')}, {layout}"
            detail = f"{rate:.0f} GB/s; us: " + ", ".join(f"{us:.1f} {size}" for size, us in microseconds_of.items())
            ratio = copied / rate if rate else 0.0
            holds = bench.is_gpu and layout in ("contiguous", "off by one element")
            yield at_most(f"{name}, {largest}: rate of a copy / of the scan", ratio, LARGEST_RATIO, holds, detail)


def rate_of_copy(bench: Bench, size: int) -> float:
    """Returns GB/s."""
    source = torch.ones(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    target.copy_(source)
    trace = bench.machine.trace(lambda: [target.copy_(source) for _ in range(REPEAT)])
    return 2 * size * REPEAT / trace.device_microseconds / 1e3 if trace.device_microseconds else 0.0


def filled(bench: Bench, size: int) -> torch.Tensor:
    return torch.full((size // 4,), 1.0, device=bench.device)


def refill(target: torch.Tensor) -> None:
    """Writes a tensor without reading one, so that nothing but the result is scanned."""
    for _ in range(REPEAT):
        target.fill_(1.0)


def scans(bench: Bench, program: Callable[[], object]) -> tuple[int, float, int]:
    """Returns the launches of scans of a program, their microseconds, and the bytes that they read."""
    with torchnan.detect(action="log", rescan_every=1) as watch:
        program()  # whatever is made at first
        bench.machine.synchronize()
        before = watch.stats()["device_bytes"]
        trace = bench.machine.trace(lambda: (program(), torch.empty(1, device=bench.device).data_ptr()))
        read = watch.stats()["device_bytes"] - before
    return trace.scans, trace.scan_microseconds, read
