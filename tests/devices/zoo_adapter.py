"""torchnan on a device, for the zoo's scorer. A note marks a program that PyTorch cannot run there, or that shows no
symptom there."""

from __future__ import annotations

import os

import torch

from tests.zoo import adapter

NAME = os.environ.get("TEST_DEVICE", "lagging")


def run(case, zoo):
    return run_there(case, zoo, go_there)


def run_there(case, zoo, go_there):
    why = why_not(case, go_there)
    if why:
        return [{"level": "note", "why": why}]
    go_there()
    held = []  # as a training loop holds its model: the notice comes late, and a model that is gone has no names
    if case.kind != "clean":
        zoo.HOOKS["model"].append(held.append)
    return adapter.run(case, zoo)


def go_there():
    """Makes the device the default one. Returns the simulated one; nothing for a GPU."""
    # After a fork, PyTorch makes its thread pool anew at the first use. The threads of two devices must not be the
    # first ones, both at once: one would find no pool, and abort (caffe2/utils/threadpool/pthreadpool-cpp.cc).
    torch.set_num_threads(torch.get_num_threads())
    machine = None
    if NAME == "lagging":
        from tests.devices.lagging import Lagging

        machine = Lagging()
    torch.set_default_device(f"{NAME}:0")
    return machine


def why_not(case, go_there):
    """In a separate process: a GPU can be used only in a process whose parent has not used one."""
    end, other_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        why = "the process died"
        try:
            go_there()
            why = "" if shows_symptom(case) else "no symptom there"
        except BaseException as error:  # noqa: BLE001 - whatever it is, this program does not run there
            why = f"{type(error).__name__}: {error}"[:300]
        finally:
            os.write(other_end, why.encode())
            os._exit(0)
    os.close(other_end)
    with os.fdopen(end) as answer:
        why = answer.read()
    return why if os.waitpid(child, 0)[1] == 0 else "the process died"


def shows_symptom(case):
    """Checks the zoo's claim: a bug leaves something non-finite, and a clean program does not."""
    symptoms = [x.detach().cpu() for x in case.run() if isinstance(x, torch.Tensor)]
    floating = [x for x in symptoms if x.is_floating_point() or x.is_complex()]
    return (case.kind == "clean") == all(bool(torch.isfinite(x).all()) for x in floating)


def cannot_be_run(row):
    """Returns whether a row of the scores is of a program that PyTorch cannot run on the device."""
    return isinstance(row["detail"], list) and any("why" in finding for finding in row["detail"])


def is_wrong(row):
    """Returns whether a row is of a program that runs there, and is not reported as on the host."""
    return not cannot_be_run(row) and not row["exact"] and not row["apart"]
