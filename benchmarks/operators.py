"""Counts how often each operator is called, and by which path torchnan intercepts it.

    python -m benchmarks.operators [--steps policy,mamba] [--top 60]

The counts are of one step, forward, backward and optimizer, and do not depend on the machine. An operator that is
called often and is "boxed" is worth a line in csrc/intercept/typed_small_ops.cpp. A small call has no tensor of more
than 4,096 elements.
"""

from __future__ import annotations

import argparse
import collections
import warnings
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchnan
from benchmarks import workloads

KEY = "Fake"
SMALL = 4096


class CallCounter(TorchDispatchMode):
    """Counts the calls below autograd, and the small ones among them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: collections.Counter[str] = collections.Counter()
        self.small: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        self.calls[func.name()] += 1
        self.small[func.name()] += all(tensor.numel() <= SMALL for tensor in tensors)
        return result


def path_of(name: str) -> str:
    """How an operator is intercepted: by a typed kernel, boxed, or not at all."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, KEY):
        return "boxed"
    return "none" if torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(name, KEY) else "typed"


def count(key: str) -> CallCounter:
    """The calls of one step of this workload, after a first one."""
    workload = workloads.EAGER[key]()
    workload.step()
    counter = CallCounter()
    with counter:
        workload.step()
    return counter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", default=",".join(workloads.EAGER))
    parser.add_argument("--top", type=int, default=60, help="rows to print (default: 60)")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    calls: collections.Counter[str] = collections.Counter()
    small: collections.Counter[str] = collections.Counter()
    used_by: dict[str, list[str]] = collections.defaultdict(list)
    for key in given.steps.split(","):
        counter = count(key)
        calls += counter.calls
        small += counter.small
        for name in counter.calls:
            used_by[name].append(key)
    with torchnan.detect():  # installs the kernels
        paths = {name: path_of(name) for name in calls}
    share: collections.Counter[str] = collections.Counter()
    for name, number in calls.items():
        share[paths[name]] += number
    print(", ".join(f"{number} {path}" for path, number in share.most_common()), "calls")
    print(f"{'calls':>7} {'small':>7}  path   operator")
    for name, number in calls.most_common(given.top):
        print(f"{number:>7} {small[name]:>7}  {paths[name]:<6} {name}   ({', '.join(used_by[name])})")


if __name__ == "__main__":
    main()
