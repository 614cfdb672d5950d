"""What a process can tell of itself: every state that a library may change behind a program's back."""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import logging
import os
import random
import re
import signal
import sys
import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import torch
from torch._dynamo.utils import compilation_time_metrics, counters, get_compilation_metrics
from torch._inductor import metrics
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

INTERCEPTOR = "Fake"  # the dispatch key that is in use while detection is on
PRIVATE = ("TORCHINDUCTOR_CACHE_DIR",)  # variables that differ between any two runs
CONFIGS = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config", "torch.fx.experimental._config")


def state() -> dict[str, list[str]]:
    """Returns all of it, by facet."""
    return {
        "random states": _random_states(),
        "compilations": compilations(),
        "times of the compiler": [
            f"{len(times)} of {name}" for name, times in sorted(compilation_time_metrics.items())
        ],
        "threads": _threads(),
        "open files": _open_files(),
        "signals": _signals(),
        "modes": _modes(),
        "settings": _settings(),
    }


def compilations() -> list[str]:
    """Returns the counters of Dynamo, AOTAutograd and Inductor, and the files that they have written."""
    lines = [
        f"{group}.{name} = {count}" for group, of in sorted(counters.items()) for name, count in sorted(of.items())
    ]
    lines += [f"compiled {m.co_name}: {m.fail_type} {m.restart_reasons}" for m in get_compilation_metrics()]
    lines += [f"frames = {torch._dynamo.convert_frame.FRAME_COUNTER}"]
    lines += [f"inductor {name} = {value}" for name, value in sorted(vars(metrics).items()) if type(value) is int]
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    suffixes = Counter(path.suffix or "entry" for path in folder.rglob("*") if path.is_file())
    return lines + [f"files written: {count} of {suffix}" for suffix, count in sorted(suffixes.items())]


def _digest(data: Any) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else repr(data).encode()).hexdigest()[:12]


def _random_states() -> list[str]:
    lines = [
        f"torch {_digest(torch.default_generator.get_state().numpy().tobytes())}",
        f"initial seed {torch.initial_seed()}",
        f"random {_digest(random.getstate())}",
        f"numpy {_digest(numpy.random.get_state(legacy=True)[1].tobytes())}",  # type: ignore[index,union-attr]
    ]
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        module = torch.get_device_module(device)
        if hasattr(module, "get_rng_state"):
            lines.append(f"{device} {_digest(module.get_rng_state().cpu().numpy().tobytes())}")
    return lines


def _threads() -> list[str]:
    named = sorted(thread.name for thread in threading.enumerate())
    return [f"alive: {named}", f"the next has the name {threading.Thread().name}"]


def _open_files() -> list[str]:
    files = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # the folder itself was open
        files.append(re.sub(r"/tmp/\S*/|\d{3,}", "", target))  # without what differs from run to run
    return [f"{count} of {name}" for name, count in sorted(Counter(files).items())]


def _signals() -> list[str]:
    handlers = {number.name: signal.getsignal(number) for number in signal.Signals}
    lines = [f"{name}: {_named(handler)}" for name, handler in handlers.items() if handler is not signal.SIG_DFL]
    lines.append(f"blocked: {sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))}")
    lines += [f"timer {timer} runs" for timer in range(3) if signal.getitimer(timer) != (0.0, 0.0)]
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return [*lines, f"wakeup file: {descriptor >= 0}", f"faulthandler: {faulthandler.is_enabled()}"]


def _modes() -> list[str]:
    keys = [str(torch._C._dispatch_tls_local_include_set()), str(torch._C._dispatch_tls_local_exclude_set())]
    lines = [f"dispatch keys {re.sub(rf'{INTERCEPTOR}, |, {INTERCEPTOR}|{INTERCEPTOR}', '', key)}" for key in keys]
    lines.append(f"function modes {[type(mode).__name__ for mode in _get_current_function_mode_stack()]}")
    lines.append(f"dispatch modes {[type(mode).__name__ for mode in _get_current_dispatch_mode_stack()]}")
    lines.append(f"hooks of saved tensors {_named(torch._C._autograd._top_saved_tensors_default_hooks(False))}")
    lines.append(f"hooks of saved tensors allowed {torch._C._autograd._saved_tensors_hooks_is_enabled()}")
    for device in ("cpu", "cuda"):
        lines.append(f"autocast {device} {torch.is_autocast_enabled(device)} {torch.get_autocast_dtype(device)}")
    lines.append(f"autocast cache {torch.is_autocast_cache_enabled()}, depth {_autocast_depth()}")
    lines.append(f"grad {torch.is_grad_enabled()}, inference {torch.is_inference_mode_enabled()}")
    lines.append(f"anomaly {torch.is_anomaly_enabled()} {torch.is_anomaly_check_nan_enabled()}")
    lines.append(f"multithreaded backward {torch._C._is_multithreading_enabled()}")
    lines.append(f"stance {torch._dynamo.eval_frame._stance.stance}, tracing {torch.compiler.is_compiling()}")
    return lines


def _autocast_depth() -> int:
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return depth - 1


def _settings() -> list[str]:
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    hooks = (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook)
    lines = [
        f"default dtype {torch.get_default_dtype()}, device {torch.get_default_device()}",
        f"deterministic {torch.are_deterministic_algorithms_enabled()} {warns_only}",
        f"fill uninitialized memory {torch.utils.deterministic.fill_uninitialized_memory}",
        f"precision {torch.get_float32_matmul_precision()}, threads {torch.get_num_threads()}",
        f"warn always {torch.is_warn_always_enabled()}",
        f"hooks {[_named(hook) for hook in hooks]}",
        f"trace {_named(sys.gettrace())}, profile {_named(sys.getprofile())}",
        f"recursion {sys.getrecursionlimit()}, switch interval {sys.getswitchinterval()}",
        f"collector {gc.isenabled()} {gc.get_threshold()} {list(map(_named, gc.callbacks))}",
        f"working directory {Path.cwd().name}, files there {sorted(os.listdir())}",
        f"environment {_digest(sorted(variable for variable in os.environ.items() if variable[0] not in PRIVATE))}",
        f"filters of warnings {_digest(warnings.filters)}, shown by {_named(warnings.showwarning)}",
    ]
    for name in (None, "torch", "torch._dynamo", "torch._inductor"):
        logger = logging.getLogger(name)
        handlers = [type(handler).__name__ for handler in logger.handlers]
        lines.append(f"logger {logger.name} {logger.level} {logger.propagate} {handlers}")
    for name in CONFIGS:
        config = sys.modules.get(name)
        if config is not None:
            with warnings.catch_warnings():  # some settings are deprecated
                warnings.simplefilter("ignore")
                lines += [f"{name}.{key} = {_named(getattr(config, key))}" for key in sorted(config._config)]
    return lines


def _named(thing: Any) -> str:
    """Returns a name without an address."""
    if isinstance(thing, tuple | list):
        return f"[{', '.join(map(_named, thing))}]"
    if callable(thing) and hasattr(thing, "__qualname__"):
        return f"{thing.__module__}.{thing.__qualname__}"
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", repr(thing))
