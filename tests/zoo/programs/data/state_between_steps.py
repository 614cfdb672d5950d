"""State between steps, and evaluation."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, dirty, mark_step, track


@case(
    "running-reward-var-count-one",
    "the reward normaliser divides by count - 1; the scale is NaN from the first episode, used at the second",
    "",
    "state",
    "nan",
    ["div"],
    module=None,
    step=1,
)
def running_reward_var_count_one():
    class RunningStd:
        def __init__(self):
            self.n, self.mean, self.m2, self.std = 0, torch.tensor(0.0), torch.tensor(0.0), torch.tensor(1.0)

        def update(self, r):
            self.n += 1
            delta = r - self.mean
            self.mean = self.mean + delta / self.n
            self.m2 = self.m2 + delta * (r - self.mean)
            self.std = (self.m2 / (torch.tensor(float(self.n)) - 1)).sqrt()  # ORIGIN

    pi = track(nn.Linear(2, 2))
    opt = torch.optim.Adam(pi.parameters())
    norm = RunningStd()
    for k in (1, 2, 3):
        mark_step(k)
        logp = F.log_softmax(pi(torch.ones(1, 2)), -1)[0, 0]
        ret = torch.tensor(float(k)) / norm.std
        loss = -logp * ret
        opt.zero_grad()
        loss.backward()
        opt.step()
        norm.update(torch.tensor(float(k)))
    return loss, pi.weight


@case(
    "ema-teacher-after-student-broke",
    "the student's Adam step makes NaN weights at step 2, the EMA teacher is noticed at evaluation",
    "",
    "state",
    "nan",
    ["addcdiv_", "_foreach_addcdiv_"],
    module=None,
    phase="optimizer",
    step=2,
)
def ema_teacher_after_student_broke():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.mask_token = nn.Parameter(torch.zeros(3))
            self.fc = nn.Linear(3, 2)

        def forward(self, x, mask=None):
            if mask is not None:
                x = torch.where(mask[:, None], self.mask_token, x)
            return self.fc(x)

    student = track(Encoder())
    teacher = copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.Adam([{"params": student.fc.parameters()}, {"params": [student.mask_token], "eps": 0.0}], lr=1e-2)
    for k in (1, 2, 3):
        mark_step(k)
        x = torch.rand(3, 3)
        mask = torch.zeros(3, dtype=torch.bool) if k > 1 else None
        loss = F.mse_loss(student(x, mask), torch.ones(3, 2))
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.parameters()):
                t.mul_(0.9).add_(s.detach(), alpha=0.1)
    with torch.inference_mode():
        return teacher(torch.rand(1, 3), torch.ones(1, dtype=torch.bool)).clone()


@case(
    "validation-empty-split",
    "the mean validation loss is total/count; the split is empty and the scheduler gets NaN",
    "",
    "evaluation",
    "nan",
    ["div"],
    module=None,
    notes="read back with item()",
)
def validation_empty_split():
    net = track(nn.Linear(2, 2))

    @torch.no_grad()
    def evaluate(loader):
        net.eval()
        total, count = torch.zeros(()), torch.zeros(())
        for x, y in loader:
            total += F.cross_entropy(net(x), y, reduction="sum")
            count += len(y)
        return (total / count).item()  # ORIGIN

    history = [evaluate([(torch.randn(2, 2), torch.tensor([0, 1]))]), evaluate([])]
    return torch.tensor(history)


@case(
    "perplexity-exp-overflow",
    "evaluation under inference_mode: exp of a summed (not averaged) loss overflows",
    "",
    "evaluation",
    "inf",
    ["exp"],
    module="metric",
    notes="the metric is a module of the tracked model",
)
def perplexity_exp_overflow():
    class Perplexity(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("nll", torch.zeros(()))

        def forward(self, logits, ids):
            self.nll += F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="sum")
            return torch.exp(self.nll)  # ORIGIN

    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 4)
            self.head = nn.Linear(4, 20)
            self.metric = Perplexity()

        def forward(self, ids):
            return self.metric(self.head(self.emb(ids[:, :-1])), ids[:, 1:])

    lm = track(Lm()).eval()
    log = []
    with torch.inference_mode():
        for _ in range(3):
            log.append(lm(torch.randint(20, (2, 12))).item())
    return torch.tensor(log)


@case(
    "kv-cache-slot-off-by-one",
    "a preallocated key cache is written from slot 1 on: slot 0 is never written, but attended to",
    "",
    "uninitialised",
    "nan",
    ["new_empty", "empty"],
    module="layers.0.attn",
    origin="uninit",
    name="k_cache",
)
def kv_cache_slot_off_by_one():
    class CachedAttn(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)
            self.k = self.v = None
            self.n = 0

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            if self.k is None:
                self.k = dirty(x.new_empty(1, 4, 4))  # ORIGIN
                self.v = x.new_zeros(1, 4, 4)
            self.n += 1
            self.k[:, self.n : self.n + 1], self.v[:, self.n : self.n + 1] = k, v
            w = (q @ self.k[:, : self.n + 1].transpose(1, 2)).softmax(-1)
            return x + w @ self.v[:, : self.n + 1]

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = CachedAttn()
            self.mlp = nn.Linear(4, 4)

        def forward(self, x):
            return self.mlp(self.attn(x))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    gpt = track(Gpt())
    x = torch.randn(1, 1, 4)
    with torch.inference_mode():
        for _ in range(2):
            x = gpt(x)
    return x.clone()


@case(
    "hidden-state-grows",
    "the hidden state of a linear RNN is carried over detached; its spectral radius is large",
    "",
    "state",
    "inf",
    "addmm",
    module="cell",
    step=9,
)
def hidden_state_grows():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.eye(3) * 3e4)
            self.inp = nn.Linear(2, 3)

        def forward(self, x, h):
            return torch.addmm(self.inp(x), h, self.w)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Cell()
            self.read = nn.Linear(3, 1)

        def forward(self, x, h):
            h = self.cell(x, h)
            return self.read(torch.tanh(h)), h

    net = track(Net())
    opt = torch.optim.SGD(net.read.parameters(), lr=0.1)
    h = torch.ones(1, 3)
    for k in range(1, 13):
        mark_step(k)
        y, h = net(torch.ones(1, 2), h.detach())
        opt.zero_grad()
        y.sum().backward()
        opt.step()
    return (h,)


@case(
    "center-loss-empty-centroid",
    "DINO/VQ centroids are refreshed by sum/count; a dead code divides 0 by 0 and is read at the next step",
    "",
    "state",
    "nan",
    ["div"],
    module="vq",
    step=1,
    notes="written into a buffer in place, read at step 2",
)
def center_loss_empty_centroid():
    class Vq(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("codes", torch.tensor([[0.0, 0.0], [1.0, 1.0], [50.0, 50.0]]))

        def forward(self, z):
            d = (z[:, None] - self.codes[None]).pow(2).sum(-1)
            idx = d.argmin(1)
            q = self.codes[idx]
            if self.training:
                with torch.no_grad():
                    hot = F.one_hot(idx, 3).float()
                    self.codes.copy_(hot.t() @ z / hot.sum(0)[:, None])  # ORIGIN
            return z + (q - z).detach(), d.min(1).values.mean()

    class Ae(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.vq, self.dec = nn.Linear(3, 2), Vq(), nn.Linear(2, 3)

        def forward(self, x):
            q, commit = self.vq(self.enc(x))
            return F.mse_loss(self.dec(q), x) + 0.25 * commit

    net = track(Ae())
    opt = torch.optim.Adam(net.parameters())
    for k in (1, 2):
        mark_step(k)
        loss = net(torch.rand(6, 3))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.enc.weight


@case(
    "storage-set-from-file",
    "weights are bound with Tensor.set_ to a storage read from disk whose last page is damaged",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="fc.weight",
    module="fc",
)
def storage_set_from_file():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.act = nn.Hardswish()

        def forward(self, x):
            return self.act(self.fc(x))

    net = track(Net())
    raw = np.array([0.1, 0.2, 0.3, np.nan], dtype=np.float32)
    disk = torch.frombuffer(bytearray(raw.tobytes()), dtype=torch.uint8).untyped_storage()
    with torch.no_grad():
        net.fc.weight.set_(disk, 0, (2, 2), (2, 1))  # ORIGIN
    loss = net(torch.ones(1, 2)).sum()
    loss.backward()
    return loss, net.fc.bias.grad


@case(
    "frozen-backbone-data-swap",
    "an averaged checkpoint (a + b)/2 in half overflows and is put into place with .data =",
    "",
    "load-time",
    "inf",
    ["add"],
    module=None,
    phase="load",
)
def frozen_backbone_data_swap():
    a = {"0.weight": torch.full((2, 2), 4e4).half(), "0.bias": torch.zeros(2).half()}
    b = {"0.weight": torch.full((2, 2), 3e4).half(), "0.bias": torch.ones(2).half()}
    soup = {k: (a[k] + b[k]) / 2 for k in a}  # ORIGIN
    net = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    for name, p in net.named_parameters():
        if name in soup:
            p.data = soup[name].float()
    net = track(net)
    out = net(torch.ones(1, 2))
    out.sum().backward()
    return out, net[0].bias.grad


@case(
    "global-batchnorm-momentum-nan",
    "a hand-written BatchNorm updates running_var with the unbiased variance of one row",
    "",
    "state",
    "nan",
    ["var", "var_mean", "std"],
    module="bn",
    step=2,
    notes="training uses the biased variance and stays finite; eval reads the NaN",
)
def global_batchnorm_momentum_nan():
    class Bn(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("var", torch.ones(2))

        def forward(self, x):
            if not self.training:
                return (x - self.mean) / (self.var + 1e-5).sqrt()
            with torch.no_grad():
                self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
                self.var = 0.9 * self.var + 0.1 * x.var(0)  # ORIGIN
            return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.bn = nn.Linear(2, 2), Bn()

        def forward(self, x):
            return self.bn(self.fc(x))

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k, x in enumerate(torch.randn(5, 2).split(4), 1):
        mark_step(k)
        loss = net(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        return net(torch.randn(3, 2))
