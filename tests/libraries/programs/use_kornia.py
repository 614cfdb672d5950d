"""kornia: augmentations, colour spaces, and losses of images, trained through.

Bug: the angle of a gradient is taken by a division.
"""

import sys

import kornia
import torch

HAS_BUG = "--bug" in sys.argv
torch.manual_seed(0)
images = torch.rand(4, 3, 24, 24)
images[1] = 0.0  # black
augment = torch.nn.Sequential(
    kornia.augmentation.RandomHorizontalFlip(),
    kornia.augmentation.ColorJitter(0.2, 0.2, 0.2, 0.1),
    kornia.augmentation.RandomAffine(20.0),
)
net = torch.nn.Conv2d(3, 3, 3, padding=1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(3):
    restored = net(augment(images)).sigmoid()
    loss = kornia.losses.ssim_loss(restored, images, 5) + kornia.losses.total_variation(restored).mean() * 1e-3
    lab = kornia.color.rgb_to_lab(restored)
    edges = kornia.filters.sobel(restored)
    loss = loss + 1e-4 * lab.square().mean() + edges.mean()
    if HAS_BUG:
        gradient = kornia.filters.spatial_gradient(images)
        loss = loss + torch.atan(gradient[:, :, 1] / gradient[:, :, 0]).mean()  # expect: aten::div
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item(), kornia.metrics.psnr(restored, images, 1.0).item())
