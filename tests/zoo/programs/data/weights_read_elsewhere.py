"""Bad weights that are read beside the forward pass: casts, penalties, averages, pruning."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.prune as prune

from tests.zoo.framework import case, mark_step, track


@case(
    "cast-after-load-nan-weight",
    "a NaN weight is loaded in float32 and the whole model is then cast with .double()",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="fc.weight",
    module="fc",
    notes="the cast hands the values on; the first computation is in fc",
)
def cast_after_load_nan_weight():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(3)
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(self.norm(x))

    net = Net()
    w = np.ones((2, 3), dtype=np.float32)
    w[1, 1] = np.nan
    net.fc.weight.data = torch.from_numpy(w)  # ORIGIN
    net = track(net.double())
    loss = net(torch.randn(4, 3, dtype=torch.double)).square().mean()
    loss.backward()
    return loss, net.norm.weight.grad


@case(
    "l2-penalty-reads-nan-head",
    "an auxiliary head loaded as NaN is not run, but the L2 penalty over all parameters reads it",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="aux.weight",
    module=None,
    step=1,
    notes="read outside every module",
)
def l2_penalty_reads_nan_head():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.main = nn.Linear(2, 1)
            self.aux = nn.Linear(2, 1, bias=False)

        def forward(self, x):
            return self.main(x)

    net = Net()
    net.aux.weight.data = torch.from_numpy(np.array([[np.nan, 1.0]], dtype=np.float32))  # ORIGIN
    net = track(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    mark_step(1)
    loss = net(torch.ones(1, 2)).sum()
    loss = loss + 1e-4 * sum(p.pow(2).sum() for p in net.parameters())
    loss.backward()
    opt.step()
    return loss, net.main.weight


@case(
    "prototypes-used-outside",
    "class prototypes are a parameter of the model, but the product is computed by the training loop",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="prototypes",
    module=None,
    notes="F.linear outside every module",
)
def prototypes_used_outside():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.prototypes = nn.Parameter(torch.randn(5, 3))
            self.mix = nn.Linear(2, 3)

        def forward(self, x):
            return F.normalize(self.mix(x), dim=1)

    enc = Encoder()
    enc.prototypes.data = torch.from_numpy(np.where(np.arange(15).reshape(5, 3) == 7, np.nan, 1.0).astype(np.float32))
    enc = track(enc)  # ORIGIN
    z = enc(torch.randn(4, 2))
    logits = F.linear(z, enc.prototypes) / 0.1
    loss = F.cross_entropy(logits, torch.tensor([1, 2, 3, 0]))
    loss.backward()
    return loss, enc.mix.weight.grad


@case(
    "temperature-used-outside",
    "logit_scale of a CLIP checkpoint is NaN and is exponentiated in the training loop",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="logit_scale",
    module=None,
    step=1,
)
def temperature_used_outside():
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.visual, self.text = nn.Linear(3, 2), nn.Linear(4, 2)
            self.logit_scale = nn.Parameter(torch.ones([]) * 2.6)

        def forward(self, i, t):
            return F.normalize(self.visual(i), dim=-1), F.normalize(self.text(t), dim=-1)

    clip = Clip()
    clip.load_state_dict(
        {"logit_scale": torch.from_numpy(np.array(np.nan, dtype=np.float32))}, strict=False, assign=True
    )
    clip = track(clip)  # ORIGIN
    opt = torch.optim.AdamW(clip.parameters(), lr=1e-3)
    mark_step(1)
    i, t = clip(torch.randn(3, 3), torch.randn(3, 4))
    logits = clip.logit_scale.exp() * i @ t.t()
    loss = F.cross_entropy(logits, torch.arange(3))
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss, clip.visual.weight


@case(
    "ema-reads-nan-student",
    "only the EMA update reads the NaN of a student layer that is bypassed by stochastic depth",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="blocks.1.weight",
    module=None,
    step=1,
    notes="lerp_ of the teacher outside every module",
)
def ema_reads_nan_student():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(2)])

        def forward(self, x, keep):
            for b, k in zip(self.blocks, keep):
                x = x + b(x) if k else x
            return x

    student = Net()
    teacher = copy.deepcopy(student)
    view = student.blocks[1].weight.detach().numpy()
    view[0, 0] = np.nan  # ORIGIN
    student = track(student)
    opt = torch.optim.SGD([student.blocks[0].weight], lr=0.1)
    mark_step(1)
    student(torch.ones(1, 2), (True, False)).sum().backward()
    opt.step()
    with torch.no_grad():
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.lerp_(s, 0.01)
        return teacher(torch.ones(1, 2), (True, True))


@case(
    "weight-corrupted-between-steps",
    "a monitoring callback writes through a numpy view into a weight after step 2",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="net.2.bias",
    module="net.2",
    step=3,
    notes="finite when PyTorch last wrote it",
)
def weight_corrupted_between_steps():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))

        def forward(self, x):
            return self.net(x)

    def callback(model, k):
        stats = {n: p.detach().numpy() for n, p in model.named_parameters()}
        if k == 2:
            stats["net.2.bias"] -= np.float32("nan")  # ORIGIN
        return {n: float(v.mean()) for n, v in stats.items()}

    net = track(Net())
    opt = torch.optim.Adam(net.parameters())
    for k in range(1, 5):
        mark_step(k)
        loss = net(torch.ones(2, 2)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        callback(net, k)
    return loss, net.net[0].weight


@case(
    "pruned-weight-orig",
    "a pruned convolution (weight_orig, weight_mask) was saved after it had diverged",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="conv.weight_orig",
    module="conv",
    notes="mask * weight_orig runs in a forward pre-hook of conv",
)
def pruned_weight_orig():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 2)
            self.fc = nn.Linear(2, 1)

        def forward(self, x):
            return self.fc(self.conv(x).amax((2, 3)))

    net = Net()
    prune.l1_unstructured(net.conv, "weight", 0.5)
    w = np.ones((2, 1, 2, 2), dtype=np.float32)
    w[0, 0, 1, 1] = np.nan
    net.conv.weight_orig.data = torch.from_numpy(w)  # ORIGIN
    net = track(net)
    loss = net(torch.rand(1, 1, 4, 4)).sum()
    loss.backward()
    return loss, net.fc.weight.grad


@case(
    "encoder-fast-path-nan",
    "nn.TransformerEncoder in eval takes the fused fast path; in_proj_weight of layer 0 is NaN",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="enc.layers.0.self_attn.in_proj_weight",
    module="enc.layers.0",
    notes="the fused kernel is called by the layer, not by its self_attn",
)
def encoder_fast_path_nan():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
            self.enc = nn.TransformerEncoder(layer, 2)

        def forward(self, x):
            return self.enc(x)

    net = Net()
    w = net.enc.layers[0].self_attn.in_proj_weight.detach().numpy().copy()
    w[5, 2] = np.nan
    net.enc.layers[0].self_attn.in_proj_weight.data = torch.from_numpy(w)  # ORIGIN
    net = track(net).eval()
    with torch.inference_mode():
        return net(torch.randn(2, 3, 4)).clone()


@case(
    "cls-token-buffer-cat",
    "a class token kept as a buffer is NaN; it is concatenated before the first layer",
    "",
    "nan-weights",
    "nan",
    origin="buffer",
    name="embed.cls",
    module="embed",
    notes="read by the cat in embed",
)
def cls_token_buffer_cat():
    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cls", torch.zeros(1, 1, 4))
            self.proj = nn.Linear(2, 4)

        def forward(self, x):
            return torch.cat([self.cls.expand(len(x), -1, -1), self.proj(x)], 1)

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = Embed()
            self.norm = nn.LayerNorm(4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.norm(self.embed(x))[:, 0])

    vit = Vit()
    vit.embed.cls = torch.from_numpy(np.full((1, 1, 4), np.nan, dtype=np.float32))  # ORIGIN
    vit = track(vit)
    loss = F.cross_entropy(vit(torch.randn(2, 3, 2)), torch.tensor([0, 1]))
    loss.backward()
    return loss, vit.head.weight.grad


@case(
    "focal-prior-inf-bias",
    "the prior bias -log((1-p)/p) of a detector head is computed with p = 0: -inf is filled in",
    "",
    "init",
    "inf",
    origin="parameter",
    name="cls.bias",
    module="cls",
    notes="a bias is never infinite on purpose",
)
def focal_prior_inf_bias():
    class Head(nn.Module):
        def __init__(self, prior):
            super().__init__()
            self.cls = nn.Linear(2, 3)
            with np.errstate(all="ignore"):
                nn.init.constant_(self.cls.bias, float(-np.log((1 - prior) / np.float64(prior))))  # ORIGIN

        def forward(self, x, y):
            logits = self.cls(x)
            p = logits.sigmoid()
            pt = p * y + (1 - p) * (1 - y)
            return ((1 - pt) ** 2 * F.binary_cross_entropy_with_logits(logits, y, reduction="none")).mean()

    head = track(Head(0.0))
    loss = head(torch.ones(2, 2), torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    loss.backward()
    return loss, head.cls.weight.grad
