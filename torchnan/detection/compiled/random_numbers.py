"""Random numbers as Inductor's generated code draws them: seeds from the generator, numbers by a kernel of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch._inductor.inductor_prims  # registers torch.ops.prims.inductor_*
from torch import fx

_PRIMS = torch.ops.prims
_SEEDS = _PRIMS.inductor_seeds.default
OPERATORS = (_SEEDS, _PRIMS.inductor_random.default, _PRIMS.inductor_randint.default)
_kernels: dict[tuple[Any, str, torch.device], Any] = {}


def draw(operator: Any, *args: Any) -> torch.Tensor:
    """Returns what generated code gets from one of :data:`OPERATORS`.

    The eager body of ``inductor_seeds`` draws other numbers than ``torch/_inductor/ir.py`` does, and that of
    ``inductor_random`` is another generator.
    """
    if operator is _SEEDS:
        count, device = args
        return torch.randint(-(2**63), 2**63 - 1, [count], device=device)
    position = next(i for i, argument in enumerate(args) if isinstance(argument, torch.Tensor))
    seed = args[position]
    key = (operator, repr(args[:position] + args[position + 1 :]), seed.device)
    if key not in _kernels:
        graph = fx.Graph()
        placeholder = graph.placeholder("seed")
        passed = tuple(placeholder if i == position else argument for i, argument in enumerate(args))
        graph.output((graph.call_function(operator, passed),))
        _kernels[key] = compile_alone(fx.GraphModule({}, graph), [seed])
    result: torch.Tensor = _kernels[key]([seed])[0]
    return result


def compile_alone(module: fx.GraphModule, inputs: list[Any]) -> Any:
    """Compiles a graph that Inductor has lowered, outside every mode of this thread."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return compile_fx_inner(module, inputs)
