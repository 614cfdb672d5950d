"""The remedies that are tried, in their order: those of the operation, then dtypes, gradients, and the batch."""

from __future__ import annotations

from torchnan.training.guard.remedies import arithmetic, data, gradients, precision, softmax
from torchnan.training.guard.remedies.remedy import Remedy

REMEDIES: tuple[Remedy, ...] = (
    softmax.StableLogarithm(),
    softmax.SubtractMaximum(),
    softmax.FiniteConstant(),
    softmax.AttendSomewhere(),
    softmax.FiniteArguments(),
    arithmetic.ClampDenominator(),
    arithmetic.ClampLogarithm(),
    arithmetic.EpsilonInRoot(),
    arithmetic.EpsilonInDistance(),
    arithmetic.EpsilonInNorm(),
    arithmetic.ClampToDomain(),
    arithmetic.ClampPower(),
    arithmetic.ClampExponent(),
    arithmetic.MeanOverAtLeastOne(),
    arithmetic.PopulationVariance(),
    arithmetic.LargerEpsilon(),
    arithmetic.SeparateEigenvalues(),
    arithmetic.ZeroInfinity(),
    arithmetic.SmallerFactor(),
    gradients.ClampGradient(),
    precision.WiderDtype(),
    gradients.ClipNorm(),
    gradients.LowerLearningRate(),
    data.ReplaceInput(),
    data.SkipRows(),
)
