"""Clean: infinities that PyTorch's own formulas repair."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, case, mark_step, track


@case(
    "clean-masked-formulas",
    "backward formulas that make NaN and mask it: std, norm, dist, cumprod, renorm, sinc, x ** 0",
    "",
    "clean",
    "clean",
)
def clean_masked_formulas():
    x = torch.zeros(2, 3, requires_grad=True)
    tiny = torch.tensor([1e-25, 1.0], requires_grad=True)
    e = torch.tensor([0.0], requires_grad=True)
    total = (
        x.std()
        + torch.dist(x, torch.zeros(2, 3))
        + x.norm(p=2, dim=1).sum()
        + x.cumprod(1).sum()
        + torch.renorm(x, 2, 0, 1.0).sum()
        + torch.sinc(tiny).sum()
        + x[0].pow(e).sum()
        + tiny.norm(p=3)
        + F.lp_pool1d(x[None], 2, 3).sum()
        + F.normalize(x, eps=1e-30).sum()
    )
    total.backward()
    return total, x.grad, tiny.grad, e.grad


@case(
    "clean-masked-fill-kills",
    "the NaN gradient of a dead attention row ends in the masked_fill before the softmax",
    "",
    "clean",
    "clean",
)
def clean_masked_fill_kills():
    lin = track(nn.Linear(4, 12))
    q, k, v = lin(torch.randn(2, 3, 4)).chunk(3, -1)
    allowed = torch.ones(3, 3).tril(-1).bool()
    p = torch.softmax((q @ k.transpose(1, 2)).masked_fill(~allowed, -INF), -1)
    y = torch.where(allowed.any(-1, keepdim=True), p, torch.zeros_like(p)) @ v
    opt = torch.optim.SGD(lin.parameters(), lr=0.1)
    y.sum().backward()
    opt.step()
    return y, lin.weight.grad, lin.weight


@case("clean-hook-cleans", "tensor hook replaces the NaN gradient of sqrt at 0 by 0", "", "clean", "clean")
def clean_hook_cleans():
    net = track(nn.Linear(2, 2))
    h = net(torch.randn(3, 2))
    d = (h - h.detach()).pow(2)
    d.register_hook(lambda g: torch.nan_to_num(g, 0.0, 0.0, 0.0))
    s = d.sqrt().sum()
    s.backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    return s, net.weight.grad, net.weight


@case(
    "clean-unused-input-grad",
    "autograd.grad towards two inputs; the NaN one is thrown away by the program",
    "",
    "clean",
    "clean",
)
def clean_unused_input_grad():
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    y = (x.sqrt() * w).sum()
    _, gw = torch.autograd.grad(y, [x, w])
    del _
    with torch.no_grad():
        w -= 0.1 * gw
    return y, gw, w


@case(
    "clean-skip-by-norm",
    "the loop looks at the gradient norm and skips the step when it is not finite",
    "",
    "clean",
    "clean",
)
def clean_skip_by_norm():
    net = track(nn.Linear(2, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = None
    for k in (1, 2):
        mark_step(k)
        h = net(torch.randn(3, 2))
        target = h.detach() if k == 1 else torch.zeros(3, 2)
        loss = (h - target).pow(2).sum().sqrt()
        opt.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if torch.isfinite(norm):
            opt.step()
    return loss, net.weight


@case(
    "clean-scaler-unscale-skip",
    "scaler.unscale_() and clipping before scaler.step(): the overflow is skipped as it should",
    "",
    "clean",
    "clean",
)
def clean_scaler_unscale_skip():
    net = track(nn.Linear(4, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    x = torch.randn(8, 4)
    for k in range(1, 14):
        mark_step(k)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out.float(), torch.full((8, 2), 5.0))
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
    return loss, net.weight
