"""Overflow in half precision, exponentials and epsilons that vanish."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, track


@case(
    "probunet-normal-scale",
    "Normal(scale=exp(log_sigma)) with a conv output in the hundreds; KL is inf - inf",
    "stefanknegt/Probabilistic-Unet-Pytorch#14",
    "overflow-exp",
    "inf",
    "exp",
    module="posterior",
)
def probunet_normal_scale():
    class AxisGaussian(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 1)

        def forward(self, x):
            mu, log_sigma = self.conv(x).mean((2, 3)).chunk(2, dim=1)
            sigma = log_sigma.exp()  # ORIGIN
            return torch.distributions.Normal(mu, sigma, validate_args=False)

    class ProbUnet(nn.Module):
        def __init__(self):
            super().__init__()
            self.prior, self.posterior = AxisGaussian(), AxisGaussian()

        def forward(self, x, seg):
            p, q = self.prior(x), self.posterior(seg)
            return torch.distributions.kl_divergence(q, p).mean()

    net = ProbUnet()
    with torch.no_grad():
        net.posterior.conv.weight.fill_(1.0)
    loss = track(net)(torch.randn(1, 1, 4, 4), torch.full((1, 1, 4, 4), 1000.0))
    loss.backward()
    return loss, net.posterior.conv.weight.grad


@case(
    "contrastive-exp-overflow",
    "contrastive softmax written with exp(sim / T) and no maximum subtraction",
    "JIA-Lab-research/Context-Aware-Consistency#14",
    "overflow-exp",
    "inf",
    "exp",
    module="contrast",
)
def contrastive_exp_overflow():
    class Contrast(nn.Module):
        def forward(self, a, b):
            e = torch.exp(a @ b.t() / 0.1)  # ORIGIN
            prob = e.diagonal() / e.sum(1)
            return -torch.log(prob + 1e-8).mean()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(4, 4)
            self.contrast = Contrast()

        def forward(self, x):
            z = self.enc(x) * 4.0
            return self.contrast(z, z)

    net = track(Net())
    loss = net(torch.randn(4, 4) * 3)
    loss.backward()
    return loss, net.enc.weight.grad


@case(
    "ciou-half-eps",
    "CIoU clamps its denominator with 1e-16, which is 0 in half precision: 0/0",
    "Megvii-BaseDetection/YOLOX#1565",
    "eps-underflow",
    "nan",
    "div",
    module="iou_loss",
)
def ciou_half_eps():
    class Ciou(nn.Module):
        def forward(self, p, t):
            d = (p[:, :2] - t[:, :2]).square().sum(1)
            c = (p[:, 2:] - t[:, 2:]).square().sum(1)
            return d / (c + 1e-16)  # ORIGIN

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.iou_loss = Ciou()

        def forward(self, p, t):
            return self.iou_loss(p, t)

    t = torch.tensor([[1.0, 1.0, 2.0, 2.0], [3.0, 2.0, 1.0, 4.0]]).half()
    p = t.clone()
    p[1] += 1.0
    return track(Head())(p, t)


@case(
    "convnext-channel-ln-square",
    "channels-first layer norm squares half activations: (x - u)^2 overflows silently",
    "facebookresearch/ConvNeXt#80",
    "overflow-fp16",
    "inf",
    "pow",
    module="stages.norm",
    debatable="silent: the network output stays finite (and wrong)",
    notes="x / sqrt(inf) is 0, so the network output is finite but constant",
)
def convnext_channel_ln_square():
    class ChannelNorm(nn.Module):
        def forward(self, x):
            u = x.mean(1, keepdim=True)
            s = (x - u).pow(2).mean(1, keepdim=True)  # ORIGIN
            self.seen = s
            return (x - u) / (s.float() + 1e-6).sqrt()

    class Stages(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = ChannelNorm()

        def forward(self, x):
            return self.norm(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = Stages()

        def forward(self, x):
            return self.stages(x)

    net = track(Net())
    net((torch.randn(1, 4, 2, 2) * 600).half())
    return net.stages.norm.seen


@case(
    "rmsnorm-half-square",
    "fused-style RMS norm squares half inputs without upcasting",
    "pytorch/pytorch#133085",
    "overflow-fp16",
    "inf",
    "mul",
    module="model.norm",
    debatable="silent: the network output stays finite (and wrong)",
    notes="like convnext-channel-ln-square; the inf is in the variance",
)
def rmsnorm_half_square():
    class RmsNorm(nn.Module):
        def forward(self, x):
            sq = x * x  # ORIGIN
            self.ms = sq.mean(-1, keepdim=True)
            return x * (self.ms.float() + 1e-6).rsqrt().half()

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.ModuleDict({"norm": RmsNorm()})

        def forward(self, x):
            return self.model["norm"](x)

    m = track(Llama())
    m(torch.tensor([[1.0, -300.0, 20.0, 4.0]]).half())
    return m.model["norm"].ms


@case(
    "vae-decoder-downcast",
    "an upcast decoder block hands float32 values above 65504 back to half",
    "huggingface/diffusers#7188",
    "overflow-fp16",
    "inf",
    ["_to_copy", "to", "copy_"],
    module="decoder.up.1",
)
def vae_decoder_downcast():
    class Up(nn.Module):
        def __init__(self, gain):
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 1)
            nn.init.constant_(self.conv.weight, gain)

        def forward(self, x):
            y = self.conv(x.float())
            return y.half()  # ORIGIN

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ModuleList([Up(30.0), Up(40.0)])

        def forward(self, z):
            for u in self.up:
                z = u(z)
            z = z.float()
            return (z - z.mean()) / (z.std() + 1e-6)

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = Decoder()

        def forward(self, z):
            return self.decoder(z)

    return track(Vae())((torch.rand(1, 2, 2, 2) * 30 + 20).half())


@case(
    "ppo-ratio-exp",
    "PPO ratio exp(new - old) of an action that was nearly impossible; inf times a 0 advantage",
    "Unity-Technologies/ml-agents#4870",
    "overflow-exp",
    "inf",
    "exp",
    module=None,
    step=2,
)
def ppo_ratio_exp():
    pi = track(nn.Linear(2, 1))
    opt = torch.optim.SGD(pi.parameters(), lr=0.01)
    obs, act, adv = torch.randn(3, 2), torch.zeros(3, 1), torch.tensor([1.0, 0.0, -1.0])
    for k, old in enumerate([torch.zeros(3), torch.tensor([-0.5, -200.0, 0.0])], 1):
        mark_step(k)
        logp = -0.5 * (act - pi(obs)).pow(2).squeeze(-1)
        ratio = torch.exp(logp - old)  # ORIGIN
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, pi.weight


@case(
    "lcn-negative-variance",
    "local variance E[x^2] - E[x]^2 of a bright flat image rounds below 0; sqrt gives NaN",
    "anthonymlortiz/lcn#4",
    "log-negative",
    "nan",
    "sqrt",
    module="lcn",
)
def lcn_negative_variance():
    class Lcn(nn.Module):
        def forward(self, x):
            mean = F.avg_pool2d(x, 3, 1)
            var = F.avg_pool2d(x * x, 3, 1) - mean * mean
            std = torch.sqrt(var)  # ORIGIN
            return (x[:, :, 1:-1, 1:-1] - mean) / (std + 1e-5)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lcn = Lcn()

        def forward(self, x):
            return self.lcn(x)

    return track(Net())(torch.rand(1, 1, 12, 12) * 0.01 + 1000.3)
