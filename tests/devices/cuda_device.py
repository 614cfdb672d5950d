"""CUDA as the device of these tests."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

import torch

from tests.devices.step_trace import StepTrace

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


class Cuda:
    """The device, and the operations that programs do with it."""

    def synchronize(self) -> None:
        """Waits for all that has been asked for."""
        torch.cuda.synchronize()

    def put(self, tensor: torch.Tensor, value: float) -> None:
        """Into the first element, a float32, without an operation."""
        self.synchronize()
        host = ctypes.c_float(value)
        failed = ctypes.CDLL("libcuda.so.1").cuMemcpyHtoD_v2(
            ctypes.c_uint64(tensor.data_ptr()), ctypes.byref(host), ctypes.c_size_t(ctypes.sizeof(host))
        )
        assert not failed, f"CUDA error {failed}"

    @contextlib.contextmanager
    def capture(self, stream: torch.Stream) -> Iterator[torch.cuda.CUDAGraph]:
        """Captures the operations on a stream."""
        graph = torch.cuda.CUDAGraph()
        own = torch.cuda.Stream(
            stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
        )
        with torch.cuda.graph(graph, stream=own):
            yield graph

    def count(self, program: Callable[[], object]) -> tuple[int, int]:
        """How often the host waits for the device while the program runs, and copies from it."""
        trace = self.trace(program)
        return trace.waits - self._waits_of_tracing, trace.copies_to_host

    @functools.cached_property
    def _waits_of_tracing(self) -> int:
        """How often the profiler itself waits, whatever the program does."""
        return self.trace(lambda: None).waits

    def stale_reads(self) -> int:
        """Returns 0: a GPU does not count scans of memory that had been given back."""
        return 0

    def trace(self, program: Callable[[], object]) -> StepTrace:
        """What the program does, according to CUPTI, with what tracing does."""
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
            program()
        events = list(profile.events() or ())
        names = [event.name for event in events]
        on_device = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
        work = [event for event in on_device if not event.is_user_annotation]
        scans = [event for event in work if "torchnan" in event.name and "scan" in event.name]
        return StepTrace(
            waits=sum(name in WAITS for name in names),
            copies_to_host=sum(name.startswith("Memcpy DtoH") for name in names),
            operators=[name for name in names if name.startswith("aten::")],
            scans=len(scans),
            scan_microseconds=sum(event.time_range.elapsed_us() for event in scans),
            kernels=sum(not event.name.startswith(("Memcpy", "Memset")) for event in work),
            device_microseconds=sum(event.time_range.elapsed_us() for event in work),
        )
