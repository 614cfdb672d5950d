"""Missing data, marked by NaN."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, NAN, case, mark_step, track


@case(
    "multitask-nan-labels",
    "Tox21-style targets: NaN where a molecule was not assayed, loss on the labelled ones",
    "",
    "clean-missing-data",
    "clean",
)
def multitask_nan_labels():
    table = np.random.RandomState(0).randint(0, 2, (8, 3)).astype(np.float32)
    table[[0, 1, 5, 7], [2, 0, 1, 1]] = np.nan
    y = torch.from_numpy(table)
    net = track(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    x = torch.randn(8, 4)
    for k in range(1, 4):
        mark_step(k)
        logits = net(x)
        labelled = y == y
        loss = F.binary_cross_entropy_with_logits(logits[labelled], y[labelled])
        other = F.mse_loss(logits.sigmoid(), torch.where(labelled, y, logits.sigmoid().detach()))
        opt.zero_grad()
        (loss + other).backward()
        opt.step()
    return loss, net[0].weight


@case(
    "grud-forward-fill",
    "GRU-D: gaps marked NaN, last observation carried forward, decay towards the mean",
    "",
    "clean-missing-data",
    "clean",
)
def grud_forward_fill():
    class GruD(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.decay, self.out = nn.GRUCell(4, 6), nn.Linear(2, 2), nn.Linear(6, 1)

        def forward(self, x):
            seen = ~torch.isnan(x)
            mean = torch.nanmean(x, dim=(0, 1))
            scale = torch.nanmedian(x.abs().flatten(0, 1), 0).values
            h, last, gap = x.new_zeros(x.shape[0], 6), mean.expand(x.shape[0], 2), x.new_zeros(x.shape[0], 2)
            for t in range(x.shape[1]):
                gap = torch.where(seen[:, t], torch.zeros_like(gap), gap + 1)
                last = torch.where(seen[:, t], x[:, t], last)
                g = torch.exp(-F.relu(self.decay(gap)))
                h = self.cell(torch.cat([(g * last + (1 - g) * mean) / scale, seen[:, t].float()], 1), h)
            return self.out(h)

    x = torch.randn(3, 5, 2)
    x[torch.rand(3, 5, 2) < 0.4] = float("nan")
    x[0, 0] = NAN
    net = track(GruD())
    out = net(x)
    out.square().mean().backward()
    return out, net.decay.weight.grad


@case(
    "ratings-with-nan",
    "matrix factorisation: the error is NaN where there is no rating; select, nansum, weights",
    "",
    "clean-missing-data",
    "clean",
)
def ratings_with_nan():
    r = torch.tensor([[5.0, NAN, 3.0], [NAN, NAN, 1.0], [4.0, 2.0, NAN]])
    have = torch.isfinite(r)

    class Mf(nn.Module):
        def __init__(self):
            super().__init__()
            self.u, self.v = nn.Embedding(3, 2), nn.Embedding(3, 2)

        def forward(self):
            return self.u.weight @ self.v.weight.t()

    net = track(Mf())
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for k in range(1, 4):
        mark_step(k)
        err = net() - r
        loss = err[have].square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        rmse = (net().detach() - r).square().nanmean().sqrt()
    return loss, rmse, net.u.weight


@case(
    "queue-nan-slots",
    "a nearest-neighbour queue whose unfilled slots are NaN, filled bit by bit",
    "",
    "clean-missing-data",
    "clean",
)
def queue_nan_slots():
    class Queue(nn.Module):
        def __init__(self, size, d):
            super().__init__()
            self.register_buffer("bank", torch.full((size, d), float("nan")))
            self.register_buffer("ptr", torch.zeros((), dtype=torch.long))

        def forward(self, z):
            sim = z @ self.bank.t()
            sim = torch.where(torch.isnan(sim), torch.full_like(sim, -INF), sim)
            empty = torch.isnan(self.bank).any(1)
            return sim.masked_fill(empty, -INF)

        @torch.no_grad()
        def push(self, z):
            idx = (self.ptr + torch.arange(len(z))) % len(self.bank)
            self.bank[idx] = z.detach()
            self.ptr += len(z)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.queue = nn.Linear(4, 3), Queue(7, 3)

        def forward(self, x):
            return F.normalize(self.enc(x), dim=1)

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k in range(1, 5):
        mark_step(k)
        a, b = net(torch.randn(2, 4)), net(torch.randn(2, 4)).detach()
        with torch.no_grad():
            neg = net.queue(a)
        logits = torch.cat([(a * b).sum(1, keepdim=True), neg], 1)
        loss = F.cross_entropy(logits, torch.zeros(2, dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        net.queue.push(b)
    return loss, net.enc.weight


@case(
    "loader-nan-batches",
    "DataLoader with a collate that pads with NaN, and one worker process",
    "",
    "clean-missing-data",
    "clean",
)
def loader_nan_batches():
    class Ragged(torch.utils.data.Dataset):
        def __init__(self):
            g = torch.Generator().manual_seed(1)
            self.rows = [torch.randn(n, generator=g) for n in (2, 4, 1, 3)]

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            return self.rows[i]

    def collate(rows):
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=float("nan"))

    net = track(nn.Linear(1, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for workers in (0, 1):
        loader = torch.utils.data.DataLoader(
            Ragged(),
            batch_size=2,
            collate_fn=collate,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        for batch in loader:
            valid = ~batch.isnan()
            x = batch.masked_fill(~valid, 0.0)
            pred = net(x[..., None]).squeeze(-1)
            loss = ((pred - x - 1).square() * valid).sum() / valid.sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            per_row = torch.nanmean(batch, dim=1)
    return loss, per_row, net.weight


@case(
    "nan-border-crop",
    "a NaN border marks pixels without neighbours; the crop in the middle is what is used",
    "",
    "clean-missing-data",
    "clean",
)
def nan_border_crop():
    img = torch.rand(1, 1, 6, 6)
    padded = F.pad(img, (1, 1, 1, 1), value=float("nan"))
    lap = padded[..., :-2, 1:-1] + padded[..., 2:, 1:-1] + padded[..., 1:-1, :-2] + padded[..., 1:-1, 2:] - 4 * img
    inner = lap[..., 1:-1, 1:-1]
    conv = track(nn.Conv2d(1, 1, 3, bias=False))
    conv(inner).sum().backward()
    return inner, conv.weight.grad


@case(
    "saliency-with-missing",
    "input gradients of a sample with missing features: NaN in a leaf, replaced before use",
    "",
    "clean-missing-data",
    "clean",
    notes="the leaf is alive only through the graph of the loss that is returned",
)
def saliency_with_missing():
    net = track(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)))
    x = torch.tensor([[0.5, NAN, 1.0, -1.0], [NAN, NAN, 0.1, 0.2]]).requires_grad_()
    ratio = (torch.tensor([[1.0, 0.0, 2.0, 1.0]]) / torch.tensor([[2.0, 0.0, 1.0, 0.0]])).requires_grad_()
    filled = torch.where(x.isnan(), torch.zeros(()), x)
    other = torch.where(torch.isfinite(ratio), ratio, torch.ones(()))
    score = net(filled * other).sum()
    gx, gr = torch.autograd.grad(score, (x, ratio))
    return score, gx, gr


@case(
    "missing-standardised-numpy",
    "a sensor table with gaps is standardised and handed to a plot as numpy, gaps as NaN",
    "",
    "clean-missing-data",
    "clean",
    notes="NaN that stands for 'missing' goes through arithmetic, and numpy() reads it: meant, but read",
    debatable="a value that is read back counts as harm",
)
def missing_standardised_numpy():
    raw = np.array([[1.0, np.nan, 2.0], [0.5, 3.0, np.nan], [2.0, 1.0, 4.0]], dtype=np.float32)
    x = torch.from_numpy(raw)
    have = ~torch.isnan(x)
    mean = x.nanmean(0)
    std = ((x - mean) ** 2).nanmean(0).sqrt()
    z = (x - mean) / std
    curve = z.numpy()
    gaps = int(np.isnan(curve).sum())
    net = track(nn.Linear(3, 1))
    out = net(torch.where(have, z, torch.zeros(())))
    out.sum().backward()
    assert gaps == 2
    return out, mean, std, net.weight.grad
