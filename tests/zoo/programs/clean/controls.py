"""Controls: nothing is non-finite."""

import collections
import copy
import io
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, run_threads, track


@case(
    "control-lstm-seq2seq",
    "control: LSTM encoder-decoder, teacher forcing, clip_grad_norm_",
    "",
    "clean-control",
    "clean",
)
def control_lstm_seq2seq():
    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.src, self.tgt = nn.Embedding(10, 6, padding_idx=0), nn.Embedding(10, 6)
            self.enc, self.dec = nn.LSTM(6, 8, batch_first=True, bidirectional=True), nn.LSTM(6, 16, batch_first=True)
            self.out = nn.Linear(16, 10)

        def forward(self, s, t):
            _, (h, c) = self.enc(self.src(s))
            h, c = (x.transpose(0, 1).reshape(1, len(s), 16).contiguous() for x in (h, c))
            return self.out(self.dec(self.tgt(t), (h, c))[0])

    net = track(Seq2Seq())
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    s, t = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]]), torch.tensor([[1, 3, 5], [1, 2, 2]])
    for k in range(1, 4):
        mark_step(k)
        loss = F.cross_entropy(net(s, t[:, :-1]).flatten(0, 1), t[:, 1:].flatten(), label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    return loss, net.out.weight


@case(
    "control-conv-bn",
    "control: residual convolutions with batch norm, channels_last, cosine schedule, EMA model",
    "",
    "clean-control",
    "clean",
)
def control_conv_bn():
    class Res(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.c1, self.b1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
            self.c2, self.b2 = nn.Conv2d(c, c, 3, padding=1, groups=2), nn.GroupNorm(2, c)

        def forward(self, x):
            return F.silu(x + self.b2(self.c2(F.relu(self.b1(self.c1(x))))))

    net = track(
        nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, 1),
            Res(4),
            nn.MaxPool2d(2),
            Res(4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(4, 3),
        )
    ).to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 3)
    ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for k in range(1, 4):
        mark_step(k)
        x = torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(net(x), torch.randint(0, 3, (4,)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        ema.update_parameters(net)
    net.eval()
    return loss, net[1].b1.running_var, ema(x)


@case(
    "control-transformer-encoder",
    "control: pre-norm encoder without any mask, AdamW with warm-up",
    "",
    "clean-control",
    "clean",
)
def control_transformer_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
    net = track(
        nn.Sequential(nn.Linear(3, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3))
    )
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 3))
    for k in range(1, 4):
        mark_step(k)
        x = torch.randn(2, 6, 3)
        loss = F.smooth_l1_loss(net(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    return loss, net[0].weight


@case(
    "control-vae",
    "control: a VAE with KL annealing, reparameterised by torch.distributions",
    "",
    "clean-control",
    "clean",
)
def control_vae():
    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.dec = nn.Linear(6, 4), nn.Linear(2, 6)

        def forward(self, x):
            mu, lv = self.enc(x).chunk(2, -1)
            q = torch.distributions.Normal(mu, F.softplus(lv) + 1e-4)
            z = q.rsample()
            kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(-1)
            return self.dec(z), kl

    net = track(Vae())
    opt = torch.optim.Adamax(net.parameters(), lr=1e-2)
    x = torch.rand(5, 6)
    for k in range(1, 4):
        mark_step(k)
        out, kl = net(x)
        loss = F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(-1).add(k / 3 * kl).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.enc.weight


@case("control-wgan-gp", "control: WGAN with gradient penalty (double backward)", "", "clean-control", "clean")
def control_wgan_gp():
    gan = track(
        nn.ModuleDict(
            {
                "g": nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 3)),
                "d": nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)),
            }
        )
    )
    og, od = (torch.optim.Adam(gan[n].parameters(), 1e-3, betas=(0.0, 0.9)) for n in ("g", "d"))
    for k in range(1, 4):
        mark_step(k)
        real, fake = torch.randn(4, 3), gan["g"](torch.randn(4, 2))
        mix = torch.lerp(real, fake.detach(), torch.rand(4, 1)).requires_grad_()
        (g,) = torch.autograd.grad(gan["d"](mix).sum(), mix, create_graph=True)
        d_loss = gan["d"](fake.detach()).mean() - gan["d"](real).mean() + 10 * (g.norm(dim=1) - 1).square().mean()
        od.zero_grad()
        d_loss.backward()
        od.step()
        og.zero_grad()
        g_loss = -gan["d"](fake).mean()
        g_loss.backward()
        og.step()
    return d_loss, g_loss, gan["g"][0].weight


@case(
    "control-clip-contrastive",
    "control: CLIP-style contrastive loss with a learned, clamped temperature",
    "",
    "clean-control",
    "clean",
)
def control_clip_contrastive():
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.logit_scale = (
                nn.Linear(5, 4),
                nn.Linear(3, 4),
                nn.Parameter(torch.tensor(math.log(1 / 0.07))),
            )

        def forward(self, x, y):
            s = self.logit_scale.exp() * F.normalize(self.a(x), dim=-1) @ F.normalize(self.b(y), dim=-1).t()
            t = torch.arange(len(x))
            return (F.cross_entropy(s, t) + F.cross_entropy(s.t(), t)) / 2

    net = track(Clip())
    opt = torch.optim.AdamW(
        [
            {"params": net.a.parameters()},
            {"params": net.b.parameters(), "lr": 1e-3},
            {"params": [net.logit_scale], "weight_decay": 0.0},
        ],
        lr=1e-2,
    )
    for k in range(1, 4):
        mark_step(k)
        loss = net(torch.randn(4, 5), torch.randn(4, 3))
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            net.logit_scale.clamp_(0, math.log(100))
    return loss, net.logit_scale, net.a.weight


@case(
    "control-bf16-autocast",
    "control: bfloat16 autocast on the CPU with gradient accumulation",
    "",
    "clean-control",
    "clean",
)
def control_bf16_autocast():
    net = track(
        nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.GELU(), nn.Flatten(), nn.LayerNorm(20), nn.Linear(20, 2))
    )
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for k in range(1, 3):
        mark_step(k)
        opt.zero_grad(set_to_none=True)
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(torch.randn(3, 2, 5)), torch.tensor([0, 1, 1])) / 3
            loss.backward()
        opt.step()
    return loss, net[0].weight


@case(
    "control-lbfgs",
    "control: L-BFGS with strong Wolfe line search, losses read with float()",
    "",
    "clean-control",
    "clean",
)
def control_lbfgs():
    net = track(nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)))
    opt = torch.optim.LBFGS(net.parameters(), lr=1, max_iter=5, line_search_fn="strong_wolfe")
    x = torch.linspace(-1, 1, 12)[:, None]
    seen = []

    def closure():
        opt.zero_grad()
        loss = F.mse_loss(net(x), (3 * x).sin())
        loss.backward()
        seen.append(float(loss))
        return loss

    for k in range(1, 3):
        mark_step(k)
        opt.step(closure)
    return torch.tensor(seen), net[0].weight


@case(
    "control-swa-update-bn",
    "control: stochastic weight averaging, update_bn, SWALR, state_dict round trip",
    "",
    "clean-control",
    "clean",
)
def control_swa_update_bn():
    net = track(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    swa = torch.optim.swa_utils.AveragedModel(net)
    sched = torch.optim.swa_utils.SWALR(opt, swa_lr=0.05)
    batches = [torch.randn(6, 3) for _ in range(3)]
    for k, x in enumerate(batches, 1):
        mark_step(k)
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        swa.update_parameters(net)
        sched.step()
    torch.optim.swa_utils.update_bn(batches, swa)
    buf = io.BytesIO()
    torch.save({"model": swa.state_dict(), "opt": opt.state_dict()}, buf)
    buf.seek(0)
    swa.load_state_dict(torch.load(buf)["model"])
    return loss, swa(batches[0]), net[1].running_mean


@case(
    "control-dqn-double",
    "control: double DQN with replay, target network, huber loss and threads for rollout",
    "",
    "clean-control",
    "clean",
)
def control_dqn_double():
    q = track(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)))
    target = copy.deepcopy(q).requires_grad_(False)
    opt, replay = torch.optim.RMSprop(q.parameters(), lr=1e-3, centered=True), collections.deque(maxlen=32)

    def rollout(seed):
        def work():
            g = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for _ in range(6):
                    s = torch.randn(4, generator=g)
                    replay.append((s, int(q(s).argmax()), s.sum().item(), torch.randn(4, generator=g)))

        return work

    run_threads(rollout(0), rollout(1))
    rng = random.Random(0)
    for k in range(1, 4):
        mark_step(k)
        s, a, r, s2 = zip(*rng.sample(replay, 6))
        s, a, r, s2 = torch.stack(s), torch.tensor(a), torch.tensor(r), torch.stack(s2)
        with torch.no_grad():
            best = q(s2).argmax(1, keepdim=True)
            goal = r + 0.9 * target(s2).gather(1, best).squeeze(1)
        loss = F.huber_loss(q(s).gather(1, a[:, None]).squeeze(1), goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        torch._foreach_lerp_(list(target.parameters()), list(q.parameters()), 0.05)
    return loss, q[0].weight, target[0].weight
