"""captum: attributions of a network's decision by five methods.

Bug: attributions are scaled to their sum, which is zero for an input that is its own baseline.
"""

import sys

import numpy
import torch
from captum.attr import DeepLift, FeatureAblation, GradientShap, IntegratedGradients, KernelShap, Saliency

HAS_BUG = "--bug" in sys.argv
torch.manual_seed(0)
numpy.random.seed(0)  # GradientShap draws from it
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
x = torch.randn(4, 6)
if HAS_BUG:
    x[2] = 0.0
for method in (IntegratedGradients(net), Saliency(net), DeepLift(net), FeatureAblation(net), KernelShap(net)):
    attributed = method.attribute(x, target=1)
    print(type(method).__name__, attributed.abs().mean().item())
attributed = GradientShap(net).attribute(x, baselines=torch.randn(5, 6), target=1)
exact = IntegratedGradients(net).attribute(x, target=1)
share = exact / exact.abs().sum(1, keepdim=True)  # expect: aten::div
print(attributed.mean().item(), share.mean().item())
