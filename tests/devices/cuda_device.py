"""CUDA as the device of these tests."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator

import torch

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
        """How often the host waits for the device while the program runs, and copies from it, according to CUPTI.
        Includes the effects of tracing, which are the same in every program."""
        names = self._traced(program)
        return sum(name in WAITS for name in names), sum(name.startswith("Memcpy DtoH") for name in names)

    def sees_scans(self, program: Callable[[], object]) -> bool:
        """Whether CUPTI reports kernels of torchnan, which has a separate CUDA runtime."""
        return any("torchnan" in name and "scan" in name for name in self._traced(program))

    def _traced(self, program: Callable[[], object]) -> list[str]:
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
            program()
        return [event.name for event in profile.events() or ()]
