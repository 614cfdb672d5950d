"""Lets Inductor compile for the lagging device: C++ kernels that run when their turn comes in the stream."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import device_interface
from torch._inductor import codecache, config
from torch._inductor.codegen import common, cpp, wrapper
from torch._inductor.codegen.cpu_device_op_overrides import CpuDeviceOpOverrides

from tests.devices.lagging import Lagging

_NAME = "lagging"
_launches: list[Callable[[], object]] = []  # never shortened: a captured graph runs them again


@functools.cache
def register(machine: Lagging) -> None:
    """Registers the device with Inductor, and sends the kernels of generated code into its queues."""
    common.register_backend_for_device(_NAME, cpp.CppScheduling, _Wrapper)
    common.register_device_op_overrides(_NAME, CpuDeviceOpOverrides())
    device_interface.register_interface_for_device(_NAME, device_interface.CpuInterface)
    config.cuda_backend = "cpp"  # type: ignore[assignment]  # Inductor asks this of every device that it does not know
    for name in ("loop_ordering_after_fusion", "loop_reindexing_after_fusion"):  # their code is for GPUs
        if hasattr(config, name):
            setattr(config, name, False)
    library = codecache.CppPythonBindingsCodeCache
    load = library.load_pybinding_async

    def load_and_wrap(*args: Any, **options: Any) -> Callable[[], Any]:
        get_kernel = load(*args, **options)
        return lambda: _queued(get_kernel(), machine)

    library.load_pybinding_async = load_and_wrap  # type: ignore[method-assign]


class _Wrapper(wrapper.PythonWrapperCodegen):
    """Calls kernels like those of the host: without a stream."""

    @staticmethod
    def create(*args: Any, **options: Any) -> wrapper.PythonWrapperCodegen:
        return _Wrapper()

    def _generate_kernel_call_helper(self, *args: Any, **options: Any) -> None:
        super()._generate_kernel_call_helper(*args, **{**options, "device": torch.device("cpu")})


def _queued(kernel: Callable[..., Any], machine: Lagging) -> Callable[..., Any]:
    def launch(*args: Any) -> None:
        if not any(isinstance(value, torch.Tensor) and value.device.type == _NAME for value in args):
            kernel(*args)
            return
        _launches.append(functools.partial(kernel, *map(_address, args)))
        machine.enqueue(_run, len(_launches) - 1)

    return launch


def _address(value: Any) -> Any:
    """Returns a tensor of the device without a hold on its memory; a kernel reads nothing but its address."""
    if not isinstance(value, torch.Tensor) or value.device.type != _NAME or value.numel() == 0:
        return value
    memory = (ctypes.c_char * value.element_size()).from_address(value.data_ptr())
    return torch.frombuffer(memory, dtype=torch.uint8)


@ctypes.CFUNCTYPE(None, ctypes.c_int64)
def _run(number: int) -> None:
    _launches[number]()
