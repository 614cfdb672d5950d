"""Hooks that make gradients non-finite."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, track


@case(
    "hook-normalise-gradient",
    "tensor hook that normalises the gradient of a dead activation",
    "",
    "hooks",
    "nan",
    ["div"],
    node="AddmmBackward0",
    module="enc",
)
def hook_normalise_gradient():
    class Enc(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 3))
            self.bias = nn.Parameter(torch.full((2,), -50.0))

        def forward(self, x):
            h = F.linear(x, self.weight, self.bias)  # ORIGIN
            if h.requires_grad:
                h.register_hook(lambda g: g / g.norm())  # ORIGIN
            return F.relu(h)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = Enc()

        def forward(self, x):
            return self.enc(x).sum()

    net = track(Net())
    loss = net(torch.randn(4, 3))
    loss.backward()
    return loss, net.enc.weight.grad


@case(
    "module-backward-hook",
    "register_full_backward_hook rescales by the largest gradient, which is 0",
    "",
    "hooks",
    "nan",
    ["div"],
    node="BackwardHookFunctionBackward",
    module="fc",
)
def module_backward_hook():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Linear(2, 2)
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            h = self.emb(x)
            return F.relu(self.fc(h))  # ORIGIN

    def rescale(module, grad_in, grad_out):
        return (grad_in[0] / grad_in[0].abs().max(),)  # ORIGIN

    net = Net()
    with torch.no_grad():
        net.fc.bias.fill_(-100.0)
    net.fc.register_full_backward_hook(rescale)
    track(net)
    y = net(torch.randn(3, 2))
    y.sum().backward()
    return y, net.emb.weight.grad


@case(
    "module-backward-pre-hook",
    "register_full_backward_pre_hook divides by the batch's gradient variance",
    "",
    "hooks",
    "nan",
    ["div"],
    node="BackwardHookFunctionBackward",
    module="head",
)
def module_backward_pre_hook():
    net = nn.Sequential()
    net.add_module("body", nn.Linear(2, 2))
    net.add_module("head", nn.Linear(2, 1))

    def whiten(module, grad_output):
        (g,) = grad_output
        return ((g - g.mean()) / g.std(),)  # ORIGIN

    net.head.register_full_backward_pre_hook(whiten)
    track(net)
    y = net(torch.randn(3, 2))  # ORIGIN
    y.mean().backward()
    return y, net.body.weight.grad


@case(
    "post-accumulate-normalise",
    "register_post_accumulate_grad_hook divides .grad by its norm; a frozen branch has none",
    "",
    "hooks",
    "nan",
    ["div_", "div"],
    node="torch::autograd::AccumulateGrad",
    module=None,
)
def post_accumulate_normalise():
    a = torch.tensor([1.0, -2.0], requires_grad=True)
    b = torch.tensor([0.5, 0.5], requires_grad=True)

    def normalise(q):
        q.grad.div_(q.grad.norm())  # ORIGIN

    for p in (a, b):
        p.register_post_accumulate_grad_hook(normalise)
    out = (a * 3 + b * 0.0).sum()  # ORIGIN
    out.backward()
    return out, a.grad, b.grad


@case(
    "leaf-hook-log-gradient",
    "parameter hook takes the log of gradient magnitudes and keeps the sign",
    "",
    "hooks",
    "inf",
    ["log"],
    node="torch::autograd::AccumulateGrad",
    module=None,
    step=2,
)
def leaf_hook_log_gradient():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    w.register_hook(lambda g: torch.log(g.abs()))  # ORIGIN
    opt = torch.optim.SGD([w], lr=0.1)
    for k, x in ((1, [1.0, 1.0]), (2, [0.0, 1.0])):
        mark_step(k)
        opt.zero_grad()
        loss = (w * torch.tensor(x)).sum()  # ORIGIN
        loss.backward()
        opt.step()
    return loss, w.grad, w


@case(
    "node-prehook",
    "a hook on the node itself (grad_fn.register_prehook) rescales by the mean gradient",
    "",
    "hooks",
    "nan",
    ["div"],
    node="TanhBackward0",
    module=None,
)
def node_prehook():
    w = torch.tensor([0.5, -0.5], requires_grad=True)
    h = torch.tanh(w)  # ORIGIN

    def rescale(grads):
        return tuple(g / g.mean() for g in grads)  # ORIGIN

    h.grad_fn.register_prehook(rescale)
    out = (h * torch.tensor([1.0, -1.0])).sum() * 0.0
    out.backward()
    return out, w.grad
