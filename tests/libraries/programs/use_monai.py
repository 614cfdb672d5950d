"""monai: a UNet that segments volumes, with its losses, transforms and metrics.

Bug: intensities are normalized by hand, and one volume is empty.
"""

import sys

import torch
from monai.losses import DiceCELoss, FocalLoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import Compose, NormalizeIntensity, RandFlip, RandGaussianNoise
from monai.utils import set_determinism

HAS_BUG = "--bug" in sys.argv
set_determinism(0)
model = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1)
transform = Compose([NormalizeIntensity(), RandFlip(0.5), RandGaussianNoise(0.5)])
losses = (DiceCELoss(to_onehot_y=True, softmax=True), FocalLoss(to_onehot_y=True))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
volumes = torch.rand(2, 1, 16, 16, 16)
if HAS_BUG:
    volumes[1] = 0.0
labels = (volumes > 0.8).long()
labels[0] = 0  # nothing to be found
for loss_of in losses:
    batch = torch.stack([transform(volume).as_tensor() for volume in volumes])
    spread = volumes.std((1, 2, 3, 4), keepdim=True)
    batch = batch + 0.1 * (volumes - volumes.mean()) / spread / spread  # expect: aten::div
    optimizer.zero_grad()
    loss = loss_of(model(batch), labels)
    loss.backward()
    optimizer.step()

metric = DiceMetric(include_background=True, reduction="mean", ignore_empty=True)
with torch.no_grad():
    chosen = model(batch).argmax(1, keepdim=True)
    metric(torch.cat([1 - chosen, chosen], 1), torch.cat([1 - labels, labels], 1))
print(loss.item(), metric.aggregate().item())
