"""torchmetrics: metrics of a classifier and of a regression, with a class that never occurs.

Bug: a signal-to-noise ratio of an estimate that is exact.
"""

import sys

import torch
import torchmetrics

HAS_BUG = "--bug" in sys.argv
torch.manual_seed(0)
metrics = torchmetrics.MetricCollection(
    [
        torchmetrics.Accuracy("multiclass", num_classes=5),
        torchmetrics.F1Score("multiclass", num_classes=5, average="macro"),
        torchmetrics.AUROC("multiclass", num_classes=5),
        torchmetrics.ConfusionMatrix("multiclass", num_classes=5),
        torchmetrics.CalibrationError("multiclass", num_classes=5),
        torchmetrics.CohenKappa("multiclass", num_classes=5),
    ]
)
for _ in range(3):
    metrics.update(torch.randn(16, 5).softmax(1), torch.randint(0, 4, (16,)))
print({name: value.tolist() for name, value in metrics.compute().items()})

x, y = torch.randn(32), torch.randn(32)
for metric in (torchmetrics.MeanSquaredError(), torchmetrics.R2Score(), torchmetrics.PearsonCorrCoef()):
    print(type(metric).__name__, metric(x, y).item())

clean = torch.randn(64) * (0.0 if HAS_BUG else 1.0)
noisy = clean.clone() if HAS_BUG else clean + 0.1 * torch.randn(64)
power, error = clean.square().sum(), (clean - noisy).square().sum()
ratio = torchmetrics.MeanMetric(nan_strategy="ignore")
decibel = 10 * torch.log10(power / error)  # expect: aten::div
print(decibel.item(), ratio(decibel).item())
