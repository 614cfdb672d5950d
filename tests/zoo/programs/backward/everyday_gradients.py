"""Training scripts whose values are finite and whose gradients are not."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, track


@case(
    "triplet-of-equal-images",
    "a triplet loss takes the root of a squared distance that is 0: anchor and positive are one image",
    "",
    "metric-learning",
    "inf",
    node="SqrtBackward0",
    module=None,
    step=2,
)
def triplet_of_equal_images():
    net = track(nn.Linear(4, 3))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    a, b = torch.rand(2, 4), torch.rand(2, 4)
    for k, positive in enumerate((a + 0.1, a), 1):
        mark_step(k)
        x, y, z = net(a), net(positive), net(b)
        near = (x - y).square().sum(-1).sqrt()  # ORIGIN
        far = (x - z).square().sum(-1).sqrt()
        loss = F.relu(near - far + 1.0).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.weight


@case(
    "variance-of-collapsed-features",
    "VICReg's deviation without its epsilon: every feature of a batch is the same",
    "",
    "self-supervised",
    "inf",
    node="SqrtBackward0",
    module="variance",
    step=1,
)
def variance_of_collapsed_features():
    class Variance(nn.Module):
        def forward(self, z):
            return F.relu(1 - z.var(0).sqrt()).mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.variance = nn.Linear(3, 2), Variance()

        def forward(self, x):
            return self.variance(self.fc(x))

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    mark_step(1)
    loss = net(torch.zeros(4, 3))
    loss.backward()
    opt.step()
    return loss, net.fc.weight


@case(
    "straight-through-square-root",
    "a Function whose forward pass is guarded, and whose backward pass divides by what was guarded",
    "",
    "custom-function",
    "nan",
    ["div"],
    node="RootBackward",
    module="gate",
    step=1,
)
def straight_through_square_root():
    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.clamp(min=0).sqrt()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y.sign() / (2 * y)

    class Gate(nn.Module):
        def forward(self, x):
            return Root.apply(x)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.gate = nn.Linear(2, 3), Gate()
            nn.init.constant_(self.fc.bias, -5.0)

        def forward(self, x):
            return self.gate(self.fc(x)).mean()

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    mark_step(1)
    loss = net(torch.rand(4, 2))
    loss.backward()
    opt.step()
    return loss, net.fc.weight


@case(
    "where-of-a-logarithm",
    "log(x) where x > 0, else 0: the branch that is not taken has a gradient all the same",
    "",
    "losses-by-hand",
    "nan",
    node="LogBackward0",
    module=None,
    step=1,
)
def where_of_a_logarithm():
    net = track(nn.Linear(2, 2))
    nn.init.zeros_(net.weight)
    with torch.no_grad():
        net.bias.copy_(torch.tensor([0.0, 2.0]))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    mark_step(1)
    x = net(torch.rand(3, 2))
    loss = torch.where(x > 0, torch.log(x), torch.zeros_like(x)).mean()  # ORIGIN
    loss.backward()
    opt.step()
    return loss, net.weight


@case(
    "per-sample-norm-of-nothing",
    "the gradient of a root of a sum of squares for each sample, by vmap; one sample is 0",
    "",
    "func",
    "inf",
    node="SqrtBackward0",
    module=None,
    step=None,
)
def per_sample_norm_of_nothing():
    weight = torch.randn(3, 2)

    def loss(w, x):
        return (x @ w).square().sum().sqrt()  # ORIGIN

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(
        weight, torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0]])
    )
    return gradients, weight


@case(
    "hook-to-unit-length",
    "a hook scales the gradient of a shared encoder to unit length, where one task has none",
    "",
    "multi-task",
    "nan",
    ["div"],
    node="AddmmBackward0",
    module="encoder",
    step=2,
)
def hook_to_unit_length():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x):
            h = self.encoder(x)
            h.register_hook(lambda g: g / g.norm())  # ORIGIN
            return self.head(h)

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for k, weight in enumerate((1.0, 0.0), 1):
        mark_step(k)
        loss = weight * net(torch.rand(2, 3)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.encoder.weight
