"""Sampling theory and solvers."""

import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, case, mark_step, track


@case(
    "adaptive-ode-rejected-steps",
    "an adaptive solver: too large a step overflows, the error is inf/nan, step rejected",
    "",
    "clean-solver",
    "clean",
)
def adaptive_ode_rejected_steps():
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.tensor(-1.0))

        def forward(self, y):
            return self.rate * y**3

    f = track(Field())
    y, t, h, rejected = torch.tensor([1.0, 2.0]), 0.0, torch.tensor(1e30), 0
    while t < 1.0:
        with torch.no_grad():
            k1 = f(y)
            k2 = f(y + h * k1)
            low, high = y + h * k1, y + 0.5 * h * (k1 + k2)
            err = ((high - low) / (1e-3 + 1e-3 * torch.max(y.abs(), high.abs()))).square().mean().sqrt()
            accept = err <= 1
            factor = torch.where(torch.isfinite(err), (0.9 * err**-0.5).clamp(0.2, 5.0), torch.tensor(1e-8))
        if accept:
            y, t = y + 0.5 * h * (f(y) + f(y + h * f(y))), t + float(h)
        else:
            rejected += 1
        h = torch.minimum(h * factor, torch.tensor(max(1.0 - t, 1e-3)))
    assert rejected >= 2
    y.sum().backward()
    return y, f.rate.grad, torch.tensor(float(rejected))


@case(
    "barrier-backtracking",
    "log barrier: outside the feasible set the objective is nan/inf, the step is halved",
    "",
    "clean-solver",
    "clean",
)
def barrier_backtracking():
    a, b = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]), torch.tensor([1.0, 1.0, 1.0])

    def objective(x):
        return -torch.log(b - a @ x).sum() + x.square().sum() + x[0] * 20

    x, halved = torch.zeros(2), 0
    for _ in range(4):
        x.requires_grad_()
        f0 = objective(x)
        (g,) = torch.autograd.grad(f0, x)
        x, step = x.detach(), 1.0
        for _ in range(40):
            f1 = objective(x - step * g)
            if torch.isfinite(f1) and f1 < f0.detach():
                break
            step, halved = step / 2, halved + 1
        x = x - step * g
    assert halved > 3
    return x, objective(x)


@case(
    "metropolis-python-floats",
    "Metropolis in Python: log-density -inf outside the support, read with .item()",
    "",
    "clean-solver",
    "clean",
    notes="item() of log(0): by torchnan's contract harm of kind 'read'",
    debatable="a value that is read back counts as harm",
)
def metropolis_python_floats():
    prior = torch.distributions.Uniform(-1.0, 1.0, validate_args=False)
    rng, x, chain = random.Random(0), torch.tensor(0.1), []
    logp = (prior.log_prob(x) - x.square()).item()
    for _ in range(10):
        prop = x + torch.randn(()) * 1.5
        new = (prior.log_prob(prop) - prop.square()).item()
        if math.log(rng.random()) < new - logp:
            x, logp = prop, new
        chain.append(x)
    return torch.stack(chain), torch.tensor(logp)


@case(
    "hmc-divergent-trajectory",
    "Hamiltonian Monte Carlo with a coarse step: the energy overflows, proposal rejected",
    "",
    "clean-solver",
    "clean",
    debatable="a root of backward counts as harm",
)
def hmc_divergent_trajectory():
    def energy(q):
        return (q**4).sum()

    q, kept, divergent = torch.tensor([0.5, -0.3]), [], 0
    for it in range(6):
        eps = 2.0 if it % 2 else 0.05
        p = torch.randn(2)
        h0 = energy(q) + 0.5 * p.square().sum()
        qq, pp = q.clone(), p
        for _ in range(8):
            leaf = qq.detach().requires_grad_()
            (g,) = torch.autograd.grad(energy(leaf), leaf)
            pp = pp - eps * g
            qq = qq + eps * pp
        dh = energy(qq) + 0.5 * pp.square().sum() - h0
        dh = torch.where(torch.isnan(dh), torch.tensor(INF), dh)
        divergent += int(dh > 1000)
        accept = torch.rand(()) < torch.exp(-dh)
        q = torch.where(accept, qq, q)
        kept.append(q)
    assert divergent >= 1
    return torch.stack(kept), torch.tensor(float(divergent))


@case(
    "mixture-outside-support",
    "mixture of distributions with bounded support: some components say -inf",
    "",
    "clean-log-space",
    "clean",
)
def mixture_outside_support():
    class Mix(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits, self.rate = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(()))

        def forward(self, x):
            lp = torch.stack(
                [
                    torch.distributions.Uniform(0.0, 2.0, validate_args=False).log_prob(x),
                    torch.distributions.Exponential(self.rate.exp(), validate_args=False).log_prob(x.abs()),
                    torch.distributions.Uniform(-3.0, -1.0, validate_args=False).log_prob(x),
                ],
                -1,
            )
            return torch.logsumexp(lp + F.log_softmax(self.logits, -1), -1)

    mix = track(Mix())
    opt = torch.optim.Adam(mix.parameters(), lr=0.1)
    x = torch.tensor([0.5, 1.9, 2.5, -2.0, -0.5])
    for k in range(1, 4):
        mark_step(k)
        loss = -mix(x).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, mix.logits, mix.rate


@case("xlogy-entr-zeros", "xlogy, entr, kl_div and BCE at exact zeros and ones", "", "clean-log-space", "clean")
def xlogy_entr_zeros():
    net = track(nn.Linear(2, 3))
    q = net(torch.randn(4, 2)).softmax(-1)
    p = F.one_hot(torch.tensor([0, 2, 1, 1]), 3).float()
    ce = -torch.xlogy(p, q).sum()
    kl = F.kl_div(q.log(), p, reduction="sum")
    ent = torch.special.entr(p).sum()
    hard = F.binary_cross_entropy(p, p)
    raw = torch.where(p > 0, p * torch.log(p), torch.zeros(()))
    (ce + kl).backward()
    return ce, kl, ent, hard, raw, net.weight.grad


@case(
    "vmap-masked-softmax-per-sample",
    "torch.func: per-sample gradients and Jacobians of a masked softmax",
    "",
    "clean-functorch",
    "clean",
)
def vmap_masked_softmax_per_sample():
    net = track(nn.Linear(3, 4))
    params = dict(net.named_parameters())

    def loss(p, x, length):
        logits = torch.func.functional_call(net, p, (x,))
        logits = torch.where(torch.arange(4) < length, logits, float("-inf"))
        return -F.log_softmax(logits, -1)[0]

    x, n = torch.randn(5, 3), torch.tensor([1, 2, 3, 4, 4])
    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, n)
    jac = torch.func.jacrev(lambda v: F.softmax(v.masked_fill(torch.tensor([0, 1, 0]).bool(), -INF), 0))(torch.randn(3))
    out, tangent = torch.func.jvp(
        lambda v: torch.logsumexp(v.masked_fill(v < 0, -INF), 0), (torch.tensor([1.0, -1.0, 2.0]),), (torch.ones(3),)
    )
    ratio = torch.func.vmap(lambda a, b: torch.where(b != 0, a / b, 0.0))(torch.ones(3), torch.tensor([0.0, 1.0, 2.0]))
    return grads["weight"], jac, out, tangent, ratio


@case(
    "backward-from-masked-logp",
    "backward with an explicit gradient that is 0 where the log-probabilities are -inf",
    "",
    "clean-log-space",
    "clean",
    notes="the root of backward holds the mask's -inf; every gradient is finite",
)
def backward_from_masked_logp():
    net = track(nn.Linear(3, 5))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, banned = torch.randn(4, 3), torch.tensor([0, 1, 0, 0, 1]).bool()
    action, reward = torch.tensor([0, 2, 3, 0]), torch.randn(4)
    for k in range(1, 3):
        mark_step(k)
        logp = F.log_softmax(net(x).masked_fill(banned, -INF), -1)
        grad = torch.zeros_like(logp).scatter_(1, action[:, None], -reward[:, None])
        opt.zero_grad()
        logp.backward(gradient=grad)
        opt.step()
    return net.weight, logp[:, 0].clone()


@case(
    "ucb-untried-arms",
    "UCB1: the bonus of an arm that was never pulled is inf (or 0/0 at t = 1)",
    "",
    "clean-solver",
    "clean",
)
def ucb_untried_arms():
    net = track(nn.Linear(1, 4))
    with torch.no_grad():
        means = net(torch.ones(1))
        n, total = torch.zeros(4), torch.zeros(4)
        for t in range(1, 12):
            value = torch.where(n > 0, total / n, torch.zeros(()))
            bonus = torch.sqrt(2 * math.log(t) / n)
            bonus = torch.where(torch.isnan(bonus), torch.tensor(INF), bonus)
            arm = int((value + bonus).argmax())
            n[arm] += 1
            total[arm] += means[arm] + 0.1 * torch.randn(())
    return n, total / n


@case(
    "levenberg-damping",
    "Levenberg-Marquardt: a singular solve_ex is looked at through info, damping grows",
    "",
    "clean",
    "clean",
)
def levenberg_damping():
    J = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    r, lam = torch.tensor([1.0, 1.0]), 0.0
    for _ in range(3):
        step, info = torch.linalg.solve_ex(J.t() @ J + lam * torch.eye(2), J.t() @ r)
        if info.item() == 0:
            break
        lam = max(lam * 10, 1e-3)
    return (step,)


@case(
    "newton-converged",
    "Newton's method: elements that have converged divide 0 by 0 and keep their value",
    "",
    "clean",
    "clean",
)
def newton_converged():
    x = torch.tensor([0.0, 1.0, 3.0])
    for _ in range(8):
        f, df = x.pow(3), 3 * x.pow(2)
        x = torch.where(f.abs() < 1e-6, x, x - f / df)
    return (x,)
