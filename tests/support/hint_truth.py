"""Tests the sentence of a hint on its operation, run again in float64.

A value that overflows float32 is finite there; a pole, or a value outside the domain, is not.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NUMBER = r"-?[\d.]+(?:e[+-]?\d+)?"


@dataclasses.dataclass
class Call:
    """An operation with its arguments, as they were before it, and its results."""

    function: Any
    arguments: dict[str, Any]
    results: list[torch.Tensor]

    def tensor(self, name: str) -> torch.Tensor:
        """Returns the argument that a hint names."""
        element = re.fullmatch(r"(\w+)\[(\d+)\]", name)
        value = self.arguments[element[1]][int(element[2])] if element else self.arguments[name]
        return torch.as_tensor(value).detach()

    def results_in_float64(self, largest: float = torch.inf) -> list[torch.Tensor]:
        """Runs it again, with arguments cut off at `largest`."""
        with torch.no_grad():
            made = self.function(**tree_map(lambda value: _in_float64(value, largest), self.arguments))
        return [one for one in (made if isinstance(made, list | tuple) else [made]) if isinstance(one, torch.Tensor)]


def _parts(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _in_float64(value: Any, largest: float) -> Any:
    if value is torch.float32:
        return torch.float64
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype == torch.complex64:
        return value.to(torch.complex128)
    return value.double().clamp(-largest, largest) if value.dtype == torch.float32 else value.clone()


class CallRecorder(TorchDispatchMode):
    """Keeps the operations that make a NaN or an Inf from finite arguments, or another kind from non-finite ones."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names = [argument.name for argument in function._schema.arguments]
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        before = tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, given)
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, list | tuple) else given.values() if result is None else [result]
        tensors = [x for x in made if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())]
        if any(not bool(x.isfinite().all()) for x in tensors):
            self.calls.append(Call(function, before, [x.detach().clone() for x in tensors]))
        return result


Check = Callable[[Call, "re.Match[str]", int], "str | None"]


def holds_zeros(call: Call, found: re.Match[str], _: int) -> str | None:
    return None if bool((call.tensor(found["x"]) == 0).any()) else f"{found['x']} holds no zeros"


def holds_its_extremes(call: Call, found: re.Match[str], _: int) -> str | None:
    """The numbers in brackets are the smallest and the largest of the finite ones."""
    x = call.tensor(found["x"]).double()
    x = x[x.isfinite()]
    if x.numel() == 0:
        return "nothing there is finite"
    told = [float(number) for number in re.findall(NUMBER, found["range"])]
    words = re.findall(r"down to|from|up to|to", found["range"])
    least, most = x.min().item(), x.max().item()
    expected = {"down to": [least], "up to": [most], "from": [least, most]}[words[0]]
    is_right = all(abs(a - b) <= 1e-5 * abs(b) + 1e-45 for a, b in zip(told, expected, strict=True))
    return None if is_right else f"{expected}"


def remains(call: Call, _: re.Match[str], output: int) -> str | None:
    """In float64 it is not finite either."""
    again = call.results_in_float64()[output]
    return None if not bool(again.isfinite().all()) else "finite in float64"


def is_overflow(call: Call, _: re.Match[str], output: int) -> str | None:
    """At least one non-finite element is finite in float64, or with smaller arguments."""
    made = call.results[output]
    for again in (call.results_in_float64(), call.results_in_float64(largest=30.0)):
        if bool(again[output][~made.isfinite()].isfinite().any()):
            return None
    return "not finite in float64 either"


def is_beyond(call: Call, found: re.Match[str], output: int) -> str | None:
    """The result itself is too large, wherever it is infinite."""
    again, made = (_parts(x[output]) for x in (call.results_in_float64(), call.results))
    limit = torch.finfo(made.dtype).max
    of_finite = again[made.isinf()].abs()
    return None if bool((of_finite > limit * (1 - 1e-6)).all()) else f"in float64 {of_finite.tolist()[:4]}"


def value_is_beyond(_: Call, found: re.Match[str], __: int) -> str | None:
    return None if abs(float(found["value"])) > abs(float(found["limit"])) else "it fits"


def both(*checks: Check) -> Check:
    def run(call: Call, found: re.Match[str], output: int) -> str | None:
        return next((wrong for check in checks if (wrong := check(call, found, output)) is not None), None)

    return run


def either(*checks: Check) -> Check:
    def run(call: Call, found: re.Match[str], output: int) -> str | None:
        return min((check(call, found, output) for check in checks), key=lambda wrong: wrong is not None)

    return run


def counts(call: Call, found: re.Match[str], output: int) -> str | None:
    """If the hint counts the results of a zero divisor, the count is right."""
    told, made = found["times"], call.results[output]
    kind = made.isnan() if "0/0" in found.string else made.isinf()
    actual = int((kind & torch.broadcast_to(call.tensor(found["x"]) == 0, made.shape)).sum())
    expected = actual if told is None else 1 if told in ("once", "one") else int(told.split()[0])
    return None if actual == expected else f"{actual} results of zeros"


def value_leaves_the_range(call: Call, found: re.Match[str], output: int) -> str | None:
    """Each infinite element is too large in float64, too."""
    again, made = (_parts(x[output]) for x in (call.results_in_float64(), call.results))
    return None if bool((again[made.isinf()].abs() > torch.finfo(made.dtype).max).any()) else "it fits"


def row_is_masked(call: Call, found: re.Match[str], _: int) -> str | None:
    index = [int(part) for part in found["index"].split(",")]
    x, dim = call.tensor("self"), call.arguments["dim"]
    index[dim] = slice(None)  # type: ignore[call-overload]
    return None if bool((x[tuple(index)] == -torch.inf).all()) else "the row is not masked"


def holds_infinities(call: Call, found: re.Match[str], _: int) -> str | None:
    return None if bool(call.tensor(found["x"]).isinf().any()) else f"{found['x']} holds no infinity"


def some_argument_holds_infinities(call: Call, _: re.Match[str], __: int) -> str | None:
    tensors = [x for x in tree_leaves(call.arguments) if isinstance(x, torch.Tensor)]
    return None if any(bool(x.isinf().any()) for x in tensors) else "no argument holds an infinity"


def has_no_elements(call: Call, found: re.Match[str], _: int) -> str | None:
    return None if call.tensor(found["x"]).numel() == 0 else f"{found['x']} has elements"


X = r"(?P<x>[\w\[\]]+)"
TIMES = r"(?:, (?P<times>once|\d+ times))?"
PLACES = r"; in (?P<times>one|\d+) places?"
RANGE = r"\((?P<range>[^)]*)\)"
POLE = both(holds_zeros, remains)
OUTSIDE = both(holds_its_extremes, remains)
CANCELLING = both(holds_infinities, remains)

# The sentences of hints, and the condition for each.
SENTENCES: Sequence[tuple[str, Check]] = (
    (rf"{X} (?:holds zeros|is 0): [\w /]+ is inf{TIMES}", both(holds_zeros, remains, counts)),
    (rf"{X} (?:holds zeros|is 0){PLACES} [\w ]+ is 0 too: 0/0 is NaN", both(holds_zeros, remains, counts)),
    (rf"{X} is 0, and so is [\w ]+: 0/0 is NaN", both(holds_zeros, remains)),
    (rf"{X} (?:holds zeros|is 0): 0/0 is NaN where [\w ]+ is 0 too", both(holds_zeros, remains)),
    (rf"{X} (?:holds zeros|is 0): [\w /]+ is inf, and NaN where [\w ]+ is 0 too", POLE),
    (rf"{X} (?:holds zeros|is 0): \w+ by 0 is NaN{TIMES}", POLE),
    (rf"{X} (?:holds zeros|is 0) where self is 0 too: \w+ is not defined there", POLE),
    (rf"{X} holds zeros, and a product on the way is beyond .*", both(holds_zeros, is_overflow)),
    (rf"{X} from .* to .*: logit has no slope outside \[0, 1\]", remains),
    (rf"{X} (?:holds zeros|is 0): 0 to a negative power .* is inf, or a power is beyond .*", either(POLE, is_overflow)),
    (rf"{X} (?:holds zeros|is 0)[:,] .*", POLE),
    (rf"{X} holds zeros or negative integers, the poles of lgamma", remains),
    (rf"{X} holds negative integers, the poles of \w+", remains),
    (rf"{X} (?:held|holds) (?:1 or -1|0 or 1|-1)\b.*", remains),
    (
        rf"{X} holds (?:negative values|values (?:outside|below|of)) ?[^(]*{RANGE}: .*",
        both(holds_its_extremes, remains),
    ),
    (rf"{X} held (?:zeros|negative values|values (?:outside|below)[^:]*): (?!their power).*", remains),
    (rf"{X} held .*: (?:their power|1/x) .*beyond .*", lambda *_: None),  # zeros, or an overflow
    (rf"[\w ]+ of (?:{NUMBER}|what \w+ held) is more than \w+ can hold", value_leaves_the_range),
    (rf"-x log x of {NUMBER} is more than \w+ can hold", value_leaves_the_range),
    (rf"(?:1/)?{NUMBER}(?: to the power {NUMBER})? is more than \w+ can hold", value_leaves_the_range),
    (r"the result is beyond .*", is_beyond),
    (r"the result, or a value on the way to it, is beyond .*", is_overflow),
    (rf"the (?:largest|lowest) value, (?P<value>{NUMBER}), is beyond (?P<limit>{NUMBER}), .*", value_is_beyond),
    (r".* divided by .* as small as .* is beyond .*", is_overflow),
    (r".* is as small as .*: the quotient is beyond .*", is_overflow),
    (rf"{X} from .* to .*: their difference is beyond .*", is_overflow),
    (rf"{X} (?:up|down) to .*: its variance is beyond .*", is_overflow),
    (r"the row of self at \[(?P<index>[\d,]+)\] is -inf everywhere: .*", row_is_masked),
    (r"a row of \w+ is (?:-inf|False) everywhere: .*", remains),
    (
        rf"{X} (?:and \w+ hold (?:zeros and )?infinities|holds (?:infinities|\+inf))\b.*",
        both(holds_infinities, remains),
    ),
    (r"it computed with the infinities of .*", some_argument_holds_infinities),
    (rf"{X} has no elements: .*", has_no_elements),
    (r"the variance of (?:a single element|\d+ elements) of .*", remains),
    (r"there are no targets: .*", remains),
    (r"all \d+ targets are ignore_index .*", remains),
    (r"the weights of all targets are 0: .*", remains),
    (r"an input is too short for its target, .*", remains),
    (r"eps is 0, and the .*", remains),
    (r"eps is 0: where both moments are 0, .*", lambda *_: None),  # of an optimizer: a kernel of many tensors
    (r"running_var holds .*", remains),
    (r"the norm of a slice of v is 0: .*", remains),
    (r"\w+ is singular, or .*", lambda *_: None),  # singular, or an overflow
    (r"\w+ is singular: the logarithm of a determinant of 0 is -inf", remains),
    (r"(?:the slope of|hypot has|a norm has|a standard deviation of 0|the squares of both) .*", remains),
    (r"two (?:eigenvalues|singular values) are equal: .*", remains),
    (r"a singular value is 0: .*", remains),
    (r"\w+ is (?:NaN|-?inf)", lambda *_: None),  # a number that the report shows beside it
    (r"either query .*", lambda *_: None),  # an overflow, or a masked row
    (r"query .* their products are beyond .*", is_overflow),
)


def wrong_in(hint: str, call: Call, output: int) -> str | None:
    """Returns the error in a hint about a call's output, ``None`` if the hint is true."""
    for sentence, check in SENTENCES:
        found = re.fullmatch(sentence, hint)
        if found is not None:
            return check(call, found, output)
    return "a sentence that nothing here can check"
