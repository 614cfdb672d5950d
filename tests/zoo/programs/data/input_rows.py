"""Rows of input that are not finite."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.zoo.framework import alt, case, mark_step, track


@case(
    "csv-missing-cell",
    "a missing cell of a CSV becomes NaN in __getitem__ and reaches the model in batch 2",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="x",
    module="0",
    step=2,
    also=[alt("forward", ["addmm"])],
    debatable="who stacks a batch has read it",
)
def csv_missing_cell():
    text = "5.1,3.5,0\n4.9,3.0,0\n7.0,3.2,1\n6.4,,1\n6.3,3.3,1\n5.8,2.7,1\n"

    class Rows(Dataset):
        def __init__(self, text):
            self.rows = [[float(c) if c else float("nan") for c in r.split(",")] for r in text.split()]

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            *x, y = self.rows[i]
            return torch.tensor(x), torch.tensor(y)  # ORIGIN

    net = track(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    loader = iter(DataLoader(Rows(text), batch_size=2))
    for k in range(1, 4):
        mark_step(k)
        x, y = next(loader)
        loss = F.binary_cross_entropy_with_logits(net(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[0].weight


@case(
    "numpy-constant-channel",
    "EEG channels are z-scored in numpy; a disconnected electrode has std 0",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="trial",
    module="features.0",
    also=[
        alt(
            "forward",
            ["convolution", "mkldnn_convolution", "_slow_conv2d_forward", "slow_conv2d_forward", "thnn_conv2d"],
        )
    ],
)
def numpy_constant_channel():
    class EegNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv1d(3, 4, 3), nn.ELU(), nn.AdaptiveAvgPool1d(1))
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.features(x).flatten(1))

    rng = np.random.default_rng(0)
    trials = rng.standard_normal((4, 3, 12)).astype("float32")
    trials[2, 1] = 37.5
    with np.errstate(all="ignore"):
        trials = (trials - trials.mean(-1, keepdims=True)) / trials.std(-1, keepdims=True)
    net = track(EegNet())
    x = torch.from_numpy(trials)  # ORIGIN
    loss = F.cross_entropy(net(x), torch.tensor([0, 1, 1, 0]))
    loss.backward()
    return loss, net.head.weight.grad


@case(
    "nan-regression-target",
    "property labels of a molecule data set are NaN where nothing was measured",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="target",
    module="criterion",
    step=2,
    also=[alt("forward", ["mse_loss"])],
    debatable="who stacks a batch has read it",
)
def nan_regression_target():
    class Task(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 5), nn.SiLU(), nn.Linear(5, 2))
            self.criterion = nn.MSELoss()

        def forward(self, x, y):
            return self.criterion(self.net(x), y)

    labels = np.array([[0.1, 0.2], [0.3, 0.9], [0.5, np.nan], [0.2, 0.4]])
    data = TensorDataset(torch.randn(4, 3), torch.as_tensor(labels).float())  # ORIGIN
    task = track(Task())
    opt = torch.optim.AdamW(task.parameters())
    for k, (x, y) in enumerate(DataLoader(data, batch_size=2), 1):
        mark_step(k)
        loss = task(x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, task.net[0].weight


@case(
    "float-label-default-collate",
    "a Dataset returns Python floats; default_collate makes the NaN label a double tensor",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="age",
    module=None,
    step=1,
    also=[alt("forward", ["sub", "smooth_l1_loss", "l1_loss"])],
)
def float_label_default_collate():
    class Scans(Dataset):
        ages = [61.0, 70.5, float("nan"), 55.0]

        def __len__(self):
            return 4

        def __getitem__(self, i):
            return {"image": torch.full((2, 2), float(i)), "age": self.ages[i]}

    net = track(nn.Sequential(nn.Flatten(), nn.Linear(4, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    mark_step(1)
    for batch in DataLoader(Scans(), batch_size=4):  # ORIGIN
        pred = net(batch["image"]).squeeze(1)
        loss = (pred - batch["age"].float()).abs().mean()
        loss.backward()
        opt.step()
    return loss, net[1].weight


@case(
    "sensor-inf-reading",
    "a saturated sensor reports inf; pandas writes it through",
    "",
    "nan-data",
    "inf",
    origin="input",
    name="reading",
    module="encoder.lin",
    also=[alt("forward", ["addmm"])],
    notes="two saturated sensors in a row: the products +inf and -inf meet in the layer",
)
def sensor_inf_reading():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 4)

        def forward(self, x):
            return torch.relu(self.lin(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()
            self.out = nn.Linear(4, 1)

        def forward(self, x):
            return self.out(self.encoder(x))

    readings = np.array([[0.2, 0.4, 1.0], [np.inf, 0.1, np.inf]], dtype=np.float32)
    net = track(Net())
    y = net(torch.from_numpy(readings))  # ORIGIN
    loss = y.square().mean()
    loss.backward()
    return loss, net.out.weight.grad


@case(
    "sensor-inf-single",
    "one inf reading among finite ones: the layer hands it on as inf",
    "",
    "nan-data",
    "inf",
    origin="input",
    name="reading",
    module="0",
    step=1,
    also=[alt("forward", ["addmm"])],
)
def sensor_inf_single():
    net = track(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    readings = np.array([[0.2, 0.4], [float("inf"), 0.1]], dtype=np.float32)
    mark_step(1)
    loss = (net(torch.tensor(readings)) - 1.0).abs().mean()  # ORIGIN
    loss.backward()
    opt.step()
    return loss, net[1].bias


@case(
    "double-to-float-overflow",
    "timestamps-to-the-power features fit in numpy doubles, not in float32",
    "",
    "cast-overflow",
    "inf",
    "_to_copy",
    module=None,
    phase="data",
    notes="the batch is finite in float64; .float() makes it inf",
)
def double_to_float_overflow():
    stamps = np.array([[1.0, 2.0], [3.0, 1.7e9]])
    feats = torch.from_numpy(stamps**5)
    net = track(nn.Linear(2, 1))
    x = feats.float()  # ORIGIN
    loss = F.mse_loss(net(x), torch.zeros(2, 1))
    loss.backward()
    return loss, net.weight.grad


@case(
    "lstm-nan-time-step",
    "one missing hour of a weather series in the second sequence of a packed batch",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="series",
    module="rnn",
    also=[alt("forward", ["addmm", "lstm", "mm", "mkldnn_rnn_layer"])],
    debatable="who selects rows has read them",
)
def lstm_nan_time_step():
    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(2, 5, batch_first=True)
            self.out = nn.Linear(5, 1)

        def forward(self, seqs):
            n = torch.tensor([len(s) for s in seqs])
            x = nn.utils.rnn.pad_sequence(seqs, batch_first=True)
            h, _ = self.rnn(nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False))
            h, _ = nn.utils.rnn.pad_packed_sequence(h, batch_first=True)
            return self.out(h[torch.arange(len(n)), n - 1])

    raw = [np.random.RandomState(3).rand(4, 2), np.random.RandomState(4).rand(6, 2)]
    raw[1][3, 0] = np.nan
    net = track(Forecaster())
    loss = net([torch.tensor(r, dtype=torch.float32) for r in raw]).pow(2).sum()  # ORIGIN
    loss.backward()
    return loss, net.rnn.weight_ih_l0.grad


@case(
    "nan-reward-replay",
    "the simulator returns a NaN reward; it sleeps in the replay buffer until it is sampled",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="reward",
    module=None,
    step=1,
    also=[alt("forward", ["add", "mul"])],
    notes="first used when it is stored, before step 1 ends; computed with at step 3",
)
def nan_reward_replay():
    class Replay:
        def __init__(self, n):
            self.obs, self.rew = torch.zeros(n, 3), torch.zeros(n)
            self.at = 0

        def push(self, obs, rew):
            self.obs[self.at] = torch.as_tensor(obs)
            self.rew[self.at] = torch.as_tensor(rew)
            self.at += 1

    q = track(nn.Linear(3, 1))
    opt = torch.optim.Adam(q.parameters())
    replay = Replay(6)
    rewards = np.array([1.0, 0.5, np.nan, 0.0, 0.2, 0.1], dtype=np.float32)
    for r in rewards:
        replay.push(np.full(3, 0.1, dtype=np.float32), r)  # ORIGIN
    for k, rows in enumerate([[0, 1], [3, 4], [2, 5], [0, 3]], 1):
        mark_step(k)
        i = torch.tensor(rows)
        with torch.no_grad():
            target = replay.rew[i] + 0.9 * q(replay.obs[i]).squeeze(1)
        loss = F.smooth_l1_loss(q(replay.obs[i]).squeeze(1), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return (q.weight,)


@case(
    "numpy-view-of-batch",
    "an augmentation writes through the numpy view of a tensor that PyTorch has filled",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="image",
    module="conv",
    also=[alt("forward", ["convolution", "mkldnn_convolution", "_slow_conv2d_forward"])],
    notes="the tensor was finite when PyTorch wrote it; numpy puts the NaN there",
)
def numpy_view_of_batch():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, x):
            return self.conv(x).mean(dim=(1, 2, 3))

    def contrast(img):
        lo, hi = img.min(), img.max()
        with np.errstate(all="ignore"):
            img -= lo
            img /= hi - lo  # ORIGIN

    batch = torch.rand(3, 1, 5, 5)
    batch[1] = 0.5
    for img in batch.numpy():
        contrast(img)
    net = track(Net())
    loss = net(batch).sum()
    loss.backward()
    return loss, net.conv.weight.grad


@case(
    "mixup-nan-partner",
    "mixup: the clean sample is mixed with a NaN partner drawn by a permutation",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="x",
    module=None,
    step=2,
    also=[alt("forward", ["mul", "add", "lerp"])],
)
def mixup_nan_partner():
    net = track(nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    xs = torch.from_numpy(np.array([[1, 2, 3], [4, 5, 6], [7, 8, np.nan], [1, 0, 1]], dtype=np.float64)).float()
    ys = torch.tensor([0, 1, 2, 0])  # ORIGIN
    for k, rows in enumerate([slice(0, 2), slice(2, 4)], 1):
        mark_step(k)
        x, y = xs[rows], ys[rows]
        perm = torch.tensor([1, 0])
        lam = 0.7
        mixed = lam * x + (1 - lam) * x[perm]
        out = net(mixed)
        loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[perm])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[2].bias


@case(
    "reinforce-nan-reward-scalar",
    "REINFORCE: the environment returned NaN, torch.tensor(reward) is a 0-d tensor",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="reward",
    module=None,
    step=2,
    also=[alt("forward", ["mul"])],
)
def reinforce_nan_reward_scalar():
    pi = track(nn.Linear(2, 2))
    opt = torch.optim.Adam(pi.parameters(), lr=1e-2)
    env = iter([1.0, float("nan"), 0.5])
    for k in (1, 2, 3):
        mark_step(k)
        logp = F.log_softmax(pi(torch.ones(2)), 0)[k % 2]
        reward = torch.tensor(next(env))  # ORIGIN
        loss = -logp * reward
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, pi.weight


@case(
    "static-loss-scale-half",
    "a static loss scale of 2**15 multiplies a half loss of 3",
    "",
    "half-overflow",
    "inf",
    ["mul"],
    module=None,
    step=2,
)
def static_loss_scale_half():
    net = track(nn.Linear(2, 1).half())
    master = [p.detach().clone().float() for p in net.parameters()]
    scale = 2.0**15
    for k, target in enumerate((0.5, 3.0), 1):
        mark_step(k)
        loss = (net(torch.zeros(1, 2).half()) - target).abs().sum()
        net.zero_grad()
        (loss * scale).backward()  # ORIGIN
        with torch.no_grad():
            for m, p in zip(master, net.parameters()):
                m -= 0.1 * p.grad.float() / scale
                p.copy_(m)
    return (loss * scale), net.bias


@case(
    "index-nan-target-rows",
    "labels are shuffled by index_select and split before the loss reads the NaN at step 3",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="y",
    module="crit",
    step=3,
    debatable="who selects rows has read them",
)
def index_nan_target_rows():
    class Task(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(2, 1)
            self.crit = nn.HuberLoss()

        def forward(self, x, y):
            return self.crit(self.f(x), y)

    y = torch.from_numpy(np.array([[0.0], [1.0], [np.nan], [2.0], [3.0], [1.0]], dtype=np.float32))  # ORIGIN
    x = torch.rand(6, 2)
    order = torch.tensor([0, 1, 3, 4, 5, 2])
    xs, ys = x[order].split(2), torch.index_select(y, 0, order).split(2)
    task = track(Task())
    opt = torch.optim.NAdam(task.parameters())
    for k, (a, b) in enumerate(zip(xs, ys), 1):
        mark_step(k)
        loss = task(a, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, task.f.weight


@case(
    "half-input-with-nan",
    "images arrive as float64 with a NaN pixel and are cast with .half() by an input layer",
    "",
    "nan-data",
    "nan",
    origin="input",
    name="img",
    module="stem.conv",
    step=1,
)
def half_input_with_nan():
    class Stem(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 2)

        def forward(self, x):
            return self.conv(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = Stem()

        def forward(self, img):
            return self.stem(img.to(torch.bfloat16)).float().mean()

    img = np.random.RandomState(0).rand(1, 1, 4, 4)
    img[0, 0, 2, 2] = np.nan
    net = track(Net())
    net.stem.bfloat16()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    mark_step(1)
    loss = net(torch.from_numpy(img))  # ORIGIN
    loss.backward()
    opt.step()
    return loss, net.stem.conv.weight
