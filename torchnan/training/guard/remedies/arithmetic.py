"""Remedies for arithmetic outside of its domain: divisors, logarithms, roots, powers, exponentials."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchnan.training.guard.remedies.call import Call
from torchnan.training.guard.remedies.change import UNCHANGED, rerun
from torchnan.training.guard.remedies.origin import Origin
from torchnan.training.guard.remedies.remedy import CallRemedy, away_from_zero, clamp, plain, tiny


class ClampDenominator(CallRemedy):
    """Keeps a divisor away from zero, with its sign."""

    answers = "a divisor that is zero, or so small that the quotient or its gradient overflows"
    because = (
        "0/0 and x/0 become finite; quotients of other divisors keep their bits, and the clamped ones pass no gradient"
    )
    _DIVISORS = {
        "div": "other",
        "divide": "other",
        "true_divide": "other",
        "fmod": "other",
        "remainder": "other",
        "reciprocal": "self",
        "addcdiv": "tensor2",
    }
    operators = frozenset(_DIVISORS)

    def text(self, origin: Origin, call: Call) -> str:
        return f"clamp(min={tiny(call.dtype):g}) of the denominator of {call.operator}"

    def replace(self, call: Call) -> Any:
        if plain(call.operator) == "addcdiv" and "tensor2" not in call:
            return UNCHANGED
        divisor = self._DIVISORS[plain(call.operator)]
        return rerun(call, **{divisor: lambda value: away_from_zero(value, tiny(call.dtype))})


class _PositiveArgument(CallRemedy):
    """Keeps the argument of a function positive."""

    _where: str  # the argument is, seen from the function

    def text(self, origin: Origin, call: Call) -> str:
        return f"clamp(min={tiny(call.dtype):g}) {self._where} {call.operator}"

    def replace(self, call: Call) -> Any:
        return rerun(call, self=lambda value: clamp(value, tiny(call.dtype), None))


class ClampLogarithm(_PositiveArgument):
    """Keeps the argument of a logarithm positive."""

    answers = "the logarithm of zero or of a negative number"
    because = (
        "the logarithm becomes a large negative number; other elements keep their bits, and the clamped ones "
        "pass no gradient"
    )
    operators = frozenset({"log", "log2", "log10"})
    _where = "before"


class EpsilonInRoot(_PositiveArgument):
    """Keeps the argument of a square root positive."""

    answers = "the root of zero, whose slope is infinite, or of a negative number that rounding has made"
    because = "the slope of the root is bounded; other elements keep their bits, and the clamped ones pass no gradient"
    operators = frozenset({"sqrt", "rsqrt"})
    _where = "under"


class EpsilonInDistance(CallRemedy):
    """Moves one of two coordinates away from zero."""

    answers = "the gradient of an angle or a length of (0, 0), which is 0/0"
    because = "the gradient is defined everywhere else"
    operators = frozenset({"atan2", "arctan2", "hypot"})

    def text(self, origin: Origin, call: Call) -> str:
        return f"at least {tiny(call.dtype):g} for the second argument of {call.operator}"

    def replace(self, call: Call) -> Any:
        return rerun(call, other=lambda value: away_from_zero(value, tiny(call.dtype)))


class EpsilonInNorm(CallRemedy):
    """Moves the elements of a norm away from zero."""

    answers = "the gradient of a norm or a distance below 1, or of cdist, at zero"
    because = "such norms have a slope at zero that is infinite or 0/0, and a finite one elsewhere"
    operators = frozenset({"norm", "linalg_vector_norm", "cdist", "dist", "pdist", "cosine_similarity"})
    _ARGUMENTS = ("x1", "self")

    def text(self, origin: Origin, call: Call) -> str:
        return f"at least {tiny(call.dtype):g} for each element of the argument of {call.operator}"

    def replace(self, call: Call) -> Any:
        argument = next(name for name in self._ARGUMENTS if name in call)
        return rerun(call, **{argument: lambda value: away_from_zero(value, tiny(call.dtype))})


class ClampToDomain(CallRemedy):
    """Keeps the argument of a function inside the interval where it and its slope are finite."""

    answers = "an argument at the end of a function's domain or beyond: a cosine of 1.0000001, a probability of 1"
    because = "rounding alone has put it there; other elements keep their bits, and the clamped ones pass no gradient"
    _DOMAINS: dict[str, tuple[float | None, float | None]] = {
        **dict.fromkeys(("acos", "arccos", "asin", "arcsin", "atanh", "arctanh", "erfinv"), (-1.0, 1.0)),
        **dict.fromkeys(("acosh", "arccosh"), (1.0, None)),
        **dict.fromkeys(("logit", "special_ndtri"), (0.0, 1.0)),
        **dict.fromkeys(("lgamma", "digamma", "mvlgamma"), (0.0, None)),
        "log1p": (-1.0, None),
        "binary_cross_entropy": (0.0, 1.0),
    }
    operators = frozenset(_DOMAINS)

    def text(self, origin: Origin, call: Call) -> str:
        low, high = self._limits(call)
        limits = ", ".join(f"{name}={value:.7g}" for name, value in (("min", low), ("max", high)) if value is not None)
        return f"clamp({limits}) before {call.operator}"

    def replace(self, call: Call) -> Any:
        return rerun(call, self=lambda value: clamp(value, *self._limits(call)))

    def _limits(self, call: Call) -> tuple[float | None, float | None]:
        low, high = self._DOMAINS[plain(call.operator)]
        margin = max(1e-6, torch.finfo(call.dtype).eps)
        return None if low is None else low + margin, None if high is None else high - margin


class ClampPower(CallRemedy):
    """Keeps the base of a power where the power and its slope are finite."""

    answers = "a negative number to a fraction, zero to a negative number, or a power that overflows"
    because = "other elements keep their bits, and the clamped ones pass no gradient"
    operators = frozenset({"pow", "square"})

    def text(self, origin: Origin, call: Call) -> str:
        low, high, least = self._limits(call)
        if least is not None:
            return f"at least {least:g} for the magnitude of the base of {call.operator}"
        upper = f", max={high:.3g}" if high < torch.finfo(call.dtype).max else ""
        return f"clamp(min={low:.3g}{upper}) before {call.operator}"

    def replace(self, call: Call) -> Any:
        low, high, least = self._limits(call)
        if least is not None:
            return rerun(call, self=lambda value: away_from_zero(value, least))
        return rerun(call, self=lambda value: clamp(value, low, high))

    def _limits(self, call: Call) -> tuple[float, float, float | None]:
        exponent = _exponent(call)
        if isinstance(exponent, torch.Tensor):
            return tiny(call.dtype), torch.finfo(call.dtype).max, None
        exponent = float(exponent)
        if exponent < 0 and exponent.is_integer():
            return 0.0, 0.0, tiny(call.dtype)
        largest = torch.finfo(call.dtype).max
        high = largest if abs(exponent) < 1 else math.exp(math.log(largest) / 2 / abs(exponent))
        return -high if exponent.is_integer() else tiny(call.dtype), high, None


def _exponent(call: Call) -> Any:
    return 2 if plain(call.operator) == "square" else call["exponent"]


class ClampExponent(CallRemedy):
    """Keeps the argument of an exponential small enough."""

    answers = "an exponential that overflows"
    because = (
        "its square is still finite, and so are most products; other elements keep their bits, and the "
        "clamped ones pass no gradient"
    )
    _BASES = {"exp": math.e, "exp2": 2.0, "expm1": math.e, "sinh": math.e, "cosh": math.e}
    operators = frozenset(_BASES)

    def text(self, origin: Origin, call: Call) -> str:
        return f"clamp(max={self._limit(call):g}) before {call.operator}"

    def replace(self, call: Call) -> Any:
        limit = self._limit(call)
        low = -limit if call.operator in ("sinh", "cosh") else None
        return rerun(call, self=lambda value: clamp(value, low, limit))

    def _limit(self, call: Call) -> int:
        base = self._BASES[plain(call.operator)]
        return int(math.log(torch.finfo(call.dtype).max) / math.log(base) / 2)


class MeanOverAtLeastOne(CallRemedy):
    """Divides a mean by the number of its elements, or by 1 if there are none."""

    answers = "a mean over nothing: an empty tensor, or labels that are all ignored"
    because = "a sum over nothing is 0; of a mean over something it changes no more than its rounding"
    _LOSSES = frozenset({"cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"})
    operators = frozenset({"mean", *_LOSSES})

    def text(self, origin: Origin, call: Call) -> str:
        return "sum / max(count, 1) in place of the mean"

    def replace(self, call: Call) -> Any:
        if call.operator in self._LOSSES:
            return self._loss(call)
        if call["self"].numel() > 0:
            return UNCHANGED
        dim = call.get("dim")
        return call["self"].sum(dim or (), keepdim=bool(dim) and call["keepdim"])

    def _loss(self, call: Call) -> Any:
        target = call["target"]
        if call["reduction"] != 1 or target.is_floating_point():
            return UNCHANGED
        kept = target != call["ignore_index"]
        weight = call["weight"]
        count = kept.sum() if weight is None else weight[target[kept]].sum()
        return call.run(reduction=2) / away_from_zero(count, tiny(call.dtype))


class PopulationVariance(CallRemedy):
    """Divides a variance by n in place of n - 1."""

    answers = "the variance or standard deviation of one element: the unbiased estimate divides by n - 1 = 0"
    because = "the variance of one element is 0; of n elements it is smaller by a factor of 1 - 1/n"
    operators = frozenset({"std", "var", "std_mean", "var_mean"})

    def text(self, origin: Origin, call: Call) -> str:
        return f"correction=0 in {call.operator}"

    def replace(self, call: Call) -> Any:
        return call.run(unbiased=False) if "unbiased" in call else call.run(correction=0)


class LargerEpsilon(CallRemedy):
    """Raises the epsilon of a normalization or an optimizer."""

    answers = "a normalization, a distance or an optimizer whose epsilon is 0, or too small for its dtype"
    because = "a row that does not vary is divided by epsilon; of others it changes little"
    operators = frozenset()

    def fits(self, origin: Origin, call: Call) -> bool:
        return "eps" in call and isinstance(call["eps"], float | None)

    def text(self, origin: Origin, call: Call) -> str:
        return f"eps={self._epsilon(call):g} in {call.operator}"

    def replace(self, call: Call) -> Any:
        return rerun(call, eps=lambda value: max(value or 0.0, self._epsilon(call)))

    def _epsilon(self, call: Call) -> float:
        return 1e-3 if call.dtype is torch.float16 else 1e-5


class SeparateEigenvalues(CallRemedy):
    """Adds small numbers of different size to the diagonal of a matrix."""

    answers = (
        "a matrix that is singular, or has equal eigenvalues or singular values, whose gradient divides by "
        "their difference"
    )
    because = "it separates them; every result changes by as much as the numbers added"
    _ARGUMENTS = ("A", "self", "input")
    operators = frozenset(
        {
            *("linalg_eigh", "linalg_svd", "linalg_eig", "linalg_inv", "linalg_pinv", "linalg_slogdet", "linalg_det"),
            *("svd", "inverse", "pinverse", "logdet", "slogdet", "det", "linalg_cholesky", "cholesky", "linalg_qr"),
        }
    )

    def text(self, origin: Origin, call: Call) -> str:
        return f"1e-4 * (1, 2, ...) on the diagonal before {call.operator}"

    def replace(self, call: Call) -> Any:
        argument = next(name for name in self._ARGUMENTS if name in call)
        matrix = call[argument]
        small = torch.zeros_like(matrix)
        diagonal = small.diagonal(dim1=-2, dim2=-1)
        diagonal += 1e-4 * torch.arange(1, diagonal.shape[-1] + 1, device=matrix.device)
        return call.run(**{argument: matrix + small})


class ZeroInfinity(CallRemedy):
    """Has the CTC loss count an example that has no alignment as 0."""

    answers = "a CTC target that is longer than its input"
    because = "no alignment exists, so the example says nothing; other examples keep their losses"
    operators = frozenset({"ctc_loss"})

    def text(self, origin: Origin, call: Call) -> str:
        return "zero_infinity=True in ctc_loss"

    def replace(self, call: Call) -> Any:
        return rerun(call, zero_infinity=lambda _: True)


class SmallerFactor(CallRemedy):
    """Halves the number that a scalar is multiplied by, until the product is finite."""

    answers = "a loss that is multiplied by a scale that is too large for its dtype"
    because = "the gradients shrink by the same factor, which the program divides by"
    operators = frozenset({"mul", "multiply"})

    def fits(self, origin: Origin, call: Call) -> bool:
        return super().fits(origin, call) and call["self"].dim() == 0 and self._halvings(call) > 0

    def text(self, origin: Origin, call: Call) -> str:
        return f"loss scale / {2 ** self._halvings(call)}"

    def replace(self, call: Call) -> Any:
        halvings = self._halvings(call)
        return rerun(call, other=lambda value: value * 0.5**halvings) if halvings else UNCHANGED

    def _halvings(self, call: Call) -> int:
        scale = call["other"]
        if isinstance(scale, torch.Tensor) and scale.dim() == 0 and not scale.requires_grad:
            scale = scale.item()
        if not isinstance(scale, float | int) or not math.isfinite(scale) or abs(scale) <= 1:
            return 0
        product = abs(call["self"].item() * scale)
        room = product / torch.finfo(call["self"].dtype).max
        return 1 + int(math.log2(room)) if math.isfinite(room) and room >= 1 else 0
