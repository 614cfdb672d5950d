"""diffusers: trains a UNet on noise of a DDPM scheduler, and samples from it with two schedulers.

Bug: images are divided by their own range, and one of them is blank.
"""

import sys

import torch
from diffusers import DDIMScheduler, DDPMScheduler, EulerDiscreteScheduler, UNet2DModel

HAS_BUG = "--bug" in sys.argv
torch.manual_seed(0)
unet = UNet2DModel(
    sample_size=16,
    in_channels=1,
    out_channels=1,
    block_out_channels=(16, 32),
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
scheduler = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)

images = torch.rand(8, 1, 16, 16)
if HAS_BUG:
    images[3] = 0.5
darkest, lightest = images.amin((1, 2, 3), True), images.amax((1, 2, 3), True)
for _ in range(3):
    clean = 2 * (images - darkest) / (lightest - darkest) - 1  # expect: aten::div
    noise = torch.randn_like(clean)
    steps = torch.randint(0, 50, (8,))
    predicted = unet(scheduler.add_noise(clean, noise, steps), steps).sample
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(predicted, noise).backward()
    torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    optimizer.step()

for sampler in (DDIMScheduler(num_train_timesteps=50), EulerDiscreteScheduler(num_train_timesteps=50)):
    sampler.set_timesteps(5)
    sample = torch.randn(2, 1, 16, 16) * sampler.init_noise_sigma
    with torch.no_grad():
        for step in sampler.timesteps:
            sample = sampler.step(unet(sampler.scale_model_input(sample, step), step).sample, step, sample).prev_sample
    print(type(sampler).__name__, sample.mean().item())
