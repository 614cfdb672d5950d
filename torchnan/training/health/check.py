"""The health check: each rank checks its device, all ranks exchange answers, and only then they reduce known values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist

from torchnan.config.options import OptionError, is_number
from torchnan.detection.pause import detection_paused
from torchnan.distributed.agreement import backend_devices
from torchnan.training.health.devices import device_facts
from torchnan.training.health.group import Group
from torchnan.training.health.product import digest_of_product, wrong_product
from torchnan.training.health.report import HealthReport, Trouble

_VALUES = 1024


def check(group: dist.ProcessGroup | None = None, *, timeout: float = 30.0) -> HealthReport:
    """Checks the devices of all ranks and the connection between them.

    Collective: called by every rank of the group. Draws no random numbers and changes no tensor of the program. Takes
    about 20 ms on a CPU; at most about three times ``timeout`` if ranks are gone.

    1. Each rank multiplies integer matrices with a known product, on its accelerator or the CPU, and asks NVML for
       memory errors of its GPU (with ``nvidia-ml-py``).
    2. All answer through the group's store. Ranks that do not answer in time are named, and no collective is started.
       Devices that computed other bits than most devices of their kind are named.
    3. All-reduce of known values, which distinguishes corrupted sums from a hang.

    Args:
        group: a ``torch.distributed`` process group. Default: the default group; without one, only this process.
        timeout: seconds that a rank has for each answer.

    Returns:
        The report. Ranks that take part to the end return the same troubles.

    Raises:
        OptionError: ``timeout`` is not a number above 0.
    """
    if not is_number(timeout) or not timeout > 0:
        raise OptionError(f"timeout={timeout!r} cannot be used: it takes a number of seconds above 0.")
    device = _device()
    with detection_paused(), torch.no_grad(), torch.autocast(device.type, enabled=False):
        mine = _own_answer(device)
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
            return HealthReport(0, 1, tuple(_troubles_of(0, mine)), tuple(mine["notes"]), tuple(mine["checked"]))
        return _check_group(group, timeout, mine)


def _device() -> torch.device:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def _own_answer(device: torch.device) -> dict[str, Any]:
    errors, notes = device_facts(device) if device.type == "cuda" else ([], [])
    unasked = any(note.startswith("NVML") for note in notes)
    is_cpu = device.type == "cpu"
    like = (
        torch.backends.cpu.get_cpu_capability() if is_cpu else torch.get_device_module(device).get_device_name(device)
    )
    threads = torch.get_num_threads() if is_cpu else 0
    return {
        "product": wrong_product(device),
        "like": f"{like}, {threads} threads, PyTorch {torch.__version__}",
        "digest": digest_of_product(device),
        "errors": [f"{device}: {error}" for error in errors],
        "notes": notes,
        "checked": [
            f"products of integer matrices on {device} ({like})",
            *(["memory errors and clocks, by NVML"] if device.type == "cuda" and not unasked else []),
        ],
    }


def _troubles_of(rank: int, answer: dict[str, Any]) -> list[Trouble]:
    found = [] if answer["product"] is None else [Trouble(rank, "product", answer["product"])]
    return found + [Trouble(rank, "device", error) for error in answer["errors"]]


def _check_group(group: dist.ProcessGroup | None, timeout: float, mine: dict[str, Any]) -> HealthReport:
    if dist.get_backend(group) == "fake":
        alone = tuple(_troubles_of(dist.get_rank(group), mine))
        return HealthReport(
            dist.get_rank(group),
            1,
            alone,
            ("the process group is a fake one: no other rank was asked",),
            tuple(mine["checked"]),
        )
    ranks = Group(group, timeout)
    try:
        answers = ranks.exchange("devices", mine)
    except TimeoutError as error:
        missing = (Trouble(None, "missing", str(error)),)
        return HealthReport(ranks.rank, ranks.ranks, missing, tuple(mine["notes"]), tuple(mine["checked"]))
    troubles = [
        Trouble(rank, "missing", f"it did not answer in {timeout:g} s: it has died, hangs, or is not in this check")
        for rank in range(ranks.ranks)
        if rank not in answers
    ]
    is_complete = not troubles
    for rank, answer in sorted(answers.items()):
        troubles += _troubles_of(rank, answer)
    troubles += _different(answers)
    checked = [f"rank {rank}: {check}" for rank, answer in sorted(answers.items()) for check in answer["checked"]]
    checked.append("the bits of these products on devices of the same kind")
    if is_complete:
        troubles += _check_sum(ranks)
        checked.append(f"an all-reduce of known values over {ranks.ranks} ranks")
    notes = [f"rank {rank}: {note}" for rank, answer in sorted(answers.items()) for note in answer["notes"]]
    return HealthReport(ranks.rank, ranks.ranks, tuple(troubles), tuple(notes), tuple(checked))


def _different(answers: dict[int, dict[str, Any]]) -> list[Trouble]:
    """Returns the ranks whose device computed other bits than most devices of its kind."""
    troubles = []
    for like in sorted({answer["like"] for answer in answers.values()}):
        digests = {rank: answer["digest"] for rank, answer in answers.items() if answer["like"] == like}
        (most, count), *others = Counter(digests.values()).most_common()
        is_tie = bool(others) and others[0][1] == count
        for rank, digest in sorted(digests.items()):
            if others and (is_tie or digest != most):
                text = f"a product of matrices has other bits ({digest}) than on devices of the same kind ({like})"
                troubles.append(Trouble(rank, "differs", text))
    return troubles


def _check_sum(ranks: Group) -> list[Trouble]:
    """All-reduces integers whose sums are exact in float32, and exchanges the findings of each rank."""
    pattern = torch.arange(_VALUES, device="cpu") % 7 + 1
    shares = [rank % 64 + 1 for rank in range(ranks.ranks)]
    values = (pattern * shares[ranks.rank]).float().to(_device_of(ranks.group))
    why = ranks.all_reduce(values)
    if why is None:
        expected = pattern * sum(shares)
        wrong = (values.cpu() != expected).nonzero().flatten().tolist()
        if wrong:
            first = wrong[0]
            why = (
                f"an all-reduce of known values gave a wrong sum: {len(wrong)} of {_VALUES} elements, the first "
                f"{values[first].item():g} instead of {expected[first].item()}"
            )
        verdict = {"kind": "sum", "text": why}
    else:
        verdict = {"kind": "hangs", "text": why}
    try:
        verdicts = ranks.exchange("sum", verdict)
    except TimeoutError as error:
        return [Trouble(None, "hangs", str(error))]
    absent = "it had answered, but did not return from an all-reduce of known values"
    troubles = [Trouble(rank, "hangs", absent) for rank in range(ranks.ranks) if rank not in verdicts]
    for rank, found in sorted(verdicts.items()):
        if found["text"] is not None:
            troubles.append(Trouble(rank, found["kind"], found["text"]))
    return troubles


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Returns the device on which the group's backend takes tensors; the accelerator if it takes those."""
    device = _device()
    return device if device.type in backend_devices(group) else torch.device("cpu")
