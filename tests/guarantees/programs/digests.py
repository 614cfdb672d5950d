"""Prints a digest of the effects of every operator on its samples: ``python digests.py never|imported|used
[thorough]``.

The process has never imported torchnan, or has imported it, or has used and stopped a detection.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
import threading
import warnings
from itertools import islice

import torch

from tests.support.call_observation import Run, facets
from tests.support.cpu_operators import OPS, samples, two_dtypes, variants, varies

# If a kernel is missing, PyTorch lists the registered ones; after the first detection these include torchnan's.
OURS = re.compile(r"^Fake: registered at torchnan.*\n|Fake, ", re.MULTILINE)


def digest(op, dtype: torch.dtype, variant: str, run: Run) -> str:
    if "error" in run.noticed:
        stage, kind, text = run.noticed["error"]
        run.noticed["error"] = stage, kind, OURS.sub("", text)
    seen = {facet: value for facet, value in facets(run.noticed).items() if not varies(op, dtype, variant, facet)}
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def digests(op, *, thorough: bool) -> list[str]:
    known = two_dtypes(op)
    return [
        digest(op, dtype, variant, Run(call, scope=contextlib.nullcontext()))
        for dtype in (known if thorough else known[:1])
        for sample in samples(op, dtype, 1)
        for variant, call in islice(variants(op, sample), None if thorough else 1)
    ]


def main(how: str, *rest: str) -> None:
    torch.set_num_threads(1)
    torch.set_warn_always(True)
    if how != "never":
        import torchnan

        if how == "used":
            with torchnan.detect(action="log"):
                torch.zeros(3, requires_grad=True).log().sum().backward()
    assert ("torchnan" in sys.modules) == (how != "never")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings from making the samples
        told = {name: digests(op, thorough="thorough" in rest) for name, op in OPS.items()}
    state = [torch._C._dispatch_tls_local_include_set().raw_repr(), threading.active_count(), warnings.filters]
    print(json.dumps({"digests": told, "state": repr(state)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
