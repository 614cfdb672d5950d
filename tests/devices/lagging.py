"""The device "lagging" of tests/cpp/device, for programs in Python: it computes what the CPU computes, but only when
somebody waits for it. Built by `make test-cpp`."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / f"python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = Path(os.environ.get("LAGGING_DEVICE", BUILD / "tests" / "cpp" / "lagging.so"))


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
        module._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
        module.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]
        module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]  # type: ignore[attr-defined]
        torch._register_device_module("lagging", module)
        self._library.lagging_plug_into_torchnan()

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
        self._library.lagging_forget_counts()
        program()
        return self._library.lagging_waits(), self._library.lagging_copies_back()
