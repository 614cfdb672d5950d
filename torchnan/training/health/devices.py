"""Reads the errors that the driver of an NVIDIA GPU reports: memory errors and throttling, by NVML.

Needs ``pip install nvidia-ml-py``. NVML names: NVIDIA Management Library, API reference, "Device Queries".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_REASONS = {  # reasons for lower clocks, by the names of nvmlClocksEventReasons
    0x08: "hardware slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x20: "software thermal slowdown",
}


def device_facts(device: torch.device) -> tuple[list[str], list[str]]:
    """Returns the errors that NVML reports for a CUDA device, and notes: throttling, or why NVML was not asked."""
    try:
        import pynvml
    except ImportError:
        return [], ["NVML was not asked: pip install nvidia-ml-py"]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], [f"NVML was not asked: {error}"]
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode())
        return facts_of(pynvml, handle)
    except pynvml.NVMLError as error:
        return [], [f"NVML does not know {device}: {error}"]
    finally:
        pynvml.nvmlShutdown()


def facts_of(nvml: Any, handle: Any) -> tuple[list[str], list[str]]:
    """Returns errors and notes of one device of NVML; unsupported queries are left out."""
    errors, notes = [], []
    with _supported(nvml):
        count = nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
        if count:
            errors.append(f"{count} uncorrectable memory errors (ECC) since the driver was loaded")
    with _supported(nvml):
        _, uncorrectable, is_pending, has_failed = nvml.nvmlDeviceGetRemappedRows(handle)
        if has_failed:
            errors.append("a row of its memory could not be remapped: it has to be replaced")
        elif is_pending:
            errors.append(f"{uncorrectable} rows of its memory wait to be remapped: reset it")
    with _supported(nvml):
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        slow = [name for bit, name in _REASONS.items() if reasons & bit]
        if slow:
            notes.append(f"it runs at lower clocks: {', '.join(slow)}")
    return errors, notes


@contextlib.contextmanager
def _supported(nvml: Any) -> Iterator[None]:
    with contextlib.suppress(nvml.NVMLError):  # NotSupported on this model
        yield
