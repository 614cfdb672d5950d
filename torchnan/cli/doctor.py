"""Prints what torchnan was built for, what it runs with, and which options the environment sets.

torchnan doctor
TORCHNAN=raise torchnan doctor
torchnan doctor --json
torchnan doctor --health
torchrun --nproc-per-node 8 -m torchnan doctor --health
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform

import torch

from torchnan import _build, _load, health, startup
from torchnan._load import _C
from torchnan.config.detection_options import DetectionOptions
from torchnan.config.options import OptionError
from torchnan.config.text import printable
from torchnan.detection.compiled import torch_internals

NAME = "doctor"
HELP = "say what torchnan was built for, and whether it works here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the check of ranks and devices."""
    parser.add_argument(
        "--health", action="store_true", help="check this machine's device, and under torchrun all ranks, instead"
    )
    parser.add_argument("--json", action="store_true", help='as one line of JSON, with whether all is well as "ok"')


def build() -> str:
    """Returns the version, and the PyTorch that it was built for."""
    return f"{_build.version}, built for PyTorch {_C.built_for_torch}"


def _format_options(options: DetectionOptions | None) -> str:
    if _C.is_disabled():
        return "OFF by TORCHNAN=0: detect(), guard(), StepGuard and NaNDetector check nothing, in every program"
    return "off" if options is None else ", ".join(f"{name}={value}" for name, value in options.values.items())


def _gpus() -> str:
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return "none: this PyTorch is for the CPU" if torch.version.cuda is None else "none that PyTorch could use"
    if why := _C.unscanned_reason(device.type):
        return f"NOT CHECKED: {why}"
    name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    return f"checked by {_C.scanner_name(device.type)}:  {torch.accelerator.device_count()} x {name}"


def _compile() -> str:
    missing = torch_internals.missing()
    if missing:
        return f"NOT FOLLOWED: this PyTorch has no {', '.join(missing)}; compiled regions are checked at their border"
    return "regions that Inductor compiled are followed"


def _print_health(*, as_json: bool) -> int:
    """Checks the device of this process, and under torchrun those of all ranks; the first rank prints the result."""
    is_job = "RANK" in os.environ and "MASTER_ADDR" in os.environ
    if is_job:
        if torch.accelerator.is_available():
            torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
        torch.distributed.init_process_group()
    report = health.check()
    if report.rank == 0:
        print(json.dumps({"ok": report.ok, **dataclasses.asdict(report)}) if as_json else report)
    if is_job and report.ok:
        torch.distributed.destroy_process_group()
    return 0 if report.ok else 1


def execute(given: argparse.Namespace) -> int:
    """Prints the table, or the health of the ranks. Returns 1 if detection cannot be switched on here, or a rank is not
    healthy."""
    if given.health:
        return _print_health(as_json=given.json)
    healthy = True
    rows = [
        ("torchnan", build()),
        ("PyTorch", f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}"),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("cores", f"for PyTorch {', '.join(_load.releases())}"),
        ("C++ package", f"CMAKE_PREFIX_PATH={os.path.dirname(_load.__file__)}"),
    ]
    try:
        rows.append(("engine", f"boxed fallback on dispatch key {_C.interceptor_key_name()}"))
    except RuntimeError as error:
        rows.append(("engine", f"NONE: {error}"))
        healthy = False
    rows.append(("compile", _compile()))
    rows.append(("GPUs", _gpus()))
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
        rows.append(("autoload", "on: TORCHNAN=raise works for any script"))
    else:
        rows.append(("autoload", "OFF by TORCH_DEVICE_BACKEND_AUTOLOAD: TORCHNAN=raise would do nothing"))
        healthy = False
    try:
        options = startup.options_from(os.environ)
        rows.append(("switches", _format_options(options)))
    except OptionError as error:
        rows.append(("switches", f"REFUSED: {error}"))
        healthy = False
    if given.json:
        print(json.dumps({"ok": healthy, **dict(rows)}))
    else:
        for name, value in rows:
            print(f"{name:<12} {printable(value, 2000)}")
    return 0 if healthy else 1
