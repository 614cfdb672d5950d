"""Optimizers that make weights non-finite."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, track


@case(
    "rmsprop-centered-negative",
    "centered RMSprop: E[g^2] - E[g]^2 of a constant gradient rounds below zero; eps comes after the root",
    "",
    "optimizer",
    "nan",
    ["sqrt_", "sqrt"],
    module=None,
    phase="optimizer",
    step=24,
)
def rmsprop_centered_negative():
    net = track(nn.Linear(5, 1, bias=False))
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-4, alpha=0.5, centered=True)
    x = torch.tensor([[0.1, 0.7, 1.3, 3.3, 123.456]])
    for k in range(1, 41):
        mark_step(k)
        opt.zero_grad()
        net(x).sum().backward()
        opt.step()  # ORIGIN
    return (net.weight,)


@case(
    "adagrad-eps-zero-dead-input",
    "Adagrad with eps=0: a feature that is always 0 has no accumulated gradient, 0/0",
    "",
    "optimizer",
    "nan",
    ["addcdiv_", "div", "div_"],
    module=None,
    phase="optimizer",
    step=1,
)
def adagrad_eps_zero_dead_input():
    net = track(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
    opt = torch.optim.Adagrad(net.parameters(), lr=0.1, eps=0.0)
    x = torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.0, 1.0]])
    for k in (1, 2):
        mark_step(k)
        loss = net(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
    return loss, net[0].weight


@case(
    "adadelta-foreach-eps-zero",
    "Adadelta(foreach=True, eps=0): sqrt(0)/sqrt(0) for a frozen output",
    "",
    "optimizer",
    "nan",
    ["_foreach_div_", "_foreach_div"],
    module=None,
    phase="optimizer",
    step=1,
)
def adadelta_foreach_eps_zero():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2)
            self.b = nn.Linear(2, 2)

        def forward(self, x):
            return self.a(x) + 0.0 * self.b(x)

    net = track(Net())
    opt = torch.optim.Adadelta(net.parameters(), eps=0.0, foreach=True)
    for k in range(1, 4):
        mark_step(k)
        opt.zero_grad()
        net(torch.ones(1, 2)).square().sum().backward()
        opt.step()  # ORIGIN
    return (net.b.weight,)


@case(
    "adam-half-eps-underflow",
    "Adam on float16 weights: eps=1e-8 and g^2 are 0 in half, the first step divides by 0",
    "",
    "optimizer",
    "inf",
    ["addcdiv_"],
    module=None,
    phase="optimizer",
    step=1,
)
def adam_half_eps_underflow():
    class Qformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Parameter(torch.randn(2, 4).half())
            self.proj = nn.Linear(4, 4).half()

        def forward(self, x):
            return self.proj(self.query) * x

    net = track(Qformer())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for k in (1, 2):
        mark_step(k)
        loss = net(torch.full((4,), 1e-4, dtype=torch.half)).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
    return loss, net.proj.bias


@case(
    "adam-second-moment-overflow",
    "one gradient of 1e21: g*g overflows in exp_avg_sq; the weight silently stops moving",
    "",
    "optimizer",
    "inf",
    ["addcmul_"],
    module=None,
    phase="optimizer",
    step=2,
    notes="the weights stay finite: m / inf is 0",
)
def adam_second_moment_overflow():
    net = track(nn.Linear(2, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, amsgrad=True)
    for k, scale in enumerate((1.0, 1e21, 1.0), 1):
        mark_step(k)
        opt.zero_grad()
        (net(torch.ones(1, 2)) * scale).sum().backward()
        opt.step()  # ORIGIN
    return (opt.state[net.weight]["max_exp_avg_sq"],)


@case(
    "lambda-lr-inf",
    "a warm-up lambda divides by zero in numpy: the learning rate of step 1 is inf",
    "",
    "optimizer",
    "inf",
    ["add_", "_foreach_add_"],
    module=None,
    phase="optimizer",
    step=1,
    naive=False,
)
def lambda_lr_inf():
    net = track(nn.Linear(2, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with np.errstate(all="ignore"):
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda e: float(np.float64(1.0) / np.float64(e)) ** 0.5)
        for k in (1, 2, 3):
            mark_step(k)
            opt.zero_grad()
            net(torch.ones(3, 2)).pow(2).mean().backward()
            opt.step()  # ORIGIN
            sched.step()
    return (net.weight,)


@case(
    "tensor-lr-schedule-div",
    "a capturable tensor learning rate base/(T - t) reaches the end of the schedule; the weight without gradient is inf*0",
    "",
    "optimizer",
    "inf",
    ["div", "reciprocal", "mul"],
    module=None,
    step=3,
)
def tensor_lr_schedule_div():
    net = track(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))
    total = torch.tensor(3.0)
    for k in range(1, 5):
        mark_step(k)
        lr = torch.tensor(0.1) / (total - k)  # ORIGIN
        loss = net(torch.tensor([[1.0, -1.0]])).pow(2).sum()
        net.zero_grad()
        loss.backward()
        for p in net.parameters():
            p.data -= lr * p.grad
    return net[0].weight, net[2].bias


@case(
    "sgdw-decay-explodes",
    "decoupled decay p.mul_(1 - lr*wd) with wd meant as a half-life: |1 - lr*wd| is 1e9",
    "",
    "optimizer",
    "inf",
    "mul_",
    module=None,
    phase="optimizer",
    step=5,
)
def sgdw_decay_explodes():
    class SGDW(torch.optim.Optimizer):
        def __init__(self, params, lr, weight_decay):
            super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

        def step(self, closure=None):
            with torch.no_grad():
                for group in self.param_groups:
                    for p in group["params"]:
                        p.mul_(1 - group["lr"] * group["weight_decay"])  # ORIGIN
                        p.add_(p.grad.clamp(-1, 1), alpha=-group["lr"])

    net = track(nn.Linear(2, 2))
    nn.init.constant_(net.weight, 0.5)
    opt = SGDW(net.parameters(), lr=0.1, weight_decay=1e10)
    for k in range(1, 8):
        mark_step(k)
        opt.zero_grad()
        net(torch.full((1, 2), 1e-30)).sum().backward()
        opt.step()
    return (net.weight,)


@case(
    "momentum-typo-overflow",
    "momentum=9.0 for 0.9 (foreach): the velocity overflows, the loss was linear and finite to the end",
    "",
    "optimizer",
    "inf",
    ["_foreach_mul_"],
    module=None,
    phase="optimizer",
    step=5,
)
def momentum_typo_overflow():
    net = track(nn.Linear(2, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-30, momentum=9e9, foreach=True)
    for k in range(1, 8):
        mark_step(k)
        opt.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        opt.step()  # ORIGIN
    return (net.weight,)


@case(
    "hand-clip-zero-norm",
    "home-made clipping without eps: all gradients are 0, max_norm/0 is inf, inf*0 is NaN",
    "",
    "optimizer",
    "inf",
    ["reciprocal", "div"],
    module=None,
    step=2,
)
def hand_clip_zero_norm():
    def clip(params, max_norm):
        grads = [p.grad for p in params]
        total = torch.stack([g.norm() for g in grads]).norm()
        coef = max_norm / total  # ORIGIN
        if coef < 1 or torch.isinf(coef):
            for g in grads:
                g.mul_(coef)

    net = track(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    opt = torch.optim.Adam(net.parameters())
    for k, w in enumerate((1.0, 0.0, 1.0), 1):
        mark_step(k)
        loss = (w * net(torch.ones(4, 2))).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        clip(list(net.parameters()), 1.0)
        opt.step()
    return net[0].weight, loss


@case(
    "clip-grad-norm-inf-to-nan",
    "one gradient is inf (division by a subnormal in backward); clip_grad_norm_ turns inf*0 into NaN",
    "",
    "optimizer",
    "inf",
    op="div",
    node="DivBackward0",
    module="scale",
    step=2,
    notes="the norm is a consequence, the backward of the division made the inf",
)
def clip_grad_norm_inf_to_nan():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.temp = nn.Parameter(torch.tensor(1.0))

        def forward(self, x, eps):
            return x / (eps * self.temp)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 1)
            self.scale = Scale()

        def forward(self, x, eps):
            return self.scale(self.lin(x), eps)

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k, eps in enumerate((1.0, 1e-36, 1.0), 1):
        mark_step(k)
        loss = torch.tanh(net(torch.ones(1, 2) * 1e-3, eps) * 1e-36).sum()
        if k == 2:
            loss = loss * 1e10
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    return net.lin.weight, net.scale.temp


@case(
    "sam-first-step-zero-grad",
    "SAM climbs by rho * g / ||g||: at a stationary point 0/0 goes into the weights",
    "",
    "optimizer",
    "inf",
    ["reciprocal", "div"],
    module=None,
    phase="optimizer",
    step=1,
)
def sam_first_step_zero_grad():
    class SAM(torch.optim.Optimizer):
        def __init__(self, params, base, rho=0.05, **kw):
            super().__init__(params, dict(rho=rho, **kw))
            self.base = base(self.param_groups, **kw)

        @torch.no_grad()
        def first_step(self):
            norm = torch.norm(torch.stack([p.grad.norm(p=2) for g in self.param_groups for p in g["params"]]), p=2)
            for g in self.param_groups:
                scale = g["rho"] / norm  # ORIGIN
                for p in g["params"]:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(p.grad * scale.to(p))

        @torch.no_grad()
        def step(self, closure):
            self.first_step()
            with torch.enable_grad():
                self.zero_grad()
                closure()
            for g in self.param_groups:
                for p in g["params"]:
                    p.data = self.state[p]["old"]
            self.base.step()

    net = track(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)))
    nn.init.zeros_(net[2].weight)
    nn.init.constant_(net[0].bias, -9.0)
    opt = SAM(net.parameters(), torch.optim.SGD, lr=0.1)
    x = torch.rand(3, 2)

    def closure():
        loss = (net(x) - net[2].bias.detach()).pow(2).mean()
        loss.backward()
        return loss

    mark_step(1)
    closure()
    opt.step(closure)
    return net[0].weight, net[2].bias


@case(
    "adafactor-factored-zero",
    "Adafactor: the row statistics of a never-used table are zero, row / mean(row) is 0/0",
    "",
    "optimizer",
    "nan",
    ["div"],
    module=None,
    phase="optimizer",
    step=1,
)
def adafactor_factored_zero():
    class Adafactor(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @staticmethod
        def _approx(row, col):
            r = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)  # ORIGIN
            return torch.mul(r, col.unsqueeze(-2).rsqrt())

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                s = self.state[p]
                if not s:
                    s["row"], s["col"] = p.new_zeros(p.shape[0]), p.new_zeros(p.shape[1])
                sq = p.grad**2
                s["row"].mul_(0.9).add_(sq.mean(-1), alpha=0.1)
                s["col"].mul_(0.9).add_(sq.mean(-2), alpha=0.1)
                p.add_(self._approx(s["row"], s["col"]).mul_(p.grad), alpha=-self.param_groups[0]["lr"])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.aux = nn.Embedding(4, 3), nn.Embedding(4, 3)

        def forward(self, i, j):
            return self.main(i).sum() + self.aux(j).sum()

    net = track(Net())
    opt = Adafactor(net.parameters(), 1e-2)
    for k in (1, 2):
        mark_step(k)
        loss = net(torch.arange(4), torch.zeros(0, dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net.aux.weight, loss


@case(
    "shampoo-inverse-root",
    "Shampoo: the preconditioner has a zero eigenvalue, lambda ** -0.25 is inf",
    "",
    "optimizer",
    "inf",
    ["pow", "float_power"],
    module=None,
    phase="optimizer",
    step=1,
)
def shampoo_inverse_root():
    def inverse_root(m, order):
        s, u = torch.linalg.eigh(m)
        return u @ torch.diag(s.clamp_min(0).pow(-1.0 / order)) @ u.t()  # ORIGIN

    class Shampoo(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-2):
            super().__init__(params, dict(lr=lr))

        @torch.no_grad()
        def step(self):
            for p in (p for g in self.param_groups for p in g["params"] if p.dim() == 2):
                L = self.state[p].setdefault("L", torch.zeros(len(p), len(p)))
                L += p.grad @ p.grad.t()
                p -= self.param_groups[0]["lr"] * (inverse_root(L, 4) @ p.grad)

    net = track(nn.Linear(3, 2))
    opt = Shampoo(net.parameters())
    mark_step(1)
    net(torch.ones(1, 3))[:, 0].sum().backward()
    opt.step()
    return (net.weight,)


@case(
    "lbfgs-log-domain",
    "LBFGS takes a long step: a scale parameter becomes negative inside the closure and log of it is NaN",
    "",
    "optimizer",
    "nan",
    "log",
    module="nll",
    step=1,
    notes="forward pass run by the optimizer's closure",
)
def lbfgs_log_domain():
    class Nll(nn.Module):
        def forward(self, r, sigma):
            return (torch.log(sigma) + 0.5 * (r / sigma) ** 2).mean()  # ORIGIN

    class Fit(nn.Module):
        def __init__(self):
            super().__init__()
            self.mu = nn.Parameter(torch.tensor(0.0))
            self.sigma = nn.Parameter(torch.tensor(3.0))
            self.nll = Nll()

        def forward(self, x):
            return self.nll(x - self.mu, self.sigma)

    fit = track(Fit())
    opt = torch.optim.LBFGS(fit.parameters(), lr=20.0, max_iter=4)
    x = torch.tensor([0.1, -0.1, 0.2, 0.05])

    def closure():
        opt.zero_grad()
        loss = fit(x)
        losses.append(loss.detach())
        loss.backward()
        return loss

    losses = []
    mark_step(1)
    opt.step(closure)
    return torch.stack(losses), fit.sigma


@case(
    "ema-bias-correction",
    "EMA of the weights is divided by 1 - decay**t, and the teacher is refreshed before the first update (t = 0)",
    "",
    "optimizer",
    "nan",
    ["div"],
    module=None,
    step=1,
)
def ema_bias_correction():
    class Ema:
        def __init__(self, model, decay):
            self.decay, self.t = torch.tensor(decay), 0
            self.shadow = {n: torch.zeros_like(p) for n, p in model.named_parameters()}

        @torch.no_grad()
        def update(self, model):
            self.t += 1
            for n, p in model.named_parameters():
                self.shadow[n].lerp_(p, 1 - self.decay)

        def corrected(self):
            return {n: s / (1 - self.decay**self.t) for n, s in self.shadow.items()}  # ORIGIN

    student = nn.Linear(3, 2)
    teacher = track(copy.deepcopy(student))
    ema = Ema(student, 0.99)
    opt = torch.optim.SGD(student.parameters(), lr=0.1)
    for k in (1, 2):
        mark_step(k)
        teacher.load_state_dict(ema.corrected())
        with torch.no_grad():
            target = teacher(torch.ones(2, 3))
        loss = F.mse_loss(student(torch.ones(2, 3)), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(student)
    return loss, student.weight


@case(
    "swa-of-diverged-run",
    "SWA averages a run whose last epochs overflowed: the averaged weights are inf, then NaN",
    "",
    "optimizer",
    "inf",
    ["add_", "_foreach_add_"],
    module=None,
    phase="optimizer",
    step=4,
    notes="the loss is never computed: backward(gradient=...)",
)
def swa_of_diverged_run():
    net = track(nn.Linear(1, 1, bias=False))
    nn.init.constant_(net.weight, 1.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e10)
    swa = torch.optim.swa_utils.AveragedModel(net)
    for k in range(1, 7):
        mark_step(k)
        opt.zero_grad()
        out = net(torch.ones(1, 1))
        out.backward(gradient=-out.detach())
        opt.step()  # ORIGIN
        swa.update_parameters(net)
    return (swa.module.weight,)


@case(
    "polyak-step-at-optimum",
    "Polyak step size loss/||g||^2 at the optimum: 0/0",
    "",
    "optimizer",
    "nan",
    ["div"],
    module=None,
    phase="optimizer",
    step=2,
)
def polyak_step_at_optimum():
    class Polyak(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, loss):
            ps = [p for g in self.param_groups for p in g["params"]]
            sq = torch.stack([(p.grad**2).sum() for p in ps]).sum()
            gamma = loss / sq  # ORIGIN
            torch._foreach_add_(ps, [-gamma * p.grad for p in ps])

    net = track(nn.Linear(1, 1, bias=False))
    nn.init.constant_(net.weight, 2.0)
    opt = Polyak(net.parameters())
    for k in range(1, 4):
        mark_step(k)
        loss = (net(torch.ones(1, 1)) - 1.0).abs().sum()
        opt.zero_grad()
        loss.backward()
        opt.step(loss)
    return (net.weight,)


@case(
    "accumulation-no-valid-token",
    "gradients of an accumulation window are divided by its number of valid tokens: 0",
    "",
    "optimizer",
    "nan",
    ["div_", "_foreach_div_"],
    module=None,
    step=2,
)
def accumulation_no_valid_token():
    net = track(nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6)))
    opt = torch.optim.AdamW(net.parameters())
    windows = [[[1, 2, 3], [2, -100, -100]], [[-100, -100, -100], [-100, -100, -100]], [[3, 4, 5], [1, 1, 1]]]
    for k, window in enumerate(windows, 1):
        mark_step(k)
        opt.zero_grad(set_to_none=False)
        n = torch.zeros(())
        for labels in torch.tensor(window):
            logits = net(labels.clamp(min=0))
            F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").backward()
            n += (labels != -100).sum()
        for p in net.parameters():
            p.grad.div_(n)  # ORIGIN
        opt.step()
    return (net[1].weight,)


@case(
    "accumulated-nan-noticed-later",
    "micro-batch 1 of 2 makes the NaN gradient, the step is taken after micro-batch 2",
    "",
    "accumulation",
    "inf",
    op="div",
    node="SqrtBackward0",
    module="loss",
    step=3,
    notes="sqrt at 0; zero times inf follows in the same backward",
)
def accumulated_nan_noticed_later():
    class Rmse(nn.Module):
        def forward(self, a, b):
            return torch.sqrt(((a - b) ** 2).mean())  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 1)
            self.loss = Rmse()

        def forward(self, x, y):
            return self.loss(self.lin(x), y)

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for k in range(1, 5):
        mark_step(k)
        x = torch.full((2, 2), float(k))
        y = net.lin(x).detach() if k == 3 else torch.zeros(2, 1)
        (net(x, y) / 2).backward()
        if k % 2 == 0:
            opt.step()
            opt.zero_grad()
    return (net.lin.weight,)


@case(
    "adamax-foreach-eps-zero",
    "Adamax(foreach=True, eps=0): the infinity norm of a dead row is 0",
    "",
    "optimizer",
    "nan",
    ["_foreach_addcdiv_", "_foreach_div_", "_foreach_div"],
    module=None,
    phase="optimizer",
    step=1,
)
def adamax_foreach_eps_zero():
    net = track(nn.Sequential(nn.Embedding(5, 2, padding_idx=0), nn.Flatten(), nn.Linear(4, 1)))
    opt = torch.optim.Adamax(net.parameters(), eps=0.0, foreach=True)
    for k in (1, 2):
        mark_step(k)
        opt.zero_grad()
        net(torch.tensor([[1, 3], [0, 1]])).pow(2).sum().backward()
        opt.step()  # ORIGIN
    return (net[0].weight,)


@case(
    "adagrad-fused-eps-zero",
    "Adagrad(fused=True, eps=0) with a feature that is always zero",
    "",
    "optimizer",
    "nan",
    ["_fused_adagrad_"],
    module=None,
    phase="optimizer",
    step=1,
    since="2.6",
)
def adagrad_fused_eps_zero():
    net = track(nn.Linear(2, 2))
    opt = torch.optim.Adagrad(net.parameters(), eps=0.0, fused=True)
    for k in (1, 2):
        mark_step(k)
        opt.zero_grad()
        net(torch.tensor([[1.0, 0.0]])).sum().backward()
        opt.step()  # ORIGIN
    return (net.weight,)


@case(
    "spectral-power-iteration",
    "spectral norm by hand: the persistent vector u is refreshed in eval with W = 0 and becomes 0/0, noticed one step later",
    "",
    "state",
    "nan",
    ["div"],
    module="sn",
    step=2,
    notes="u is a buffer that is assigned anew; the NaN is read at step 3",
)
def spectral_power_iteration():
    class Sn(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 2))
            self.register_buffer("u", F.normalize(torch.randn(3), dim=0))

        def forward(self, x):
            with torch.no_grad():
                v = F.normalize(self.weight.t() @ self.u, dim=0)
                wv = self.weight @ v
                sigma = self.u @ wv
                self.u = wv / wv.norm()  # ORIGIN
            return x @ self.weight.t() / (sigma.abs() + 1.0)

    class Disc(nn.Module):
        def __init__(self):
            super().__init__()
            self.sn = Sn()
            self.out = nn.Linear(3, 1)

        def forward(self, x):
            return self.out(self.sn(x))

    net = track(Disc())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k in range(1, 4):
        mark_step(k)
        if k == 2:
            nn.init.zeros_(net.sn.weight)
        loss = net(torch.randn(2, 2)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.out.weight


@case(
    "kl-weight-nan-float",
    "the KL weight of a VAE is a Python float that numpy made NaN (0/0 in the annealing schedule)",
    "",
    "hyperparameter",
    "nan",
    "mul",
    module=None,
    step=1,
    naive=False,
    notes="a number of the program, no tensor: the product is what goes wrong",
)
def kl_weight_nan_float():
    vae = track(nn.Linear(3, 4))
    opt = torch.optim.Adam(vae.parameters())
    with np.errstate(all="ignore"):
        betas = np.arange(3) / np.float64(0)
    for k, beta in enumerate(betas, 1):
        mark_step(k)
        mu, logvar = vae(torch.ones(2, 3)).chunk(2, -1)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1)
        per_sample = mu.pow(2).sum(-1) + kl * float(beta)  # ORIGIN
        loss = per_sample.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, vae.weight


@case(
    "warmup-lr-nan",
    "warm-up over zero steps: numpy 0/0 gives a learning rate of NaN to Adam",
    "",
    "hyperparameter",
    "nan",
    ["addcdiv_", "_foreach_addcdiv_"],
    module=None,
    phase="optimizer",
    step=1,
    naive=False,
)
def warmup_lr_nan():
    net = track(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    with np.errstate(all="ignore"):
        warm = np.arange(3) / np.float64(0)
    for k in (1, 2):
        mark_step(k)
        for g in opt.param_groups:
            g["lr"] = 1e-3 * float(min(1.0, warm[k - 1])) if k > 1 else 1e-3 * float(warm[0])
        opt.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        opt.step()  # ORIGIN
    return (net[0].weight,)


@case(
    "fused-backward-optimizer",
    "the optimizer runs in post-accumulate hooks: normalised SGD divides a zero gradient by its norm",
    "",
    "optimizer",
    "nan",
    ["div"],
    module=None,
    phase="optimizer",
    step=2,
)
def fused_backward_optimizer():
    net = track(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))

    def update(p):
        with torch.no_grad():
            p.sub_(0.1 * (p.grad / p.grad.norm()))  # ORIGIN
        p.grad = None

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(update)
    for k, x in enumerate((torch.ones(1, 2), torch.full((1, 2), -50.0), torch.ones(1, 2)), 1):
        mark_step(k)
        if k == 2:
            nn.init.constant_(net[0].weight, 1.0)
        net(x).sum().backward()
    return (net[0].weight,)


@case(
    "normuon-zero-update",
    "NorMuon: ratio of norms of an update that is all zero (zero-initialised output layer)",
    "https://github.com/microsoft/dion/pull/24",
    "zero-division",
    "nan",
    "div",
    module=None,
    phase="optimizer",
    step=1,
)
def normuon_zero_update():
    class NorMuon(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for g in self.param_groups:
                for p in g["params"]:
                    u = p.grad
                    before = u.norm()
                    v = u.square().mean(-1, keepdim=True)
                    u = u / (v.sqrt() + 1e-8)
                    p.add_(u * (before / u.norm()), alpha=-g["lr"])  # ORIGIN

    net = track(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    nn.init.zeros_(net[1].weight)
    opt = NorMuon([net[0].weight, net[1].weight], 0.02)
    for k in (1, 2):
        mark_step(k)
        opt.zero_grad()
        loss = (net(torch.randn(5, 3)) - 1).square().mean()
        loss.backward()
        opt.step()
    return loss, net[0].weight


@case(
    "pcgrad-zero-task",
    "PCGrad projects onto the gradient of a task that is zero: 0/0",
    "",
    "zero-division",
    "nan",
    "div",
    module=None,
    step=1,
)
def pcgrad_zero_task():
    net = track(nn.Linear(3, 2))
    opt = torch.optim.SGD(net.parameters(), 0.1)
    mark_step(1)
    y = net(torch.randn(4, 3))
    g = [
        torch.autograd.grad(loss, net.weight, retain_graph=True)[0]
        for loss in (y[:, 0].square().mean(), (y[:, 1] * 0).sum())
    ]
    dot = (g[0] * g[1]).sum()
    projected = g[0] - (dot / g[1].square().sum()).clamp(max=0) * g[1]  # ORIGIN
    net.weight.grad = projected + g[1]
    net.bias.grad = torch.zeros(2)
    opt.step()
    return (net.weight,)
