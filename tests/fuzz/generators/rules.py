"""One operator that has a bound rule, with arguments that tempt the rule: extreme scales, odd layouts, odd scalars."""

from __future__ import annotations

import collections
import functools
import random
import re
from collections.abc import Callable, Sequence

import torch

from tests.fuzz.builder import templates
from tests.fuzz.extremes import CONTEXTS, DTYPES, LAYOUTS, any_scale, epsilon, filled, scalar, tensor, weight
from tests.fuzz.program import NAMES
from tests.fuzz.values import FORMS

OTHER_DTYPES = [*DTYPES, "torch.int64", "torch.int8", "torch.bool"]
# A kernel that ignores strides reads other memory, or leaves a part of its result unwritten. With these layouts it
# reads memory of the same tensor, and its result is contiguous: the program is the same in each run.
LAYOUTS_IN_BOUNDS = ["contiguous", "offset", "padded", "strided"]
LINE = re.compile(r"(\w+): (.*)")

Calls = Callable[[random.Random], list[str]]
_calls: dict[str, list[Calls]] = collections.defaultdict(list)


def _of(*operators: str) -> Callable[[Calls], Calls]:
    def add(calls: Calls) -> Calls:
        for operator in operators:
            _calls[operator].append(calls)
        return calls

    return add


@functools.cache
def calls() -> dict[str, list[Calls]]:
    """Returns, by operator with a bound rule, what makes the lines that call it."""
    found = {name: list(made) for name, made in _calls.items()}
    for line in templates("rules"):
        match = LINE.fullmatch(line)
        assert match is not None, line
        operator, call = match.groups()
        found.setdefault(operator, []).append(lambda _, call=call: [f"r = {call}"])  # type: ignore[misc]
    return found


class Arguments:
    """Fills the holes of a call: tensors become arguments of the program, everything else is written in place."""

    def __init__(self, choice: random.Random) -> None:
        self.choice = choice
        self.dtype = choice.choice(DTYPES)
        self.made: list[str] = []
        self.prepared: list[str] = []
        self.sizes = self._sizes()
        self._named: dict[str, str] = {}
        self._masks = choice.random() < 0.08
        self._scale: float | None = None
        # Factors in pairs: one near the largest number, and one so small that their products are not.
        self._pair = choice.choice([1.0, 2.0**8, 2.0**40]) if choice.random() < 0.15 else None
        if choice.random() < 0.4:  # everything at one scale, often one at which differences or sums overflow
            largest = torch.finfo(NAMES[self.dtype]).max
            self._scale = choice.choice([any_scale(choice, self.dtype), largest / 1.5, largest / 4])

    def fill(self, line: str) -> str:
        return filled(self.choice, line, self._value)

    def _sizes(self) -> dict[str, int]:
        choice = self.choice
        m, n = choice.choice([1, 2, 3, 5, 17, 33, 64]), choice.choice([1, 2, 3, 7, 16, 64, 65, 129, 500])
        if choice.random() < 0.35:  # more elements than are always read
            m, n = choice.choice([(64, 66), (5, 1000), (1, 5000), (2500, 2), (65, 65), (300, 16), (128, 64)])
        h, w = choice.choice([(4, 5), (5, 4), (9, 7), (16, 17), (30, 40)])
        return {"m": m, "n": n, "k": choice.choice([1, 3, 16, 70]), "b": choice.choice([1, 2, 3]), "h": h, "w": w}

    def _size(self, name: str) -> int:
        return self.sizes[name] if name in self.sizes else int(name)

    def _shape(self, names: str) -> tuple[int, ...]:
        return tuple(self._size(name) for name in names.split(",") if name)

    def _value(self, hole: str) -> str:
        kind, _, rest = hole.partition(":")
        if kind in ("x", "y", "z"):
            if kind not in self._named:
                self._named[kind] = self.tensor((self.sizes["m"], self.sizes["n"]))
            return self._named[kind]
        simple = {
            "s": lambda: scalar(self.choice, self.dtype),
            "u": lambda: weight(self.choice),
            "e": lambda: epsilon(self.choice, self.dtype),
            "d": lambda: str(self.choice.randrange(2)),
            "bool": lambda: str(self.choice.random() < 0.5),
            "dtype": lambda: self.dtype,
            "dt": lambda: self.choice.choice(DTYPES),
            "ss": lambda: f"[{scalar(self.choice, self.dtype)}, {scalar(self.choice, self.dtype)}]",
            "q": lambda: self.tensor(()),
            "f": lambda: self.tensor(self._broadcast()),
            "o": self._other,
            "M": self._mask,
            "p": lambda: self.tensor((self.sizes["m"], self.sizes["n"]), nonnegative=True),
        }
        if kind in simple:
            return simple[kind]()
        if kind in ("T", "P", "R"):
            layouts = LAYOUTS_IN_BOUNDS if kind == "R" else LAYOUTS
            return self.tensor(self._shape(rest), nonnegative=kind == "P", layouts=layouts)
        if kind == "B":
            return f"(torch.rand({self._shape(rest)}) < {self.choice.choice([0.0, 0.5, 0.5, 0.9, 1.0])})"
        if kind == "I":
            limit, _, shape = rest.partition(";")
            return f"torch.randint(0, {self._size(limit)}, {self._shape(shape)})"
        return str(self._size(kind))

    def _broadcast(self) -> tuple[int, ...]:
        m, n = self.sizes["m"], self.sizes["n"]
        return self.choice.choice([(m, n), (m, n), (n,), (m, 1), ()])

    def _other(self) -> str:
        if self.choice.random() < 0.5:
            return self.tensor((self.sizes["m"], self.sizes["n"]))
        dtype = self.choice.choice(OTHER_DTYPES)
        if dtype in DTYPES:
            return self.tensor(self._broadcast(), dtype)
        return f"torch.randint(-100, 100, {self._broadcast()}).mul({self.choice.choice(['1', '2**40'])}).to({dtype})"

    def _mask(self) -> str:
        m, n = self.sizes["m"], self.sizes["n"]
        share = self.choice.choice(["0.3", "0.5", "1.0"])
        return f"torch.zeros({m}, {n}, dtype={self.dtype}).masked_fill(torch.rand({m}, {n}) < {share}, -math.inf)"

    def tensor(
        self,
        shape: tuple[int, ...],
        dtype: str | None = None,
        nonnegative: bool = False,
        layouts: Sequence[str] = LAYOUTS,
    ) -> str:
        """Adds a tensor, and returns its name."""
        choice, dtype = self.choice, dtype or self.dtype
        name = f"a{len(self.made)}"
        form = "masked" if self._masks and choice.random() < 0.5 else None
        scale = self._scale if dtype == self.dtype else None
        if self._pair is not None and dtype == self.dtype:
            largest = torch.finfo(NAMES[dtype]).max
            scale = self._pair / largest if len(self.made) % 2 else largest
        self.made.append(f"{name} = {tensor(choice, shape, dtype, scale, form)}")
        layout = choice.choice(layouts) if shape else "contiguous"
        nonnegative = nonnegative or choice.random() < 0.1
        self.prepared.append(f"{name} = laid_out({name}{'.abs()' if nonnegative else ''}, {layout!r})")
        return name


def generate(seed: int) -> str:
    """Returns a program that calls one operator, and others to prepare its arguments."""
    choice = random.Random(seed)
    return program_of(choice.choice(sorted(calls())), choice)


def program_of(operator: str, choice: random.Random) -> str:
    arguments = Arguments(choice)
    lines = [arguments.fill(line) for line in choice.choice(calls()[operator])(choice)]
    names = "".join(f"{line.split(' ')[0]}, " for line in arguments.made)
    body = [*arguments.prepared, *lines]
    if choice.random() < 0.2:
        body = [f"with {choice.choice(CONTEXTS)}:", *(f"    {line}" for line in body)]
    program = ["def make():", "    aten = torch.ops.aten", *(f"    {line}" for line in arguments.made)]
    program += [f"    return aten, {names}", "", f"def program(aten, {names}):", *(f"    {line}" for line in body)]
    return "\n".join([*program, "    del aten", "    return dict(locals())"]) + "\n"


def _optional(choice: random.Random, hole: str) -> str:
    return choice.choice(["None", hole])


@_of("native_layer_norm", "native_layer_norm_backward")
def _layer_norm(choice: random.Random) -> list[str]:
    given = choice.choice(["x, ({n},), mean, rstd", "x, ({n},), {T:m,1}.contiguous(), {P:m,1}.contiguous()"])
    return [
        f"x, w, b = {{x}}, {_optional(choice, '{T:n}')}, {_optional(choice, '{T:n}')}",
        "y, mean, rstd = aten.native_layer_norm(x, ({n},), w, b, {e})",
        f"r = aten.native_layer_norm_backward({{y}}, {given}, w, b, [True, w is not None, b is not None])",
    ]


@_of("native_group_norm", "native_group_norm_backward")
def _group_norm(choice: random.Random) -> list[str]:
    groups = choice.choice([1, 2, 4])
    given = choice.choice(["mean, rstd", "mean, rstd", f"{{T:b,{groups}}}.contiguous(), {{P:b,{groups}}}.contiguous()"])
    sizes = f"{{b}}, 4, {{h}} * {{w}}, {groups}"
    return [
        f"x, w, b = {{T:b,4,h,w}}, {_optional(choice, '{R:4}')}, {_optional(choice, '{R:4}')}",
        "how = <torch.contiguous_format|torch.contiguous_format|torch.channels_last>",
        "x, g = x.contiguous(memory_format=how), {T:b,4,h,w}.contiguous(memory_format=how)",
        f"y, mean, rstd = aten.native_group_norm(x, w, b, {sizes}, {{e}})",
        "mask = [True, w is not None, b is not None]",
        f"r = aten.native_group_norm_backward(g, x, {given}, w, {sizes}, mask)",
    ]


@_of("native_batch_norm", "native_batch_norm_backward")
def _batch_norm(choice: random.Random) -> list[str]:
    shape, channels, first = choice.choice(
        [("b,4,h,w", "4", "x[0, :, 0, 0]"), ("m,n", "n", "x[0]"), ("b,k,h", "k", "x[0, :, 0]")]
    )
    trains = choice.random() < 0.6
    eps = "{e}" if choice.random() < 0.5 else "1e-5"
    mean = choice.choice([f"{{R:{channels}}}", f"-{first}.contiguous()"])
    moving = f"{mean}, {{R:{channels}}}.abs()" if not trains or choice.random() < 0.5 else "None, None"
    parameter = f"{{T:{channels}}}"
    return [
        f"x, w, b = {{T:{shape}}}, {_optional(choice, parameter)}, {_optional(choice, parameter)}",
        f"moving = ({moving})",
        f"y, mean, rstd = aten.native_batch_norm(x, w, b, *moving, {trains}, <0.0|0.1|1.0|0.5>, {eps})",
        f"r = aten.native_batch_norm_backward({{T:{shape}}}, x, w, *moving, mean, rstd, {trains}, {eps}, [True] * 3)",
    ]


@_of("convolution", "convolution_backward")
def _convolution(choice: random.Random) -> list[str]:
    dims, groups, channels, kernel = (choice.choice(sizes) for sizes in ([1, 2, 2, 3], [1, 2], [2, 4, 6], [1, 2, 3, 5]))
    transposed = choice.random() < 0.4
    batch = choice.choice(["b", "b", "16"])  # NNPACK is for 16 images or more
    spatial = ",".join(str(choice.choice([5, 9, 12])) for _ in range(dims))
    sides = ",".join([str(kernel)] * dims)
    weight = f"4,{channels // groups},{sides}" if transposed else f"{channels},{4 // groups},{sides}"
    stride, padding, dilation = ([choice.choice(values)] * dims for values in ([1, 1, 2], [0, 1], [1, 1, 2]))
    how = f"{stride}, {padding}, {dilation}, {transposed}, {[0] * dims}, {groups}"
    x, g = f"{{T:{batch},4,{spatial}}}", f"laid_out(S({choice.randrange(10**6)}, tuple(y.shape), {{dtype}}, "
    g += f"{choice.choice(['1.0', '1e4', '1e-4', '2.0**60'])}, 'normal'), {choice.choice(LAYOUTS)!r})"
    return [
        f"x, w, b = {x}, {{T:{weight}}}, {_optional(choice, f'{{T:{channels}}}')}",
        f"y = aten.convolution(x, w, b, {how})",
        f"g = {g}",
        f"r = aten.convolution_backward(g, x, w, [{channels}], {how}, [True, True, True])",
    ]


@_of("max_pool2d_with_indices", "max_pool2d_with_indices_backward")
def _max_pool2d(choice: random.Random) -> list[str]:
    return _max_pool(choice, 2)


@_of("max_pool3d_with_indices", "max_pool3d_with_indices_backward")
def _max_pool3d(choice: random.Random) -> list[str]:
    return _max_pool(choice, 3)


def _max_pool(choice: random.Random, dims: int) -> list[str]:
    kernel = choice.choice([1, 2, 3, 4])
    padding = choice.choice([0, kernel // 2])
    spatial = ",".join(str(choice.choice([1, 2, 3, 5, 9, 16])) for _ in range(dims))  # a window may miss a small plane
    how = f"[{kernel}], [{choice.choice([1, 2, 3])}], [{padding}], [{choice.choice([1, 1, 2, 3])}], {{bool}}"
    return [
        f"x = {{T:b,4,{spatial}}}",
        f"how = {how}",
        f"y, where = aten.max_pool{dims}d_with_indices(x, *how)",
        *_gradient(choice),
        # PyTorch takes the first place of a window that misses the plane, and writes there.
        "if 0 <= int(where.min()) and int(where.max()) < x[0, 0].numel():",
        f"    r = aten.max_pool{dims}d_with_indices_backward(g, x, *how, where)",
    ]


def _gradient(choice: random.Random, of: str = "y") -> list[str]:
    """Makes a gradient of the shape of a result, which only the call knows."""
    scale, form = choice.choice(["1.0", "{s}", "2.0**15", "2.0**126", "2.0**-14"]), choice.choice(FORMS)
    layout = choice.choice(LAYOUTS)
    made = f"S({choice.randrange(10**6)}, tuple({of}.shape), {{dtype}}, abs(float({scale})), {form!r})"
    return [f"g = laid_out({made}, {layout!r})"]


@_of("avg_pool2d", "avg_pool2d_backward")
def _avg_pool(choice: random.Random) -> list[str]:
    kernel = choice.choice([1, 2, 3])
    sizes = f"[{kernel}], [{choice.choice([1, 2, 3])}], [{choice.choice([0, kernel // 2])}], {{bool}}, {{bool}}"
    return [
        f"x, how = {{T:b,4,h,w}}, ({sizes}, <None|None|1|-3|7>)",
        "y = aten.avg_pool2d(x, *how)",
        *_gradient(choice),
        "r = aten.avg_pool2d_backward(g, x, *how)",
    ]


@_of("_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward")
def _adaptive_pool(choice: random.Random) -> list[str]:
    return [
        "x = {T:b,4,h,w}",
        "y = aten._adaptive_avg_pool2d(x, [<1|3|9>, <1|2|7>])",
        *_gradient(choice),
        "r = aten._adaptive_avg_pool2d_backward(g, x)",
    ]


@_of(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)
def _attention(choice: random.Random) -> list[str]:
    queries, keys, width = (
        choice.choice(sizes) for sizes in ([1, 3, 17, 64, 130], [1, 3, 17, 64, 130], [1, 4, 16, 64])
    )
    mask = choice.choice(["None", "None", f"{{T:{queries},{keys}}}", "masked"])
    if mask == "masked":
        mask = f"torch.zeros({queries}, {keys}, dtype={{dtype}}).masked_fill({{B:{queries},{keys}}}, -math.inf)"
    causal = mask == "None" and choice.random() < 0.4
    scale = choice.choice(["None", "None", "1.0", "-1.0", "{s}"])
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    return [
        f"q, k, v = {{R:b,2,{queries},{width}}}, {{R:b,2,{keys},{width}}}, {{R:b,2,{keys},{width}}}",
        f"mask, scale = {mask}, {scale}",
        f"y, lse = {name}(q, k, v, 0.0, {causal}, attn_mask=mask, scale=scale)",
        *_gradient(choice),
        f"r = {name}_backward(g, q, k, v, y, lse, 0.0, {causal}, attn_mask=mask, scale=scale)",
    ]


@_of("nll_loss_backward")
def _nll_loss(choice: random.Random) -> list[str]:
    reduction = choice.choice([0, 1, 2])
    g = "{T:m}" if reduction == 0 else "{q}"
    return [
        f"x, w = {{x}}, {_optional(choice, '{P:n}')}",
        "x = <x|x.log_softmax(1)>",
        "t = torch.where(torch.rand({m}) < <0.0|0.5|1.0>, -100, {I:n;m})",
        f"y, total = aten.nll_loss_forward(x, t, w, {reduction}, -100)",
        f"r = aten.nll_loss_backward({g}, x, t, w, {reduction}, -100, <total|total|{{q}}>)",
    ]


@_of("nll_loss2d_backward")
def _nll_loss2d(choice: random.Random) -> list[str]:
    reduction = choice.choice([0, 1, 2])
    g = "{T:b,h,w}" if reduction == 0 else "{q}"
    return [
        f"x, w = {{T:b,4,h,w}}, {_optional(choice, '{P:4}')}",
        "t = torch.where(torch.rand({b}, {h}, {w}) < <0.0|0.5|1.0>, -100, {I:4;b,h,w})",
        f"y, total = aten.nll_loss2d_forward(x, t, w, {reduction}, -100)",
        f"r = aten.nll_loss2d_backward({g}, x, t, w, {reduction}, -100, total)",
    ]


@_of("_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_backward")
def _embedding_bag(choice: random.Random) -> list[str]:
    mode = choice.choice([0, 1, 2])
    factors = "{T:k}" if mode == 0 and choice.random() < 0.5 else "None"
    how = f"{{bool}}, {mode}, False"
    forward = choice.choice(["_embedding_bag", "_embedding_bag_forward_only"])
    return [
        f"x, i, factors, how = {{x}}, {{I:m;k}}, {factors}, ({how})",
        "offsets = torch.tensor([0, {k} // 3, {k} // 2])",
        f"y, bag, size, largest = aten.{forward}(x, i, offsets, *how, factors, False, <-1|0>)",
        *_gradient(choice),
        "r = aten._embedding_bag_backward(g, i, offsets, bag, size, largest, {m}, *how, factors, -1)",
    ]


@_of("mkldnn_rnn_layer")
def _lstm(choice: random.Random) -> list[str]:
    width, hidden = choice.choice([1, 5, 16]), choice.choice([1, 7, 16])
    weights = f"{{T:{4 * hidden},{width}}}, {{T:{4 * hidden},{hidden}}}, {{T:{4 * hidden}}}, {{T:{4 * hidden}}}"
    state = f"({{T:1,b,{hidden}}}, {{T:1,b,{hidden}}})"
    return [
        "with torch.set_grad_enabled({bool}):",
        f"    r = torch.lstm({{T:k,b,{width}}}, {state}, ({weights}), True, 1, 0.0, {{bool}}, False, False)",
    ]
