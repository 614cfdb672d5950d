"""Data pipelines that make batches non-finite."""

import io

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.zoo.framework import case, mark_step, track


@case(
    "logmel-silent-clip",
    "log-mel features in __getitem__: a silent clip gives -inf, its standardisation NaN",
    "",
    "data-pipeline",
    "inf",
    ["log", "log10"],
    module=None,
    phase="data",
    step=2,
)
def logmel_silent_clip():
    class Clips(Dataset):
        def __init__(self):
            t = torch.arange(64) / 8.0
            self.waves = [torch.sin(t), torch.sin(2 * t), torch.zeros(64), torch.cos(t)]

        def __len__(self):
            return len(self.waves)

        def __getitem__(self, i):
            spec = torch.stft(self.waves[i], 16, 8, window=torch.hann_window(16), return_complex=True).abs() ** 2
            mel = torch.log10(spec[:4])  # ORIGIN
            return (mel - mel.mean()) / mel.std(), i % 2

    net = track(nn.Sequential(nn.Conv1d(4, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(3, 2)))
    opt = torch.optim.Adam(net.parameters())
    batches = iter(DataLoader(Clips(), batch_size=2))
    for k in (1, 2):
        mark_step(k)
        x, y = next(batches)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[0].weight


@case(
    "collate-standardise-constant",
    "a collate_fn standardises over the batch; all values of one column agree",
    "",
    "data-pipeline",
    "nan",
    ["div"],
    module=None,
    phase="data",
)
def collate_standardise_constant():
    def collate(rows):
        x = torch.stack([torch.tensor(r) for r in rows])
        mu, sd = x.mean(0), x.std(0)
        return (x - mu) / sd  # ORIGIN

    rows = [[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [0.5, 4.0]]
    net = track(nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 1)))
    for x in DataLoader(rows, batch_size=3, collate_fn=collate):
        out = net(x)
        break
    out.sum().backward()
    return out, net[0].weight.grad


@case(
    "resample-repeated-timestamp",
    "linear interpolation of an irregular series: two samples share a time stamp, 0/0",
    "",
    "data-pipeline",
    "nan",
    ["div"],
    module="interp",
)
def resample_repeated_timestamp():
    class Interp(nn.Module):
        def __init__(self, grid):
            super().__init__()
            self.register_buffer("grid", grid)

        def forward(self, t, v):
            hi = torch.searchsorted(t, self.grid).clamp(1, len(t) - 1)
            lo = hi - 1
            w = (self.grid - t[lo]) / (t[hi] - t[lo])  # ORIGIN
            return torch.lerp(v[lo], v[hi], w)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.interp = Interp(torch.linspace(0, 1, 5))
            self.net = nn.Linear(5, 1)

        def forward(self, t, v):
            return self.net(self.interp(t, v))

    net = track(Net())
    y = net(torch.tensor([0.0, 0.0, 0.6, 1.0]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    y.backward()
    return y, net.net.weight.grad


@case(
    "minmax-in-place-batch",
    "min-max scaling in place on the batch: a black image has max == min",
    "",
    "data-pipeline",
    "nan",
    ["div_"],
    module=None,
    phase="data",
    step=1,
)
def minmax_in_place_batch():
    def scale_(imgs):
        flat = imgs.view(len(imgs), -1)
        lo, hi = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
        flat.sub_(lo).div_(hi - lo)  # ORIGIN
        return imgs

    net = track(nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 2)))
    opt = torch.optim.Adam(net.parameters())
    imgs = torch.rand(3, 1, 3, 3)
    imgs[2] = 0
    mark_step(1)
    loss = F.cross_entropy(net(scale_(imgs)), torch.tensor([0, 1, 1]))
    loss.backward()
    opt.step()
    return loss, net[2].bias


@case(
    "stats-of-train-set-loaded",
    "normalisation statistics come from an .npz: a column missing in the fit has mean NaN",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="stats.mean",
    module=None,
    step=1,
    notes="plain tensors of the pipeline, not buffers of a module",
)
def stats_of_train_set_loaded():
    file = io.BytesIO()
    np.savez(file, mean=np.array([0.1, np.nan, 0.3], dtype=np.float32), std=np.ones(3, dtype=np.float32))
    file.seek(0)
    stats = {k: torch.from_numpy(v) for k, v in np.load(file).items()}  # ORIGIN
    net = track(nn.Linear(3, 1))
    opt = torch.optim.AdamW(net.parameters())
    for k in (1, 2):
        mark_step(k)
        x = torch.rand(4, 3)
        x = (x - stats["mean"]) / stats["std"]
        loss = net(x).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return (net.weight,)


@case(
    "class-weights-empty-class",
    "class weights n/(C*count): a class without samples gets inf and the weighted loss is NaN",
    "",
    "data-pipeline",
    "inf",
    ["div", "reciprocal"],
    module=None,
    phase="data",
    notes="the weight sits in the buffer of the criterion, the division is the origin",
)
def class_weights_empty_class():
    labels = torch.tensor([0, 0, 1, 0, 1, 3])
    counts = torch.bincount(labels, minlength=4)
    weight = len(labels) / (4 * counts)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 4)
            self.criterion = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1)

        def forward(self, x, y):
            return self.criterion(self.lin(x), y)

    net = track(Net())
    loss = net(torch.randn(6, 2), labels)
    loss.backward()
    return loss, net.lin.weight.grad


@case(
    "weighted-sampler-zero-priority",
    "prioritised replay: all TD errors are 0, p/sum(p) is NaN and ends in the importance weights",
    "",
    "state",
    "nan",
    ["div"],
    module=None,
    step=2,
)
def weighted_sampler_zero_priority():
    q = track(nn.Linear(2, 1))
    nn.init.zeros_(q.bias)
    opt = torch.optim.Adam(q.parameters(), lr=1e-3)
    prio = torch.ones(4)
    obs = torch.zeros(4, 2)
    for k in (1, 2, 3):
        mark_step(k)
        p = prio.pow(0.6)
        p = p / p.sum()  # ORIGIN
        i = torch.tensor([0, 1, 2, 3])
        w = (4 * p[i]).pow(-0.4)
        td = q(obs[i]).squeeze(1) - 0.0
        loss = (w * td.square()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        prio[i] = td.detach().abs() * (k < 2) * 0.0
    return loss, q.weight


@case(
    "iterable-stream-running-std",
    "an IterableDataset normalises by a running std whose count is 1 at the first sample",
    "",
    "data-pipeline",
    "nan",
    ["div"],
    module=None,
    phase="data",
    step=1,
)
def iterable_stream_running_std():
    class Stream(IterableDataset):
        def __init__(self, rows):
            self.rows = rows
            self.n, self.mean, self.m2 = 0, torch.zeros(2), torch.zeros(2)

        def __iter__(self):
            for x in self.rows:
                self.n += 1
                d = x - self.mean
                self.mean += d / self.n
                self.m2 += d * (x - self.mean)
                yield d / (self.m2 / max(self.n - 1, 1)).sqrt()  # ORIGIN

    net = track(nn.Linear(2, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    stream = iter(DataLoader(Stream(torch.zeros(3, 2)), batch_size=1))
    for k in (1, 2):
        mark_step(k)
        x = next(stream)
        loss = net(x).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return (net.weight,)
