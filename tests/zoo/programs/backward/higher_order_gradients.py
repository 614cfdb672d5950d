"""Gradients of gradients."""

import torch
import torch.nn as nn

from tests.zoo.framework import case, mark_step, track


@case(
    "wgan-gp-dead-critic",
    "WGAN-GP: sqrt of the squared gradient norm of a critic that is flat there",
    "",
    "double-backward",
    "inf",
    ["div", "mul"],
    node="SqrtBackward0",
    module=None,
    step=1,
)
def wgan_gp_dead_critic():
    critic = nn.Sequential(nn.Linear(2, 3), nn.LeakyReLU(0.0), nn.Linear(3, 1))
    with torch.no_grad():
        critic[0].bias.fill_(-10.0)
    track(critic)
    opt = torch.optim.Adam(critic.parameters())
    mark_step(1)
    x = torch.randn(4, 2, requires_grad=True)
    score = critic(x)
    (g,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    norm = torch.sqrt((g**2).sum(1))  # ORIGIN
    loss = score.mean() + 10 * ((norm - 1) ** 2).mean()
    loss.backward()
    opt.step()
    return loss, critic[0].weight.grad, critic[0].weight


@case(
    "force-matching-contact",
    "forces by autograd.grad inside the model; |x|**1.5 has no second derivative at 0",
    "",
    "double-backward",
    "nan",
    ["pow", "mul"],
    node="PowBackward0",
    module="ff",
    notes="the node was made by the first backward: the line is that of autograd.grad",
)
def force_matching_contact():
    class ForceField(nn.Module):
        def __init__(self):
            super().__init__()
            self.k = nn.Parameter(torch.tensor(2.0))
            self.shift = nn.Parameter(torch.tensor([0.0, 0.0]))

        def forward(self, x):
            overlap = torch.abs(x + self.shift)
            energy = self.k * overlap.pow(1.5).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)  # ORIGIN
            return energy, -force

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.ff = ForceField()

        def forward(self, x):
            return self.ff(x)

    m = track(Model())
    x = torch.tensor([0.0, 0.7], requires_grad=True)
    _, force = m(x)
    loss = (force - torch.tensor([-1.0, -1.0])).pow(2).sum()
    loss.backward()
    return loss, force, m.ff.shift.grad


@case(
    "score-matching-inner-grad",
    "denoising score matching: the score itself (autograd.grad in the loss) is inf",
    "",
    "double-backward",
    "inf",
    ["div", "mul"],
    node="SqrtBackward0",
    module="energy",
    step=1,
)
def score_matching_inner_grad():
    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            r = x.square().sum(-1).sqrt()  # ORIGIN
            return (self.scale * r).sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.energy = Energy()

        def forward(self, x):
            return self.energy(x)

    net = track(Net())

    def dsm(x):
        x = x.detach().requires_grad_()
        score = -torch.autograd.grad(net(x), x, create_graph=True)[0]
        return (score + x).pow(2).mean()

    mark_step(1)
    loss = dsm(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    loss.backward()
    return loss, net.energy.scale.grad


@case(
    "maml-inner-adam",
    "MAML with a differentiable Adam inner step: sqrt of a second moment that is 0",
    "",
    "double-backward",
    "nan",
    ["div", "mul"],
    node="SqrtBackward0",
    module=None,
)
def maml_inner_adam():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0]])  # the second feature never fires
    inner = (x @ w).pow(2).mean()
    (g,) = torch.autograd.grad(inner, w, create_graph=True)
    m, v = 0.1 * g, 0.001 * g * g
    denom = v.sqrt() + 1e-8  # ORIGIN
    fast = torch.addcdiv(w, m, denom, value=-0.01)
    outer = (fast * torch.tensor([1.0, 1.0])).sum().pow(2)
    outer.backward()
    return outer, w.grad


@case(
    "functional-hessian",
    "torch.autograd.functional.hessian of |x| ** 1.5: the first sweep is finite, the second is not",
    "",
    "double-backward",
    "nan",
    ["pow", "mul"],
    node="PowBackward0",
    module=None,
    notes="the node was made by the first sweep, inside hessian()",
)
def functional_hessian():
    def energy(x):
        return x.abs().pow(1.5).sum()

    x = torch.tensor([0.0, 1.0])
    h = torch.autograd.functional.hessian(energy, x)  # ORIGIN
    return h
