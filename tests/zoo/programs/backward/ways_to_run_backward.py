"""Ways to run the backward pass: torch.func, threads, retained graphs."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, run_threads, track


@case(
    "vmap-grad-per-sample",
    "per-sample gradients with vmap(grad): one pair of points coincides",
    "",
    "functorch",
    "inf",
    ["div", "mul"],
    node="SqrtBackward0",
    module=None,
)
def vmap_grad_per_sample():
    def dist(w, x, y):
        d = w * (x - y)
        return d.pow(2).sum().sqrt()  # ORIGIN

    w = torch.tensor([1.0, 2.0])
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    y = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    per_sample = torch.vmap(torch.func.grad(dist), in_dims=(None, 0, 0))(w, x, y)
    return per_sample


@case(
    "func-grad-functional-call",
    "torch.func.grad over functional_call: loss module with log of a subnormal",
    "",
    "functorch",
    "inf",
    ["div", "mul", "reciprocal"],
    node="LogBackward0",
    module="nll",
)
def func_grad_functional_call():
    class Nll(nn.Module):
        def forward(self, p):
            return -torch.log(p).mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mu = nn.Parameter(torch.tensor([0.0, 1.0]))
            self.nll = Nll()

        def forward(self, x):
            return self.nll(torch.exp(-0.5 * (x - self.mu) ** 2))

    net = track(Net())
    params = {k: v.detach() for k, v in net.named_parameters()}
    grads = torch.func.grad(lambda p, x: torch.func.functional_call(net, p, (x,)))(params, torch.tensor([13.9, 1.5]))
    new = {k: params[k] - 0.1 * grads[k] for k in params}
    return grads["mu"], new["mu"]


@case(
    "jacrev-arm-singularity",
    "jacrev of inverse kinematics at full reach: asin(1)",
    "",
    "functorch",
    "inf",
    ["rsqrt", "mul", "div"],
    node="AsinBackward0",
    module=None,
)
def jacrev_arm_singularity():
    def ik(p):
        reach = p[0] / 2.0
        elbow = torch.asin(reach)  # ORIGIN
        return torch.stack([elbow, p[1] - elbow])

    jac = torch.func.jacrev(ik)(torch.tensor([2.0, 0.1]))
    return jac


@case(
    "backward-in-worker-thread",
    "graph built by the main thread, backward() called in a worker (parameter server)",
    "",
    "threads",
    "inf",
    ["div", "mul"],
    node="SqrtBackward0",
    module="loss",
)
def backward_in_worker_thread():
    class Rmse(nn.Module):
        def forward(self, a, b):
            mse = F.mse_loss(a, b)
            return torch.sqrt(mse)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, 2.0]))
            self.loss = Rmse()

        def forward(self, x):
            return self.loss(self.w * x, torch.tensor([1.0, 4.0]))

    net = track(Net())
    loss = net(torch.tensor([1.0, 2.0]))
    run_threads(loss.backward)
    return loss, net.w.grad


@case(
    "graph-from-worker-thread",
    "each worker builds its part of the graph; the main thread runs backward over both",
    "",
    "threads",
    "nan",
    ["div", "mul"],
    node="SqrtBackward0",
    module=None,
)
def graph_from_worker_thread():
    w = torch.tensor([0.0, 4.0], requires_grad=True)

    def left():
        return torch.where(w > 0, w.sqrt(), w)  # ORIGIN

    def right():
        return (w + 1.0).sqrt()

    a, b = run_threads(left, right)
    (a + b).sum().backward()
    return a, b, w.grad


@case(
    "second-backward-retained",
    "retain_graph: the second loss on the same graph reaches the root of a zero",
    "",
    "retain-graph",
    "inf",
    ["div", "mul"],
    node="SqrtBackward0",
    module="trunk",
    step=2,
)
def second_backward_retained():
    class Trunk(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, 2.0]))

        def forward(self, x):
            h = self.w * x
            return h, (h - torch.tensor([1.0, 2.0])).pow(2).sum().sqrt()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = Trunk()

        def forward(self, x):
            return self.trunk(x)

    net = track(Net())
    h, rmse = net(torch.ones(2))
    mark_step(1)
    h.mean().backward(retain_graph=True)
    first = net.trunk.w.grad.clone()
    mark_step(2)
    rmse.backward()
    return first, net.trunk.w.grad


@case(
    "inplace-chain",
    "everything in place: sub_, pow_, sqrt_; the root of a zero",
    "",
    "sqrt-grad",
    "inf",
    ["div", "mul"],
    node="SqrtBackward0",
    module="rms",
)
def inplace_chain():
    class Rms(nn.Module):
        def forward(self, x, y):
            d = x.sub(y)
            d.pow_(2)
            s = d.sum(-1)
            s.sqrt_()  # ORIGIN
            return s

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.rms = Rms()

        def forward(self, x):
            h = self.fc(x)
            return self.rms(h, h.detach())

    net = track(Net())
    out = net(torch.randn(3, 2))
    out.sum().backward()
    return out, net.fc.weight.grad


@case(
    "sparse-embedding-norm",
    "sparse embedding gradients: distance between a word and itself",
    "",
    "sqrt-grad",
    "inf",
    ["div", "mul"],
    node="SqrtBackward0",
    module="metric",
    step=1,
)
def sparse_embedding_norm():
    class Metric(nn.Module):
        def forward(self, a, b):
            return (a - b).pow(2).sum(-1).sqrt()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(5, 3, sparse=True)
            self.metric = Metric()

        def forward(self, i, j):
            return self.metric(self.emb(i), self.emb(j))

    net = track(Net())
    opt = torch.optim.SparseAdam(net.parameters(), lr=0.1)
    mark_step(1)
    loss = net(torch.tensor([0, 1]), torch.tensor([0, 3])).sum()
    loss.backward()
    opt.step()
    return loss, net.emb.weight


@case(
    "float-power-double",
    "torch.float_power goes through float64 and back: infinite slope at 0",
    "",
    "pow-grad",
    "inf",
    ["pow", "mul"],
    node="PowBackward0",
    module=None,
)
def float_power_double():
    mag = torch.tensor([[0.0, 0.5], [0.2, 0.9]], requires_grad=True)
    compressed = torch.float_power(mag, 0.3)  # ORIGIN
    loss = F.mse_loss(compressed, torch.full((2, 2), 0.5, dtype=torch.float64))
    loss.backward()
    return loss, mag.grad


@case(
    "meta-addcdiv",
    "torch.addcdiv with a vanishing divisor: quotient 1e25, slope 1e50",
    "",
    "overflow",
    "inf",
    ["div", "mul", "neg"],
    node="AddcdivBackward0",
    module="cell",
)
def meta_addcdiv():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.v = nn.Parameter(torch.tensor([1e-25, 0.5]))

        def forward(self, p, m):
            return torch.addcdiv(p, m, self.v, value=-0.1)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Cell()

        def forward(self, p, m):
            return self.cell(p, m)

    net = track(Net())
    out = net(torch.ones(2), torch.ones(2))
    out.sum().backward()
    return out, net.cell.v.grad


@case(
    "batched-jacobian",
    "jacobian(vectorize=True): the backward runs under vmap",
    "",
    "functorch",
    "nan",
    ["div", "mul"],
    node="SqrtBackward0",
    module=None,
)
def batched_jacobian():
    def polar(v):
        r = (v * v).sum().sqrt()  # ORIGIN
        return torch.stack([r, v[0] * 2])

    jac = torch.autograd.functional.jacobian(polar, torch.zeros(2), vectorize=True)
    return jac
