"""sherlorch 0.1.0, used as its README says: trace, watch the model, then diagnose what the user looks at.

``pip install sherlorch``. Its names of Python functions count as those of the operators they call. If several tensors
that the user looks at are non-finite, the culprits of all of them are offered, in its own order.
"""

from __future__ import annotations

import sherlorch
import torch
from torch.utils._pytree import tree_flatten

OPERATORS = {
    **{f"__{name}__": name for name in ("mul", "add", "sub", "pow", "matmul")},
    **{f"__r{name}__": name for name in ("mul", "add", "pow", "matmul")},
    **{f"__i{name}__": f"{name}_" for name in ("mul", "add", "sub")},
    **dict.fromkeys(("__truediv__", "__rtruediv__", "__div__", "__rdiv__", "true_divide"), "div"),
    "__itruediv__": "div_",
    "__rsub__": "rsub",
    **dict.fromkeys(("linalg_norm", "norm"), "linalg_vector_norm"),
}


def run(case, zoo):
    culprits = []
    with sherlorch.trace(capture_stack=True) as tracker:
        zoo.HOOKS["model"].append(lambda model: tracker.watch(model, name="model"))
        symptoms = [value for value in tree_flatten(case.run())[0] if isinstance(value, torch.Tensor)]
        for symptom in filter(tracker.has_issue, symptoms):
            try:
                culprits += tracker.diagnose(symptom).culprits
            except KeyError:  # made by no function that it has seen
                continue
    return [finding(culprit) for culprit in culprits]


def finding(culprit):
    module = culprit.module_path
    return {
        "level": "error",
        "kind": "nan" if culprit.has_nan else "inf",
        "origin": "op",
        "op": f"aten::{OPERATORS.get(culprit.op_name, culprit.op_name)}",
        "module": None if module is None else module.removeprefix("model").lstrip("."),
        "line": int(culprit.location.rpartition(":")[2]) if culprit.location else None,
    }
