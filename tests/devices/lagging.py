"""The device "lagging" of tests/cpp/device, for programs in Python: it computes the same as the CPU, but only when
something waits for it. Built by `make test-cpp`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tests.devices.step_trace import StepTrace

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / f"python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = Path(os.environ.get("LAGGING_DEVICE", BUILD / "tests" / "cpp" / "lagging.so"))

# What scans: the body of the "kernel", or "operations" of PyTorch.
SCANNER = os.environ.get("LAGGING_SCANNER", "kernel")


class Lagging:
    """The device, and what programs have done with it."""

    def __init__(self) -> None:
        if not LIBRARY.exists():
            command = ["cmake", "--build", str(BUILD), "--target", "lagging"]
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            assert LIBRARY.exists(), f"`make test-cpp` builds {LIBRARY}\n{built.stdout}{built.stderr}"
        self._library = ctypes.CDLL(str(LIBRARY), mode=ctypes.RTLD_GLOBAL)
        module = types.ModuleType("torch.lagging")
        module.is_available = lambda: True  # type: ignore[attr-defined]
        module.device_count = lambda: 2  # type: ignore[attr-defined]
        module.current_device = lambda: 0  # type: ignore[attr-defined]
        module.device = lambda device: torch.accelerator.device_index(torch.device(device).index)  # type: ignore[attr-defined]
        module.is_initialized = lambda: True  # type: ignore[attr-defined]
        module.Stream = lambda priority=0: torch.Stream(device="lagging:0")  # type: ignore[attr-defined]
        module.stream = lambda stream: stream  # type: ignore[attr-defined]
        module.current_stream = torch.accelerator.current_stream  # type: ignore[attr-defined]
        module.Event = lambda: torch.Event("lagging:0")  # type: ignore[attr-defined]
        module._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
        module.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]
        module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]  # type: ignore[attr-defined]
        torch._register_device_module("lagging", module)
        for name in ("waits", "copies_back", "stale_reads", "scan_launches", "live_blocks", "end_capture"):
            getattr(self._library, f"lagging_{name}").restype = ctypes.c_int64
        self._library.lagging_plug_into_torchnan(int(SCANNER == "kernel"))

    def synchronize(self) -> None:
        """Computes what has been asked for, without being waited for."""
        self._library.lagging_run_all()

    def put(self, tensor: torch.Tensor, value: float) -> None:
        """Into the first element, a float32, without an operation."""
        self.synchronize()
        ctypes.c_float.from_address(tensor.data_ptr()).value = value

    def count(self, program: Callable[[], object]) -> tuple[int, int]:
        """How often the host waits for the device while the program runs, and copies from it."""
        self.synchronize()
        self._library.lagging_reset_counts()
        program()
        return self._library.lagging_waits(), self._library.lagging_copies_back()

    def trace(self, program: Callable[[], object]) -> StepTrace:
        """What the program does. The device has no times."""
        with torch.autograd.profiler.profile() as profile:
            waits, copies = self.count(program)
        names = [event.name for event in profile.function_events or ()]
        operators = [name for name in names if name.startswith("aten::")]
        return StepTrace(waits, copies, operators, scans=self.scan_launches())

    # Features that a GPU has too, but that a test cannot control there.

    def run(self, stream: torch.Stream, items: int) -> None:
        """Lets a stream run its first pending operations."""
        self._library.lagging_run(*_numbers(stream), ctypes.c_int64(items))

    def stale_reads(self) -> int:
        """Returns how many scans have read memory that had been given back, since the last count()."""
        self.synchronize()
        return int(self._library.lagging_stale_reads())

    def scan_launches(self) -> int:
        return int(self._library.lagging_scan_launches())

    def copy_launches(self) -> int:
        """Returns how many launches of copies, which wait for the alarm, there were since the last count()."""
        return int(self._library.lagging_copy_launches())

    def live_blocks(self, stream: torch.Stream) -> int:
        """Returns how many blocks of a stream's memory are given out."""
        return int(self._library.lagging_live_blocks(*_numbers(stream)))

    def reset_counts(self) -> None:
        self._library.lagging_reset_counts()

    @contextlib.contextmanager
    def capture(self, stream: torch.Stream) -> Iterator[Graph]:
        """Captures the operations on a stream. On a GPU this cannot be the default one."""
        self._library.lagging_begin_capture(*_numbers(stream))
        graph = Graph(self._library)
        try:
            yield graph
        finally:
            graph.number = self._library.lagging_end_capture(*_numbers(stream))

    def enqueue(self, work: ctypes._CFuncPtr, argument: int) -> None:
        """Queues the call of a C function, which lives as long as the process."""
        self._library.lagging_enqueue(work, ctypes.c_int64(argument))

    def use_stubs(self) -> None:
        """Lets a few operations compute nothing, and scans read nothing, for the rest of the process."""
        self._library.lagging_use_stubs()

    def fail_next_scanner(self, error: int = 1) -> None:
        """Lets the next attempt to make a scanner fail; with error 2 for lack of memory."""
        self._library.lagging_fail_next_scanner(error)

    def refuse_scans(self, launches: int) -> None:
        """Lets the device refuse the next launches of scans."""
        self._library.lagging_refuse_scans(launches)

    def refuse_resets(self, resets: int) -> None:
        """Lets the device refuse the next resets of the alarm."""
        self._library.lagging_refuse_resets(resets)

    def break_device(self, is_broken: bool = True) -> None:
        """Lets every call for scans fail from now on, as after a device-side assert, or no longer."""
        self._library.lagging_break_device(int(is_broken))


class Graph:
    """The captured graph."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.number = -1

    def replay(self) -> None:
        self._library.lagging_replay(ctypes.c_int64(self.number))


def _numbers(stream: torch.Stream) -> tuple[ctypes.c_int64, ctypes.c_int64]:
    return ctypes.c_int64(stream.device_index), ctypes.c_int64(stream.stream_id)
