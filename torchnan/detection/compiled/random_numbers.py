"""Random numbers as in Inductor's generated code: seeds from the generator, numbers from a separate kernel."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch._inductor.inductor_prims  # registers torch.ops.prims.inductor_*
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from torchnan._load import _C
from torchnan.detection.compiled import torch_internals

States = dict[str, torch.Tensor]  # of generators, by their device
SeedCounts = dict[torch.device, list[int]]  # how many seeds generated code draws at a time, in order
_ATEN, _PRIMS = torch.ops.aten, torch.ops.prims
_SEEDS, _INTEGERS = _PRIMS.inductor_seeds.default, _PRIMS.inductor_randint.default
_SAVE_STATE, _WITH_STATE = torch_internals.operators_with_random_state()
REPLACED = (_SEEDS, _PRIMS.inductor_random.default, _INTEGERS, _SAVE_STATE, _WITH_STATE)
_kernels: dict[tuple[Any, str, torch.device], Any] = {}


def states(devices: Iterable[str]) -> States:
    """Returns the states of the generators of some devices from which this replay draws."""
    return {device: _C.private_random_state(device) for device in devices}


def set_states(given: States) -> None:
    """Sets the states of generators from which this replay draws."""
    for device, state in given.items():
        _C.set_private_random_state(device, state)


def _are_changed(given: States) -> bool:
    """Whether generators have other states now."""
    return any(not torch.equal(state, _C.private_random_state(device)) for device, state in given.items())


@contextlib.contextmanager
def noting_draws(devices: Iterable[str], note_drawn: Callable[[], None]) -> Iterator[None]:
    """Calls ``note_drawn`` if the block draws from the generator of one of these devices."""
    before = states(devices)
    try:
        yield
    finally:
        if _are_changed(before):
            note_drawn()


def seed_counts(graph: fx.Graph) -> SeedCounts:
    """Returns how many seeds a graph that Inductor has lowered draws on each device."""
    counts: SeedCounts = {}
    for node in graph.nodes:
        if node.target is _SEEDS:
            count, device = node.args
            counts.setdefault(device, []).append(count)
    return counts


def replaced(operator: Any) -> Callable[..., Any]:
    """Returns what a replay calls in place of one of :data:`REPLACED`."""
    if operator is _SAVE_STATE:
        return _run_and_save_state
    if operator is _WITH_STATE:
        return _run_with_state
    return functools.partial(draw, operator)


def _run_and_save_state(operator: Any, *args: Any, **options: Any) -> tuple[torch.Tensor, Any]:
    """As ``run_and_save_rng_state`` of ``torch/_prims/rng_prims.py``, with a generator of the replay."""
    state = _C.private_random_state(str(_device_of(args, options)))
    return state, operator(*args, **options)


def _run_with_state(state: torch.Tensor, operator: Any, *args: Any, **options: Any) -> Any:
    """As ``run_with_rng_state`` there."""
    device = str(_device_of(args, options))
    before = _C.private_random_state(device)
    _C.set_private_random_state(device, state)
    try:
        return operator(*args, **options)
    finally:
        _C.set_private_random_state(device, before)


def draw(operator: Any, *args: Any) -> torch.Tensor:
    """Returns the result of one of Inductor's three operators, ``prims.inductor_*``, in generated code.

    The eager body of ``inductor_seeds`` draws other numbers than ``torch/_inductor/ir.py`` does, and that of
    ``inductor_random`` is another generator.
    """
    if operator is _SEEDS:
        count, device = args
        return torch.randint(-(2**63), 2**63 - 1, [count], device=device)
    position = next(i for i, argument in enumerate(args) if isinstance(argument, torch.Tensor))
    seed = args[position]
    if torch_internals.generates_no_code():
        eager: torch.Tensor = operator(*args)
        return eager
    if seed.is_cpu:
        return _drawn_on_host(operator, *args)
    key = (operator, repr(args[:position] + args[position + 1 :]), seed.device)
    if key not in _kernels:
        graph = fx.Graph()
        placeholder = graph.placeholder("seed")
        passed = tuple(placeholder if i == position else argument for i, argument in enumerate(args))
        graph.output((graph.call_function(operator, passed),))
        _kernels[key] = compile_alone(fx.GraphModule({}, graph), [seed])
    result: torch.Tensor = _kernels[key]([seed])[0]
    return result


def _drawn_on_host(operator: Any, *args: Any) -> torch.Tensor:
    if operator is _INTEGERS:
        low, high, size, seed = args
        return _C.integers_of_generated_code(int(seed), low, high, size)
    size, seed, distribution = args
    return _C.numbers_of_generated_code(int(seed), distribution, size)


class AsGenerated(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes operations draw the random numbers that generated code draws in their place: a seed for each of them.

    The generators must be in their state before the region. Operations that Inductor does not replace draw as usual,
    from a generator whose state then differs from that in generated code.

    Args:
        counts: how many seeds generated code draws at a time on devices. A GPU's generator gives other numbers in one
            draw than in several; that of the host gives the same.
    """

    def __init__(self, counts: SeedCounts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts = {device: list(of_device) for device, of_device in counts.items()}
        self._drawn: dict[torch.device, list[torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if types:  # a distributed or a fake tensor draws for itself
            return func(*args, **options)
        drawn = _DRAWN.get(func) if options.get("generator") is None else None
        if drawn is _dropout and (made := _certain_dropout(*args)) is not None:
            return made
        seed = None if drawn is None else self._next_seed(_device_of(args, options))
        return func(*args, **options) if drawn is None or seed is None else drawn(seed, *args, **options)

    def _next_seed(self, device: torch.device) -> torch.Tensor | None:
        """Returns a seed; ``None`` if generated code draws no more of them on this device."""
        if device.type == "cpu":
            return draw(_SEEDS, 1, device)[0]
        if not self._drawn.get(device) and self._counts.get(device):
            self._drawn[device] = list(draw(_SEEDS, self._counts[device].pop(0), device))
        seeds = self._drawn.get(device)
        return seeds.pop(0) if seeds else None


@contextlib.contextmanager
def drawing_as_generated(counts: SeedCounts, after: States) -> Iterator[None]:
    """Makes operations draw the random numbers of generated code.

    Args:
        counts: as for :class:`AsGenerated`.
        after: the states of generators after the generated code.

    Raises:
        RuntimeError: generators have other states afterwards.
    """
    with AsGenerated(counts):
        yield
    if _are_changed(after):
        raise RuntimeError("it drew other random numbers than the call")


def _device_of(args: Sequence[Any], options: dict[str, Any]) -> torch.device:
    """Returns the device of the result of an operation that draws random numbers."""
    if args and isinstance(args[0], torch.Tensor):
        return args[0].device
    device = torch.device(options.get("device") or "cpu")
    if device.type == "cpu" or device.index is not None:
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())


def _numbers(
    seed: torch.Tensor, distribution: str, size: Sequence[int], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The number of an element depends only on its position: one kernel serves for many sizes."""
    count = math.prod(size)
    room = 1 << max(count - 1, 0).bit_length()
    numbers = draw(_PRIMS.inductor_random.default, [room], seed, distribution)[:count].reshape(tuple(size))
    return numbers.to(dtype or torch.get_default_dtype())


def _new(distribution: str) -> Callable[..., torch.Tensor]:
    def draw_new(
        seed: torch.Tensor, size: Sequence[int], dtype: torch.dtype | None = None, **options: Any
    ) -> torch.Tensor:
        return _numbers(seed, distribution, size, dtype)

    return draw_new


def _like(distribution: str) -> Callable[..., torch.Tensor]:
    def draw_like(
        seed: torch.Tensor, x: torch.Tensor, dtype: torch.dtype | None = None, **options: Any
    ) -> torch.Tensor:
        made = torch.empty_like(x, dtype=dtype)
        return made.copy_(_numbers(seed, distribution, x.shape, made.dtype))

    return draw_like


def _integers(
    seed: torch.Tensor, low: int, high: int, size: Sequence[int], dtype: torch.dtype | None = None, **_: Any
) -> torch.Tensor:
    return draw(_PRIMS.inductor_randint.default, low, high, list(size), seed).to(dtype or torch.int64)


def _keep(seed: torch.Tensor, mask: torch.Tensor, probability: float = 0.5, **options: Any) -> torch.Tensor:
    """The mask of a dropout: generated code drops elements that are not above the other probability."""
    return mask.copy_(_numbers(seed, "rand", mask.shape, torch.float32) > 1 - probability)


def _certain_dropout(x: torch.Tensor, p: float, is_training: bool | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The dropout of a GPU if generated code draws no numbers for it; ``None`` if it does. The eager one may draw."""
    if is_training and p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    if is_training and p != 0:
        return None
    return x.clone(), torch.ones_like(x, dtype=torch.bool)


def _dropout(seed: torch.Tensor, x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The dropout of a GPU, as ``torch/_decomp/decompositions.py`` has it."""
    kept = _numbers(seed, "rand", x.shape, x.dtype) > p
    return kept * x * (1.0 / (1.0 - p)), kept


_DRAWN: dict[Any, Callable[..., Any]] = {
    _ATEN.rand.default: _new("rand"),
    _ATEN.randn.default: _new("randn"),
    _ATEN.rand_like.default: _like("rand"),
    _ATEN.randn_like.default: _like("randn"),
    _ATEN.randint.low: _integers,
    _ATEN.randint.default: lambda seed, high, size, **options: _integers(seed, 0, high, size, **options),
    _ATEN.bernoulli.default: lambda seed, p, **_: (_numbers(seed, "rand", p.shape, torch.float32) < p).to(p.dtype),
    _ATEN.bernoulli_.float: _keep,
    _ATEN.native_dropout.default: _dropout,
}


def compile_alone(module: fx.GraphModule, inputs: list[Any]) -> Any:
    """Compiles a graph that Inductor has lowered, outside every mode of this thread."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch_internals.unnoticed_compilation():
        return compile_fx_inner(module, inputs)
