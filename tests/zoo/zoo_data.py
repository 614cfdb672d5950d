"""Bugs of data, weights, memory and optimizers, written for torchnan. The framework and the conventions are those of zoo_open.py."""
import copy
import io
import math
import os
import sys

from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.prune as prune

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import own_zoo
from zoo_open import CASES, HOOKS, INF, NAN, SPLIT, alt, applies, case, dirty, mark_step, run_threads, track

own_zoo.begin(__file__)

# CASES BEGIN
# =========================================================================== 1. bad input rows

@case("csv-missing-cell", "a missing cell of a CSV becomes NaN in __getitem__ and reaches the model in batch 2",
      "", "nan-data", "nan", origin="input", name="x", module="0", step=2,
      also=[alt("forward", ["addmm"])],
      debatable="who stacks a batch has read it")
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


@case("numpy-constant-channel", "EEG channels are z-scored in numpy; a disconnected electrode has std 0",
      "", "nan-data", "nan", origin="input", name="trial", module="features.0",
      also=[alt("forward", ["convolution", "mkldnn_convolution", "_slow_conv2d_forward", "slow_conv2d_forward",
                            "thnn_conv2d"])])
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


@case("nan-regression-target", "property labels of a molecule data set are NaN where nothing was measured",
      "", "nan-data", "nan", origin="input", name="target", module="criterion", step=2,
      also=[alt("forward", ["mse_loss"])],
      debatable="who stacks a batch has read it")
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


@case("float-label-default-collate", "a Dataset returns Python floats; default_collate makes the NaN label a double tensor",
      "", "nan-data", "nan", origin="input", name="age", module=None, step=1,
      also=[alt("forward", ["sub", "smooth_l1_loss", "l1_loss"])])
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


@case("sensor-inf-reading", "a saturated sensor reports inf; pandas writes it through",
      "", "nan-data", "inf", origin="input",
      name="reading", module="encoder.lin", also=[alt("forward", ["addmm"])],
      notes="two saturated sensors in a row: the products +inf and -inf meet in the layer")
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


@case("sensor-inf-single", "one inf reading among finite ones: the layer hands it on as inf",
      "", "nan-data", "inf", origin="input",
      name="reading", module="0", step=1, also=[alt("forward", ["addmm"])])
def sensor_inf_single():
    net = track(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    readings = np.array([[0.2, 0.4], [float("inf"), 0.1]], dtype=np.float32)
    mark_step(1)
    loss = (net(torch.tensor(readings)) - 1.0).abs().mean()  # ORIGIN
    loss.backward()
    opt.step()
    return loss, net[1].bias


@case("double-to-float-overflow", "timestamps-to-the-power features fit in numpy doubles, not in float32",
      "", "cast-overflow", "inf", "_to_copy", module=None, phase="data",
      notes="the batch is finite in float64; .float() makes it inf")
def double_to_float_overflow():
    stamps = np.array([[1.0, 2.0], [3.0, 1.7e9]])
    feats = torch.from_numpy(stamps ** 5)
    net = track(nn.Linear(2, 1))
    x = feats.float()  # ORIGIN
    loss = F.mse_loss(net(x), torch.zeros(2, 1))
    loss.backward()
    return loss, net.weight.grad


@case("lstm-nan-time-step", "one missing hour of a weather series in the second sequence of a packed batch",
      "", "nan-data", "nan", origin="input", name="series", module="rnn",
      also=[alt("forward", ["addmm", "lstm", "mm", "mkldnn_rnn_layer"])],
      debatable="who selects rows has read them")
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


@case("nan-reward-replay", "the simulator returns a NaN reward; it sleeps in the replay buffer until it is sampled",
      "", "nan-data", "nan", origin="input", name="reward", module=None, step=3,
      also=[alt("forward", ["add", "mul"])], notes="stored at step 1, first computed with at step 3")
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
    return q.weight,


@case("numpy-view-of-batch", "an augmentation writes through the numpy view of a tensor that PyTorch has filled",
      "", "nan-data", "nan",
      origin="input", name="image", module="conv",
      also=[alt("forward", ["convolution", "mkldnn_convolution", "_slow_conv2d_forward"])],
      notes="the tensor was finite when PyTorch wrote it; numpy puts the NaN there")
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


@case("mixup-nan-partner", "mixup: the clean sample is mixed with a NaN partner drawn by a permutation",
      "", "nan-data", "nan", origin="input", name="x", module=None,
      step=2, also=[alt("forward", ["mul", "add", "lerp"])])
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

# =========================================================================== 2. parameters and buffers

@case("checkpoint-nan-bias", "a diverged run was saved: one bias of the second block in the checkpoint is NaN",
      "", "nan-weights", "nan", origin="parameter", name="blocks.1.fc2.bias",
      module="blocks.1.fc2", also=[alt("forward", ["addmm"])])
def checkpoint_nan_bias():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)
            self.fc1 = nn.Linear(4, 8)
            self.fc2 = nn.Linear(8, 4)

        def forward(self, x):
            return x + self.fc2(F.gelu(self.fc1(self.norm(x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x):
            for b in self.blocks:
                x = b(x)
            return x

    donor = Net().state_dict()
    donor["blocks.1.fc2.bias"] = torch.tensor([0.0, 0.1, NAN, 0.0])
    file = io.BytesIO()
    torch.save(donor, file)
    file.seek(0)
    net = Net()
    net.load_state_dict(torch.load(file))  # ORIGIN
    net = track(net).eval()
    with torch.no_grad():
        return net(torch.randn(2, 4))


@case("assigned-safetensors-nan", "load_state_dict(assign=True) of a memory-mapped file with a corrupted block",
      "", "nan-weights", "nan", origin="parameter", name="down.conv.weight", module="down.conv",
      also=[alt("forward", ["convolution", "mkldnn_convolution", "_slow_conv2d_forward"])])
def assigned_safetensors_nan():
    class Down(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3, padding=1)
            self.norm = nn.GroupNorm(1, 3)

        def forward(self, x):
            return F.silu(self.norm(self.conv(x)))

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = Down()
            self.up = nn.ConvTranspose2d(3, 2, 2, stride=2)

        def forward(self, x):
            return self.up(F.max_pool2d(self.down(x), 2))

    raw = {k: bytearray(v.numpy().tobytes()) for k, v in UNet().state_dict().items()}
    raw["down.conv.weight"][40:48] = b"\xff" * 8
    net = UNet()
    sd = {k: torch.frombuffer(raw[k], dtype=torch.float32).view(v.shape) for k, v in net.state_dict().items()}
    net.load_state_dict(sd, assign=True)  # ORIGIN
    net = track(net)
    loss = net(torch.randn(1, 2, 4, 4)).abs().mean()
    loss.backward()
    return loss, net.up.weight.grad


@case("batchnorm-poisoned-in-training", "a NaN batch is skipped by the loop, but BatchNorm keeps its statistics: eval is NaN",
      "", "state", "nan", origin="input", name="x", module="stem.0", step=2,
      also=[alt("forward", ["native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
                            "convolution"])],
      notes="the loop looks at the loss and skips the step; the running statistics have taken the NaN in")
def batchnorm_poisoned_in_training():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(self.stem(x).mean(dim=(2, 3)))

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    imgs = np.random.RandomState(0).rand(6, 1, 5, 5).astype(np.float32)
    imgs[3, 0, 2, 2] = np.nan
    for k in range(1, 4):
        mark_step(k)
        x = torch.from_numpy(imgs[2 * k - 2:2 * k])  # ORIGIN
        loss = F.cross_entropy(net(x), torch.tensor([0, 1]))
        if not torch.isfinite(loss):
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        return net(torch.rand(2, 1, 5, 5))


@case("normalizer-buffer-nan", "observation statistics saved before the first observation: mean buffer is NaN",
      "", "nan-weights", "nan", origin="buffer", name="normalizer.mean",
      module="normalizer", also=[alt("forward", ["sub"])])
def normalizer_buffer_nan():
    class Normalizer(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.register_buffer("mean", torch.zeros(d))
            self.register_buffer("var", torch.ones(d))
            self.register_buffer("count", torch.tensor(0))

        def forward(self, x):
            return (x - self.mean) / (self.var + 1e-8).sqrt()

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.normalizer = Normalizer(3)
            self.pi = nn.Linear(3, 2)

        def forward(self, x):
            return torch.distributions.Categorical(logits=self.pi(self.normalizer(x)), validate_args=False)

    with np.errstate(all="ignore"):
        mean = np.zeros(3, dtype=np.float32) / np.float32(0)
    policy = Policy()
    policy.load_state_dict({"normalizer.mean": torch.from_numpy(mean)}, strict=False)  # ORIGIN
    policy = track(policy)
    return policy(torch.randn(2, 3)).logits,


@case("tied-embedding-nan-row", "input and output embedding are tied; the row of a new token was never trained and is NaN",
      "", "nan-weights", "nan", origin="parameter", name="emb.weight",
      module="emb", also=[alt("forward", ["embedding", "mm", "addmm", "native_layer_norm"])],
      notes="first read by the lookup of the NaN row in emb")
def tied_embedding_nan_row():
    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(6, 4)
            self.ln = nn.LayerNorm(4)
            self.head = nn.Linear(4, 6, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, ids):
            return self.head(self.ln(self.emb(ids)))

    lm = Lm()
    table = lm.emb.weight.detach().numpy().copy()
    table[5] = np.nan
    lm.emb.weight.data = torch.from_numpy(table)  # ORIGIN
    lm = track(lm)
    ids = torch.tensor([[1, 5, 2]])
    loss = F.cross_entropy(lm(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    return loss, lm.ln.weight.grad


@case("parameterlist-level-scale", "per-level scales of a detector head live in a ParameterList; one was loaded as NaN",
      "", "nan-weights", "nan", origin="parameter", name="scales.1", module="",
      also=[alt("forward", ["mul"])])
def parameterlist_level_scale():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = nn.Conv2d(2, 4, 1)
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(3)])

        def forward(self, pyramid):
            return [F.relu(self.tower(p) * s) for p, s in zip(pyramid, self.scales)]

    head = Head()
    with torch.no_grad():
        for i, v in enumerate(np.array([[1.0], [np.nan], [1.0]], dtype=np.float32)):
            head.scales[i].copy_(torch.from_numpy(v))  # ORIGIN
    head = track(head)
    outs = head([torch.rand(1, 2, n, n) for n in (4, 2, 1)])
    loss = sum(o.sum() for o in outs)
    loss.backward()
    return loss, head.tower.weight.grad


@case("numpy-view-of-weight", "a legacy converter writes weights through .numpy(): a NaN slips into the last layer",
      "", "nan-weights", "nan", origin="parameter", name="detect.weight",
      module="detect", also=[alt("forward", ["addmm", "mm"])])
def numpy_view_of_weight():
    class Darknet(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.1))
            self.detect = nn.Linear(6, 3)

        def forward(self, x):
            return self.detect(self.backbone(x))

    net = track(Darknet())
    blob = np.random.RandomState(1).randn(6 * 4 + 6 + 18 + 3).astype(np.float32)
    blob[40] = np.nan
    at = 0
    for p in net.parameters():
        view = p.detach().numpy().reshape(-1)
        view[:] = blob[at:at + view.size]  # ORIGIN
        at += view.size
    net.eval()
    with torch.inference_mode():
        return net(torch.ones(1, 4)).clone()


@case("prune-renormalise-data", "after pruning, each row of the weight is rescaled to unit norm through .data: a dead row is 0/0",
      "", "load-time", "nan", "div_", module=None, phase="load",
      notes="the program breaks the weight before the first forward")
def prune_renormalise_data():
    net = track(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)))
    w = net[0].weight
    mask = torch.ones_like(w)
    mask[1] = 0
    w.data.mul_(mask)
    w.data.div_(w.data.norm(dim=1, keepdim=True))  # ORIGIN
    loss = net(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    return loss, net[2].weight.grad


@case("dora-magnitude-init", "DoRA: the weight is divided by its column norm in the constructor; a zero column is NaN",
      "", "init", "nan", "div", module=None, phase="load",
      notes="the constructor of a module is no call of it")
def dora_magnitude_init():
    class DoraLinear(nn.Module):
        def __init__(self, lin):
            super().__init__()
            norm = lin.weight.detach().norm(dim=0, keepdim=True)
            self.direction = nn.Parameter(lin.weight.detach() / norm)  # ORIGIN
            self.magnitude = nn.Parameter(norm.clone())

        def forward(self, x):
            return F.linear(x, self.direction * self.magnitude)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            lin = nn.Linear(3, 4)
            with torch.no_grad():
                lin.weight[:, 2] = 0
            self.adapter = DoraLinear(lin)
            self.out = nn.Linear(4, 1)

        def forward(self, x):
            return self.out(torch.tanh(self.adapter(x)))

    net = track(Net())
    opt = torch.optim.Adam(net.parameters())
    loss = net(torch.randn(2, 3)).mean()
    loss.backward()
    opt.step()
    return loss, net.out.weight


@case("alibi-slopes-from-zero", "decay rates 1/arange(0..) are kept in a buffer; head 0 gets inf and inf * 0 at distance 0",
      "", "init", "inf", "reciprocal", module=None, phase="load")
def alibi_slopes_from_zero():
    class Decay(nn.Module):
        def __init__(self, heads, n):
            super().__init__()
            self.register_buffer("rate", torch.arange(heads).float().reciprocal())  # ORIGIN
            d = torch.arange(n)
            self.register_buffer("dist", (d[:, None] - d[None]).abs().float())

        def forward(self, scores):
            return (scores - self.rate[:, None, None] * self.dist).softmax(-1)

    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)
            self.decay = Decay(2, 3)

        def forward(self, x):
            q, k = self.q(x).view(3, 2, 2), self.k(x).view(3, 2, 2)
            return self.decay(torch.einsum("ihd,jhd->hij", q, k))

    net = track(Attn())
    loss = net(torch.randn(3, 4)).square().sum()
    loss.backward()
    return loss, net.q.weight.grad


@case("evolution-vector-to-parameters", "evolution strategy: all fitnesses equal, the standardised fitness is 0/0, the genome follows",
      "", "optimizer", "nan", "div", module=None, step=2,
      notes="vector_to_parameters assigns .data")
def evolution_vector_to_parameters():
    net = track(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
    theta = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    x = torch.randn(6, 2)

    def fitness(vec, k):
        nn.utils.vector_to_parameters(vec, net.parameters())
        with torch.no_grad():
            reward = (net(x) > 0).float().mean()
        return reward if k == 1 else torch.zeros(())

    for k in (1, 2, 3):
        mark_step(k)
        noise = torch.randn(4, theta.numel())
        f = torch.stack([fitness(theta + 0.5 * n, k) for n in noise])
        adv = (f - f.mean()) / f.std()  # ORIGIN
        theta = theta + 0.1 * adv @ noise
    nn.utils.vector_to_parameters(theta, net.parameters())
    return net[0].weight, net(x)


@case("swap-tensors-quantised", "swap_tensors puts a dequantised weight in place whose scale file held NaN",
      "", "nan-weights", "nan", origin="parameter", name="proj.weight", module="proj",
      also=[alt("forward", ["addmm", "mm", "mul"])],
      notes="the scale comes from a file; the weight that the model holds is scale * int8")
def swap_tensors_quantised():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(3, 2)

        def forward(self, x):
            return self.proj(x).relu()

    net = track(Net())
    new = nn.Parameter(torch.from_numpy(np.array([[0.5, 0.25, 1.0], [np.nan, 0.1, 0.2]], dtype=np.float32)))
    torch.utils.swap_tensors(net.proj.weight, new)  # ORIGIN
    with torch.no_grad():
        return net(torch.ones(1, 3))


@case("adam-state-nan", "a resumed Adam: exp_avg of the optimizer checkpoint is NaN, the weights are not",
      "", "nan-state", "nan", origin="input", name="exp_avg", module=None, step=1, phase="optimizer",
      also=[alt("forward", ["lerp_", "mul_", "addcdiv_", "_foreach_lerp_"])],
      notes="the state belongs to no module")
def adam_state_nan():
    net = track(nn.Linear(2, 2))
    opt = torch.optim.Adam(net.parameters(), lr=0.1)
    net(torch.ones(1, 2)).sum().backward()
    opt.step()
    sd = copy.deepcopy(opt.state_dict())
    sd["state"][0]["exp_avg"] = torch.from_numpy(np.array([[0.1, np.nan], [0.0, 0.0]], dtype=np.float32))
    opt.load_state_dict(sd)  # ORIGIN
    mark_step(1)
    opt.zero_grad()
    net(torch.ones(1, 2)).sum().backward()
    opt.step()
    return net.weight,


@case("weightnorm-gain-loaded", "weight_norm through parametrizations: the gain g of a vocoder checkpoint is NaN",
      "", "nan-weights", "nan", origin="parameter",
      name="ups.0.parametrizations.weight.original0", module="ups.0.parametrizations.weight.0",
      also=[alt("forward", ["_weight_norm_interface", "_weight_norm", "mul"])])
def weightnorm_gain_loaded():
    class Vocoder(nn.Module):
        def __init__(self):
            super().__init__()
            wn = nn.utils.parametrizations.weight_norm
            self.ups = nn.ModuleList([wn(nn.ConvTranspose1d(3, 2, 4, 2, 1)), wn(nn.ConvTranspose1d(2, 1, 4, 2, 1))])

        def forward(self, mel):
            for up in self.ups:
                mel = up(F.leaky_relu(mel, 0.1))
            return torch.tanh(mel)

    net = Vocoder()
    g = net.ups[0].parametrizations.weight.original0
    bad = np.ones(tuple(g.shape), dtype=np.float32)
    bad[1] = np.nan
    net.load_state_dict({"ups.0.parametrizations.weight.original0": torch.from_numpy(bad)}, strict=False)  # ORIGIN
    net = track(net)
    loss = net(torch.randn(1, 3, 4)).abs().mean()
    loss.backward()
    return loss, net.ups[1].bias.grad


# =========================================================================== 3. unwritten memory

@case("parameter-never-initialised", "nn.Parameter(torch.empty(...)) in a constructor that forgets reset_parameters()",
      "", "uninitialised", "nan", origin="parameter", name="bg_embeddings", module="",
      also=[alt("forward", ["cat", "mm", "matmul", "linalg_vector_norm", "div"])])
def parameter_never_initialised():
    class Stale(nn.Module):
        def __init__(self):
            super().__init__()
            self.bg_embeddings = nn.Parameter(dirty(torch.empty(1, 4)))  # ORIGIN
            self.visual = nn.Linear(3, 4)

        def forward(self, x, text):
            text = torch.cat([text, self.bg_embeddings])
            text = text / text.norm(dim=-1, keepdim=True)
            return self.visual(x) @ text.t()

    net = track(Stale())
    loss = F.cross_entropy(net(torch.randn(2, 3), torch.randn(2, 4)), torch.tensor([0, 1]))
    loss.backward()
    return loss, net.visual.weight.grad


@case("crf-half-initialised", "CRF: only the start scores are initialised, the transition matrix is raw memory",
      "", "uninitialised", "nan", origin="parameter", name="crf.transitions", module="crf",
      also=[alt("forward", ["add"])])
def crf_half_initialised():
    class Crf(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.start = nn.Parameter(torch.empty(n))
            self.transitions = nn.Parameter(torch.Tensor(n, n))
            nn.init.uniform_(self.start, -0.1, 0.1)
            dirty(self.transitions)  # ORIGIN

        def forward(self, emissions):
            score = self.start + emissions[0]
            for e in emissions[1:]:
                score = torch.logsumexp(score[:, None] + self.transitions + e[None], 0)
            return torch.logsumexp(score, 0)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4)
            self.crf = Crf(4)

        def forward(self, x):
            return self.crf(self.lstm(x)[0])

    net = track(Tagger())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = net(torch.randn(5, 3))
    loss.backward()
    opt.step()
    return loss, net.crf.start


@case("legacy-tensor-accumulator", "torch.Tensor(n) is taken for zeros and used as a running confusion matrix",
      "", "uninitialised", "nan", ["empty"], module=None,
      origin="uninit", name="hist", also=[alt("forward", ["add", "add_"])])
def legacy_tensor_accumulator():
    net = track(nn.Linear(3, 2))
    hist = dirty(torch.Tensor(2, 2))  # ORIGIN
    with torch.no_grad():
        for _ in range(3):
            x, y = torch.randn(4, 3), torch.randint(2, (4,))
            pred = net(x).argmax(1)
            hist += torch.bincount(2 * y + pred, minlength=4).view(2, 2)
    iou = hist.diag() / (hist.sum(0) + hist.sum(1) - hist.diag())
    return iou.mean(),


@case("collate-new-empty-padding", "a collate function pads with new_empty and never writes the padding",
      "", "uninitialised", "nan", ["new_empty"], module="proj", origin="uninit",
      name="batch", also=[alt("forward", ["addmm", "mm"])])
def collate_new_empty_padding():
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(2, 3)

        def forward(self, x, n):
            h = self.proj(x)
            keep = (torch.arange(x.shape[1])[None] < n[:, None]).float()[..., None]
            return (h * keep).sum(1) / n[:, None]

    def collate(items):
        n = torch.tensor([len(i) for i in items])
        out = dirty(items[0].new_empty(len(items), int(n.max()), 2))  # ORIGIN
        for row, item in zip(out, items):
            row[:len(item)] = item
        return out, n

    data = [torch.randn(3, 2), torch.randn(1, 2), torch.randn(2, 2)]
    net = track(Pool())
    for x, n in DataLoader(data, batch_size=3, collate_fn=collate):
        loss = net(x, n).pow(2).mean()
        loss.backward()
    return loss, net.proj.weight.grad


@case("masked-writer-empty-like", "router: each expert writes its tokens into empty_like(x); tokens of no expert stay garbage",
      "", "uninitialised", "nan", ["empty_like"], module="moe", origin="uninit",
      name="out", step=1, also=[alt("forward", ["add"])])
def masked_writer_empty_like():
    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x, route):
            out = dirty(torch.empty_like(x))  # ORIGIN
            for e, expert in enumerate(self.experts):
                out[route == e] = expert(x[route == e])
            return x + out

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.moe = Moe()
            self.out = nn.Linear(4, 1)

        def forward(self, x, r):
            return self.out(self.moe(x, r))

    net = track(Net())
    opt = torch.optim.Adam(net.parameters())
    mark_step(1)
    loss = net(torch.randn(5, 4), torch.tensor([0, 1, -1, 1, 0])).mean()
    loss.backward()
    opt.step()
    return loss, net.out.weight


@case("baddbmm-beta-one", "scores = baddbmm(torch.empty(...), q, k) with beta left at 1: raw memory is added",
      "", "uninitialised", "nan", ["empty"], module="attn", origin="uninit",
      name="baddbmm_input", also=[alt("forward", ["baddbmm"])])
def baddbmm_beta_one():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = torch.baddbmm(dirty(torch.empty(q.shape[0], q.shape[1], k.shape[1])),  # ORIGIN
                                   q, k.transpose(1, 2), alpha=0.5)
            return scores.softmax(-1) @ v

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, x):
            return x + self.attn(x)

    net = track(Block())
    with torch.inference_mode():
        return net(torch.randn(2, 3, 4)).sum().item(), net(torch.randn(2, 3, 4))


@case("gru-empty-h0", "the initial hidden state of a decoder is allocated with torch.empty",
      "", "uninitialised", "nan", ["empty"], module="dec.gru", origin="uninit",
      name="h0", also=[alt("forward", ["addmm", "gru", "mm"])])
def gru_empty_h0():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(3, 4, batch_first=True)
            self.out = nn.Linear(4, 3)

        def init_hidden(self, b):
            return dirty(torch.empty(1, b, 4))  # ORIGIN

        def forward(self, y):
            h, _ = self.gru(y, self.init_hidden(len(y)))
            return self.out(h)

    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.dec = Decoder()

        def forward(self, y):
            return self.dec(y)

    net = track(Seq2Seq())
    loss = F.mse_loss(net(torch.randn(2, 3, 3)), torch.zeros(2, 3, 3))
    loss.backward()
    return loss, net.dec.out.bias.grad


@case("grad-empty-accumulates", "gradient buffers are preallocated with empty_like; backward accumulates into them",
      "", "uninitialised", "nan", ["empty_like"], module=None, origin="uninit", name="grad",
      phase="backward", also=[alt("backward", [], ["torch::autograd::AccumulateGrad"])])
def grad_empty_accumulates():
    net = track(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for p in net.parameters():
        p.grad = dirty(torch.empty_like(p))  # ORIGIN
    loss = net(torch.randn(4, 2)).mean()
    loss.backward()
    opt.step()
    return net[0].weight, net[1].bias


@case("momentum-buffer-empty", "a home-made optimizer allocates its momentum with empty_like",
      "", "uninitialised", "nan", ["empty_like"], module=None,
      origin="uninit", name="momentum", phase="optimizer", step=1, also=[alt("forward", ["mul_"])])
def momentum_buffer_empty():
    class HeavyBall(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, dict(lr=lr))

        @torch.no_grad()
        def step(self):
            for g in self.param_groups:
                for p in g["params"]:
                    if p.grad is None:
                        continue
                    s = self.state[p]
                    if "momentum" not in s:
                        s["momentum"] = dirty(torch.empty_like(p, memory_format=torch.preserve_format))  # ORIGIN
                    p.sub_(s["momentum"].mul_(0.9).add_(p.grad), alpha=g["lr"])

    net = track(nn.Linear(3, 1))
    opt = HeavyBall(net.parameters(), 0.1)
    for k in (1, 2):
        mark_step(k)
        opt.zero_grad()
        net(torch.ones(2, 3)).sum().backward()
        opt.step()
    return net.weight,


@case("resize-grow-tail", "a ring of features is grown with resize_(): the new tail is garbage",
      "", "uninitialised", "nan", ["resize_"], module="score",
      origin="uninit", name="bank", also=[alt("forward", ["addmm", "mm"])])
def resize_grow_tail():
    class Matcher(nn.Module):
        def __init__(self):
            super().__init__()
            self.score = nn.Linear(3, 1)

        def forward(self, bank):
            return self.score(bank).max()

    net = track(Matcher())
    bank = torch.randn(2, 3)
    bank.resize_(4, 3)  # ORIGIN
    dirty(bank[2:])
    bank[2] = torch.ones(3)
    loss = net(bank)
    loss.backward()
    return loss, net.score.weight.grad


@case("position-table-buffer", "a learned position table, frozen into a buffer, is NaN for one position; it is looked up by index",
      "", "nan-weights", "nan", origin="buffer",
      name="pos.table", module="pos", also=[alt("forward", ["index", "add", "native_layer_norm"])],
      notes="the lookup that reads the buffer is in pos")
def position_table_buffer():
    class Pos(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.register_buffer("table", table)

        def forward(self, ids):
            return self.table[ids]

    class Net(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.pos = Pos(table)
            self.tok = nn.Embedding(5, 4)
            self.ln = nn.LayerNorm(4)

        def forward(self, ids, where):
            return self.ln(self.tok(ids) + self.pos(where))

    table = np.random.RandomState(0).randn(8, 4).astype(np.float32)
    table[6] = np.nan
    net = track(Net(torch.from_numpy(table)))  # ORIGIN
    loss = net(torch.tensor([1, 2, 3]), torch.tensor([0, 6, 2])).abs().sum()
    loss.backward()
    return loss, net.tok.weight.grad


# =========================================================================== 4. optimizers

@case("rmsprop-centered-negative", "centered RMSprop: E[g^2] - E[g]^2 of a constant gradient rounds below zero; eps comes after the root",
      "", "optimizer", "nan", ["sqrt_", "sqrt"], module=None, phase="optimizer", step=24)
def rmsprop_centered_negative():
    net = track(nn.Linear(5, 1, bias=False))
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-4, alpha=0.5, centered=True)
    x = torch.tensor([[0.1, 0.7, 1.3, 3.3, 123.456]])
    for k in range(1, 41):
        mark_step(k)
        opt.zero_grad()
        net(x).sum().backward()
        opt.step()  # ORIGIN
    return net.weight,


@case("adagrad-eps-zero-dead-input", "Adagrad with eps=0: a feature that is always 0 has no accumulated gradient, 0/0",
      "", "optimizer", "nan", ["addcdiv_", "div", "div_"], module=None, phase="optimizer",
      step=1)
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


@case("adadelta-foreach-eps-zero", "Adadelta(foreach=True, eps=0): sqrt(0)/sqrt(0) for a frozen output",
      "", "optimizer", "nan", ["_foreach_div_", "_foreach_div"], module=None,
      phase="optimizer", step=1)
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
    return net.b.weight,


@case("adam-half-eps-underflow", "Adam on float16 weights: eps=1e-8 and g^2 are 0 in half, the first step divides by 0",
      "", "optimizer", "inf", ["addcdiv_"], module=None, phase="optimizer", step=1)
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


@case("adam-second-moment-overflow", "one gradient of 1e21: g*g overflows in exp_avg_sq; the weight silently stops moving for ever",
      "", "optimizer", "inf", ["addcmul_"], module=None,
      phase="optimizer", step=2, notes="the weights stay finite: m / inf is 0")
def adam_second_moment_overflow():
    net = track(nn.Linear(2, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, amsgrad=True)
    for k, scale in enumerate((1.0, 1e21, 1.0), 1):
        mark_step(k)
        opt.zero_grad()
        (net(torch.ones(1, 2)) * scale).sum().backward()
        opt.step()  # ORIGIN
    return opt.state[net.weight]["max_exp_avg_sq"],


@case("lambda-lr-inf", "a warm-up lambda divides by zero in numpy: the learning rate of step 1 is inf",
      "", "optimizer", "inf", ["add_", "_foreach_add_"], module=None,
      phase="optimizer", step=1, naive=False)
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
    return net.weight,


@case("tensor-lr-schedule-div", "a capturable tensor learning rate base/(T - t) reaches the end of the schedule; the weight without gradient is inf*0",
      "", "optimizer", "inf", ["div", "reciprocal", "mul"], module=None, step=3)
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


@case("sgdw-decay-explodes", "decoupled decay p.mul_(1 - lr*wd) with wd meant as a half-life: |1 - lr*wd| is 1e9",
      "", "optimizer", "inf", "mul_", module=None, phase="optimizer", step=5)
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
    return net.weight,


@case("momentum-typo-overflow", "momentum=9.0 for 0.9 (foreach): the velocity overflows, the loss was linear and finite to the end",
      "", "optimizer", "inf", ["_foreach_mul_"], module=None,
      phase="optimizer", step=5)
def momentum_typo_overflow():
    net = track(nn.Linear(2, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-30, momentum=9e9, foreach=True)
    for k in range(1, 8):
        mark_step(k)
        opt.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        opt.step()  # ORIGIN
    return net.weight,


@case("hand-clip-zero-norm", "home-made clipping without eps: all gradients are 0, max_norm/0 is inf, inf*0 is NaN",
      "", "optimizer", "inf", ["reciprocal", "div"], module=None, step=2)
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


@case("clip-grad-norm-inf-to-nan", "one gradient is inf (division by a subnormal in backward); clip_grad_norm_ turns inf*0 into NaN",
      "", "optimizer", "inf", op="div", node="DivBackward0", module="scale", step=2,
      notes="the norm is a consequence, the backward of the division made the inf")
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


@case("sam-first-step-zero-grad", "SAM climbs by rho * g / ||g||: at a stationary point 0/0 goes into the weights",
      "", "optimizer", "inf", ["reciprocal", "div"], module=None, phase="optimizer", step=1)
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


@case("adafactor-factored-zero", "Adafactor: the row statistics of a never-used table are zero, row / mean(row) is 0/0",
      "", "optimizer", "nan", ["div"], module=None, phase="optimizer", step=1)
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
                sq = p.grad ** 2
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


@case("shampoo-inverse-root", "Shampoo: the preconditioner has a zero eigenvalue, lambda ** -0.25 is inf",
      "", "optimizer", "inf", ["pow", "float_power"], module=None, phase="optimizer",
      step=1)
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
    return net.weight,


@case("lbfgs-log-domain", "LBFGS takes a long step: a scale parameter becomes negative inside the closure and log of it is NaN",
      "", "optimizer", "nan", "log", module="nll", step=1,
      notes="forward pass run by the optimizer's closure")
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


@case("ema-bias-correction", "EMA of the weights is divided by 1 - decay**t, and the teacher is refreshed before the first update (t = 0)",
      "", "optimizer", "nan", ["div"], module=None, step=1)
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
            return {n: s / (1 - self.decay ** self.t) for n, s in self.shadow.items()}  # ORIGIN

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


@case("swa-of-diverged-run", "SWA averages a run whose last epochs overflowed: the averaged weights are inf, then NaN",
      "", "optimizer", "inf", ["add_", "_foreach_add_"], module=None,
      phase="optimizer", step=4, notes="the loss is never computed: backward(gradient=...)")
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
    return swa.module.weight,


@case("polyak-step-at-optimum", "Polyak step size loss/||g||^2 at the optimum: 0/0",
      "", "optimizer", "nan", ["div"], module=None, phase="optimizer", step=2)
def polyak_step_at_optimum():
    class Polyak(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, loss):
            ps = [p for g in self.param_groups for p in g["params"]]
            sq = torch.stack([(p.grad ** 2).sum() for p in ps]).sum()
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
    return net.weight,


@case("accumulation-no-valid-token", "gradients of an accumulation window are divided by its number of valid tokens: 0",
      "", "optimizer", "nan", ["div_", "_foreach_div_"], module=None,
      step=2)
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
    return net[1].weight,


@case("accumulated-nan-noticed-later", "micro-batch 1 of 2 makes the NaN gradient, the step is taken after micro-batch 2",
      "", "accumulation", "inf", op="div", node="SqrtBackward0",
      module="loss", step=3, notes="sqrt at 0; zero times inf follows in the same backward")
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
    return net.lin.weight,


@case("adamax-foreach-eps-zero", "Adamax(foreach=True, eps=0): the infinity norm of a dead row is 0",
      "", "optimizer", "nan", ["_foreach_addcdiv_", "_foreach_div_", "_foreach_div"],
      module=None, phase="optimizer", step=1)
def adamax_foreach_eps_zero():
    net = track(nn.Sequential(nn.Embedding(5, 2, padding_idx=0), nn.Flatten(), nn.Linear(4, 1)))
    opt = torch.optim.Adamax(net.parameters(), eps=0.0, foreach=True)
    for k in (1, 2):
        mark_step(k)
        opt.zero_grad()
        net(torch.tensor([[1, 3], [0, 1]])).pow(2).sum().backward()
        opt.step()  # ORIGIN
    return net[0].weight,


@case("adagrad-fused-eps-zero", "Adagrad(fused=True, eps=0) with a feature that is always zero",
      "", "optimizer", "nan", ["_fused_adagrad_"], module=None, phase="optimizer", step=1,
      since="2.6")
def adagrad_fused_eps_zero():
    net = track(nn.Linear(2, 2))
    opt = torch.optim.Adagrad(net.parameters(), eps=0.0, fused=True)
    for k in (1, 2):
        mark_step(k)
        opt.zero_grad()
        net(torch.tensor([[1.0, 0.0]])).sum().backward()
        opt.step()  # ORIGIN
    return net.weight,


@case("spectral-power-iteration", "spectral norm by hand: the persistent vector u is refreshed in eval with W = 0 and becomes 0/0, noticed one step later",
      "", "state", "nan", ["div"], module="sn", step=2,
      notes="u is a buffer that is assigned anew; the NaN is read at step 3")
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


# =========================================================================== 5. data pipelines

@case("logmel-silent-clip", "log-mel features in __getitem__: a silent clip gives -inf, its standardisation NaN",
      "", "data-pipeline", "inf", ["log", "log10"], module=None, phase="data", step=2)
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


@case("collate-standardise-constant", "a collate_fn standardises over the batch; all values of one column agree",
      "", "data-pipeline", "nan", ["div"], module=None, phase="data")
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


@case("resample-repeated-timestamp", "linear interpolation of an irregular series: two samples share a time stamp, 0/0",
      "", "data-pipeline", "nan", ["div"], module="interp")
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


@case("minmax-in-place-batch", "min-max scaling in place on the batch: a black image has max == min",
      "", "data-pipeline", "nan", ["div_"], module=None, phase="data", step=1)
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


@case("stats-of-train-set-loaded", "normalisation statistics come from an .npz: a column missing in the fit has mean NaN",
      "", "nan-data", "nan", origin="input", name="stats.mean", module=None,
      step=1, notes="plain tensors of the pipeline, not buffers of a module")
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
    return net.weight,


@case("class-weights-empty-class", "class weights n/(C*count): a class without samples gets inf and the weighted loss is NaN",
      "", "data-pipeline", "inf", ["div", "reciprocal"], module=None,
      phase="data", notes="the weight sits in the buffer of the criterion, the division is the origin")
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


@case("weighted-sampler-zero-priority", "prioritised replay: all TD errors are 0, p/sum(p) is NaN and ends in the importance weights",
      "", "state", "nan", ["div"], module=None, step=2)
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


@case("iterable-stream-running-std", "an IterableDataset normalises by a running std whose count is 1 at the first sample",
      "", "data-pipeline", "nan", ["div"], module=None, phase="data", step=1)
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
    return net.weight,


# =========================================================================== 6. threads

@case("replica-empty-shard", "data parallel by threads: the last replica gets no valid token and its mean is NaN",
      "", "threads", "nan", ["mean"],
      module="head", notes="the gradients are summed by the main thread")
def replica_empty_shard():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 1)

        def forward(self, h, valid):
            return self.fc(h)[valid].mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(2, 3)
            self.head = Head()

        def forward(self, x, valid):
            return self.head(torch.tanh(self.body(x)), valid)

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    shards = [(torch.randn(2, 2), torch.tensor([True, True])), (torch.randn(2, 2), torch.tensor([False, False]))]

    def worker(x, valid):
        def run():
            loss = net(x, valid)
            return loss, torch.autograd.grad(loss, list(net.parameters()))
        return run

    results = run_threads(*[worker(*s) for s in shards])
    for i, p in enumerate(net.parameters()):
        p.grad = sum(g[i] for _, g in results) / len(results)
    opt.step()
    return net.body.weight, results[1][0]


@case("producer-thread-unit-norm", "a prefetch thread normalises embeddings to unit length; one document is empty",
      "", "threads", "nan", ["div"], module=None, phase="data", step=2,
      notes="made in the producer, first read by the trainer")
def producer_thread_unit_norm():
    docs = [torch.rand(2, 3), torch.stack([torch.rand(3), torch.zeros(3)]), torch.rand(2, 3)]
    net = track(nn.Sequential(nn.Linear(3, 2), nn.LogSoftmax(-1)))
    opt = torch.optim.Adam(net.parameters())
    for k, doc in enumerate(docs, 1):
        mark_step(k)
        queue = []

        def produce():
            queue.append(doc / doc.norm(dim=1, keepdim=True))  # ORIGIN

        run_threads(produce)
        loss = F.nll_loss(net(queue.pop()), torch.tensor([0, 1]))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[0].weight


@case("producer-thread-nan-file", "a loader thread reads a corrupted shard; the trainer's first layer is the first to use it",
      "", "threads", "nan", origin="input", name="x", module="0", step=2)
def producer_thread_nan_file():
    shards = [np.ones((2, 2), dtype=np.float32), np.array([[1, 2], [np.nan, 0]], dtype=np.float32)]
    net = track(nn.Sequential(nn.Linear(2, 2), nn.Sigmoid()))
    opt = torch.optim.SGD(net.parameters(), lr=1.0)
    for k in (1, 2):
        mark_step(k)
        x, = run_threads(lambda: torch.as_tensor(shards[k - 1]).clone())  # ORIGIN
        loss = F.mse_loss(net(x), torch.zeros(2, 2))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net[0].weight, loss


@case("hogwild-shared-divergence", "two Hogwild workers step the same weights with a learning rate that only one can bear",
      "", "threads", "inf", "pow", module="loss", step=3)
def hogwild_shared_divergence():
    class Mse(nn.Module):
        def forward(self, a, b):
            return ((a - b) ** 2).mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(1, 1)
            self.loss = Mse()

        def forward(self, x, y):
            return self.loss(self.lin(x), y)

    net = track(Net())
    x = torch.linspace(-3, 3, 8)[:, None]

    def worker():
        opt = torch.optim.SGD(net.parameters(), lr=0.9)
        for _ in range(4):
            opt.zero_grad()
            loss = net(x, 10 * x)
            loss.backward()
            opt.step()
        return loss.detach()

    for k in range(1, 31):
        mark_step(k)
        out = run_threads(worker, worker)
    return out[1], net.lin.weight


# =========================================================================== 7. state between steps, evaluation

@case("running-reward-var-count-one", "the reward normaliser divides by count - 1; the scale is NaN from the first episode, used at the second",
      "", "state", "nan", ["div"], module=None, step=1)
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


@case("ema-teacher-after-student-broke", "the student's Adam step makes NaN weights at step 2, the EMA teacher is noticed at evaluation",
      "", "state", "nan", ["addcdiv_", "_foreach_addcdiv_"], module=None, phase="optimizer",
      step=2)
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


@case("validation-empty-split", "the mean validation loss is total/count; the split is empty and the scheduler gets NaN",
      "", "evaluation", "nan", ["div"], module=None, notes="read back with item()")
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


@case("perplexity-exp-overflow", "evaluation under inference_mode: exp of a summed (not averaged) loss overflows",
      "", "evaluation", "inf", ["exp"], module="metric",
      notes="the metric is a module of the tracked model")
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


@case("kv-cache-slot-off-by-one", "a preallocated key cache is written from slot 1 on: slot 0 is never written, but attended to",
      "", "uninitialised", "nan", ["new_empty", "empty"], module="layers.0.attn", origin="uninit",
      name="k_cache")
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
            self.k[:, self.n:self.n + 1], self.v[:, self.n:self.n + 1] = k, v
            w = (q @ self.k[:, :self.n + 1].transpose(1, 2)).softmax(-1)
            return x + w @ self.v[:, :self.n + 1]

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


@case("hidden-state-grows", "the hidden state of a linear RNN is carried over detached; its spectral radius is large",
      "", "state", "inf", "addmm", module="cell", step=9)
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
    return h,


@case("center-loss-empty-centroid", "DINO/VQ centroids are refreshed by sum/count; a dead code divides 0 by 0 and is read at the next step",
      "", "state", "nan", ["div"], module="vq", step=1,
      notes="written into a buffer in place, read at step 2")
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


@case("storage-set-from-file", "weights are bound with Tensor.set_ to a storage read from disk whose last page is damaged",
      "", "nan-weights", "nan", origin="parameter", name="fc.weight", module="fc")
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


@case("frozen-backbone-data-swap", "an averaged checkpoint (a + b)/2 in half overflows and is put into place with .data =",
      "", "load-time", "inf", ["add"], module=None, phase="load")
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


@case("global-batchnorm-momentum-nan", "a hand-written BatchNorm updates running_var with the unbiased variance of one row",
      "", "state", "nan", ["var", "var_mean", "std"], module="bn", step=2,
      notes="training uses the biased variance and stays finite; eval reads the NaN")
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


# =========================================================================== 8. around the weak points

@case("cast-after-load-nan-weight", "a NaN weight is loaded in float32 and the whole model is then cast with .double()",
      "", "nan-weights", "nan", origin="parameter", name="fc.weight", module="fc",
      notes="the cast hands the values on; the first computation is in fc")
def cast_after_load_nan_weight():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(3)
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(self.norm(x))

    net = Net()
    w = np.ones((2, 3), dtype=np.float32)
    w[1, 1] = np.nan
    net.fc.weight.data = torch.from_numpy(w)  # ORIGIN
    net = track(net.double())
    loss = net(torch.randn(4, 3, dtype=torch.double)).square().mean()
    loss.backward()
    return loss, net.norm.weight.grad


@case("l2-penalty-reads-nan-head", "an auxiliary head loaded as NaN is not run, but the L2 penalty over all parameters reads it",
      "", "nan-weights", "nan", origin="parameter", name="aux.weight", module=None,
      step=1, notes="read outside every module")
def l2_penalty_reads_nan_head():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.main = nn.Linear(2, 1)
            self.aux = nn.Linear(2, 1, bias=False)

        def forward(self, x):
            return self.main(x)

    net = Net()
    net.aux.weight.data = torch.from_numpy(np.array([[np.nan, 1.0]], dtype=np.float32))  # ORIGIN
    net = track(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    mark_step(1)
    loss = net(torch.ones(1, 2)).sum()
    loss = loss + 1e-4 * sum(p.pow(2).sum() for p in net.parameters())
    loss.backward()
    opt.step()
    return loss, net.main.weight


@case("prototypes-used-outside", "class prototypes are a parameter of the model, but the product is computed by the training loop",
      "", "nan-weights", "nan", origin="parameter", name="prototypes", module=None,
      notes="F.linear outside every module")
def prototypes_used_outside():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.prototypes = nn.Parameter(torch.randn(5, 3))
            self.mix = nn.Linear(2, 3)

        def forward(self, x):
            return F.normalize(self.mix(x), dim=1)

    enc = Encoder()
    enc.prototypes.data = torch.from_numpy(np.where(np.arange(15).reshape(5, 3) == 7, np.nan, 1.0).astype(np.float32))
    enc = track(enc)  # ORIGIN
    z = enc(torch.randn(4, 2))
    logits = F.linear(z, enc.prototypes) / 0.1
    loss = F.cross_entropy(logits, torch.tensor([1, 2, 3, 0]))
    loss.backward()
    return loss, enc.mix.weight.grad


@case("temperature-used-outside", "logit_scale of a CLIP checkpoint is NaN and is exponentiated in the training loop",
      "", "nan-weights", "nan", origin="parameter", name="logit_scale", module=None, step=1)
def temperature_used_outside():
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.visual, self.text = nn.Linear(3, 2), nn.Linear(4, 2)
            self.logit_scale = nn.Parameter(torch.ones([]) * 2.6)

        def forward(self, i, t):
            return F.normalize(self.visual(i), dim=-1), F.normalize(self.text(t), dim=-1)

    clip = Clip()
    clip.load_state_dict({"logit_scale": torch.from_numpy(np.array(np.nan, dtype=np.float32))}, strict=False, assign=True)
    clip = track(clip)  # ORIGIN
    opt = torch.optim.AdamW(clip.parameters(), lr=1e-3)
    mark_step(1)
    i, t = clip(torch.randn(3, 3), torch.randn(3, 4))
    logits = clip.logit_scale.exp() * i @ t.t()
    loss = F.cross_entropy(logits, torch.arange(3))
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss, clip.visual.weight


@case("ema-reads-nan-student", "only the EMA update reads the NaN of a student layer that is bypassed by stochastic depth",
      "", "nan-weights", "nan", origin="parameter", name="blocks.1.weight", module=None, step=1,
      notes="lerp_ of the teacher outside every module")
def ema_reads_nan_student():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(2)])

        def forward(self, x, keep):
            for b, k in zip(self.blocks, keep):
                x = x + b(x) if k else x
            return x

    student = Net()
    teacher = copy.deepcopy(student)
    view = student.blocks[1].weight.detach().numpy()
    view[0, 0] = np.nan  # ORIGIN
    student = track(student)
    opt = torch.optim.SGD([student.blocks[0].weight], lr=0.1)
    mark_step(1)
    student(torch.ones(1, 2), (True, False)).sum().backward()
    opt.step()
    with torch.no_grad():
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.lerp_(s, 0.01)
        return teacher(torch.ones(1, 2), (True, True))


@case("weight-corrupted-between-steps", "a monitoring callback writes through a numpy view into a weight after step 2",
      "", "nan-weights", "nan", origin="parameter", name="net.2.bias", module="net.2",
      step=3, notes="finite when PyTorch last wrote it")
def weight_corrupted_between_steps():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))

        def forward(self, x):
            return self.net(x)

    def callback(model, k):
        stats = {n: p.detach().numpy() for n, p in model.named_parameters()}
        if k == 2:
            stats["net.2.bias"] -= np.float32("nan")  # ORIGIN
        return {n: float(v.mean()) for n, v in stats.items()}

    net = track(Net())
    opt = torch.optim.Adam(net.parameters())
    for k in range(1, 5):
        mark_step(k)
        loss = net(torch.ones(2, 2)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        callback(net, k)
    return loss, net.net[0].weight


@case("meta-to-empty-partial-load", "a model built on meta, to_empty(), then a checkpoint that lacks the head (strict=False)",
      "", "uninitialised", "nan", origin="parameter", name="lm_head.weight",
      module="lm_head")
def meta_to_empty_partial_load():
    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(3, 3)
            self.lm_head = nn.Linear(3, 4, bias=False)

        def forward(self, x):
            return self.lm_head(F.silu(self.body(x)))

    with torch.device("meta"):
        net = Lm()
    net = net.to_empty(device="cpu")
    for p in net.parameters():
        dirty(p)  # ORIGIN
    net.load_state_dict({"body.weight": torch.eye(3), "body.bias": torch.zeros(3)}, strict=False)
    net = track(net)
    with torch.no_grad():
        return net(torch.ones(1, 3))


@case("pruned-weight-orig", "a pruned convolution (weight_orig, weight_mask) was saved after it had diverged",
      "", "nan-weights", "nan", origin="parameter", name="conv.weight_orig", module="conv",
      notes="mask * weight_orig runs in a forward pre-hook of conv")
def pruned_weight_orig():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 2)
            self.fc = nn.Linear(2, 1)

        def forward(self, x):
            return self.fc(self.conv(x).amax((2, 3)))

    net = Net()
    prune.l1_unstructured(net.conv, "weight", 0.5)
    w = np.ones((2, 1, 2, 2), dtype=np.float32)
    w[0, 0, 1, 1] = np.nan
    net.conv.weight_orig.data = torch.from_numpy(w)  # ORIGIN
    net = track(net)
    loss = net(torch.rand(1, 1, 4, 4)).sum()
    loss.backward()
    return loss, net.fc.weight.grad


@case("encoder-fast-path-nan", "nn.TransformerEncoder in eval takes the fused fast path; in_proj_weight of layer 0 is NaN",
      "", "nan-weights", "nan", origin="parameter", name="enc.layers.0.self_attn.in_proj_weight",
      module="enc.layers.0", notes="the fused kernel is called by the layer, not by its self_attn")
def encoder_fast_path_nan():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
            self.enc = nn.TransformerEncoder(layer, 2)

        def forward(self, x):
            return self.enc(x)

    net = Net()
    w = net.enc.layers[0].self_attn.in_proj_weight.detach().numpy().copy()
    w[5, 2] = np.nan
    net.enc.layers[0].self_attn.in_proj_weight.data = torch.from_numpy(w)  # ORIGIN
    net = track(net).eval()
    with torch.inference_mode():
        return net(torch.randn(2, 3, 4)).clone()


@case("cls-token-buffer-cat", "a class token kept as a buffer is NaN; it is concatenated before the first layer",
      "", "nan-weights", "nan", origin="buffer", name="embed.cls", module="embed",
      notes="read by the cat in embed")
def cls_token_buffer_cat():
    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cls", torch.zeros(1, 1, 4))
            self.proj = nn.Linear(2, 4)

        def forward(self, x):
            return torch.cat([self.cls.expand(len(x), -1, -1), self.proj(x)], 1)

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = Embed()
            self.norm = nn.LayerNorm(4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.norm(self.embed(x))[:, 0])

    vit = Vit()
    vit.embed.cls = torch.from_numpy(np.full((1, 1, 4), np.nan, dtype=np.float32))  # ORIGIN
    vit = track(vit)
    loss = F.cross_entropy(vit(torch.randn(2, 3, 2)), torch.tensor([0, 1]))
    loss.backward()
    return loss, vit.head.weight.grad


@case("empty-cast-before-use", "a mask buffer is allocated in half with torch.empty and cast to float before it is added",
      "", "uninitialised", "nan", ["empty"], origin="uninit", name="bias", module="attn",
      notes="the cast is made outside; the addition in attn")
def empty_cast_before_use():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(3, 3)

        def forward(self, x, bias):
            return (self.q(x) @ x.t() + bias).softmax(-1) @ x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, x, bias):
            return self.attn(x, bias)

    net = track(Net())
    bias = dirty(torch.empty(2, 2, dtype=torch.half)).float()  # ORIGIN
    loss = net(torch.randn(2, 3), bias).sum()
    loss.backward()
    return loss, net.attn.q.weight.grad


@case("legacy-new-constructor", "noise = x.new(x.size()) without .normal_(): the old constructor does not initialise",
      "", "uninitialised", "nan", ["empty", "new_empty"], origin="uninit",
      name="noise", module="gate")
def legacy_new_constructor():
    class Gate(nn.Module):
        def forward(self, x):
            noise = dirty(x.new(x.size()))  # ORIGIN
            return x + 0.1 * noise

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 3)
            self.gate = Gate()

        def forward(self, x):
            return self.gate(self.fc(x))

    net = track(Net())
    loss = net(torch.ones(2, 2)).mean()
    loss.backward()
    return loss, net(torch.ones(1, 2))


@case("registered-empty-buffer", "a queue of keys is registered with torch.empty and multiplied before it is filled",
      "", "uninitialised", "nan", origin="buffer", name="queue", module="",
      step=1, debatable="unwritten memory or the buffer that owns it: read through clone()")
def registered_empty_buffer():
    class Moco(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(3, 2)
            self.register_buffer("queue", dirty(torch.empty(2, 4)))  # ORIGIN

        def forward(self, x):
            q = F.normalize(self.q(x), dim=1)
            with torch.no_grad():
                k = q.clone()
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1) / 0.07
            self.queue[:, :len(k)] = k.t()
            return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

    net = track(Moco())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    mark_step(1)
    loss = net(torch.randn(2, 3))
    loss.backward()
    opt.step()
    return loss, net.q.weight


@case("kl-weight-nan-float", "the KL weight of a VAE is a Python float that numpy made NaN (0/0 in the annealing schedule)",
      "", "hyperparameter", "nan", "mul", module=None, step=1, naive=False,
      notes="a number of the program, no tensor: the product is what goes wrong")
def kl_weight_nan_float():
    vae = track(nn.Linear(3, 4))
    opt = torch.optim.Adam(vae.parameters())
    with np.errstate(all="ignore"):
        betas = np.arange(3) / np.float64(0)
    for k, beta in enumerate(betas, 1):
        mark_step(k)
        mu, logvar = vae(torch.ones(2, 3)).chunk(2, -1)
        kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(-1)
        per_sample = mu.pow(2).sum(-1) + kl * float(beta)  # ORIGIN
        loss = per_sample.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, vae.weight


@case("warmup-lr-nan", "warm-up over zero steps: numpy 0/0 gives a learning rate of NaN to Adam",
      "", "hyperparameter", "nan", ["addcdiv_", "_foreach_addcdiv_"], module=None,
      phase="optimizer", step=1, naive=False)
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
    return net[0].weight,


@case("focal-prior-inf-bias", "the prior bias -log((1-p)/p) of a detector head is computed with p = 0: -inf is filled in",
      "", "init", "inf", origin="parameter", name="cls.bias", module="cls",
      notes="nobody makes a bias infinite on purpose")
def focal_prior_inf_bias():
    class Head(nn.Module):
        def __init__(self, prior):
            super().__init__()
            self.cls = nn.Linear(2, 3)
            with np.errstate(all="ignore"):
                nn.init.constant_(self.cls.bias, float(-np.log((1 - prior) / np.float64(prior))))  # ORIGIN

        def forward(self, x, y):
            logits = self.cls(x)
            p = logits.sigmoid()
            pt = p * y + (1 - p) * (1 - y)
            return ((1 - pt) ** 2 * F.binary_cross_entropy_with_logits(logits, y, reduction="none")).mean()

    head = track(Head(0.0))
    loss = head(torch.ones(2, 2), torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    loss.backward()
    return loss, head.cls.weight.grad


@case("reinforce-nan-reward-scalar", "REINFORCE: the environment returned NaN, torch.tensor(reward) is a 0-d tensor",
      "", "nan-data", "nan", origin="input", name="reward", module=None, step=2,
      also=[alt("forward", ["mul"])])
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


@case("fused-backward-optimizer", "the optimizer runs in post-accumulate hooks: normalised SGD divides a zero gradient by its norm",
      "", "optimizer", "nan", ["div"], module=None, phase="optimizer", step=2)
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
    return net[0].weight,


@case("static-loss-scale-half", "a static loss scale of 2**15 multiplies a half loss of 3",
      "", "half-overflow", "inf", ["mul"], module=None, step=2)
def static_loss_scale_half():
    net = track(nn.Linear(2, 1).half())
    master = [p.detach().clone().float() for p in net.parameters()]
    scale = 2.0 ** 15
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


@case("index-nan-target-rows", "labels are shuffled by index_select and split before the loss reads the NaN at step 3",
      "", "nan-data", "nan", origin="input", name="y", module="crit", step=3,
      debatable="who selects rows has read them")
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


@case("half-input-with-nan", "images arrive as float64 with a NaN pixel and are cast with .half() by an input layer",
      "", "nan-data", "nan", origin="input", name="img", module="stem.conv",
      step=1)
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


# CASES END

own_zoo.end(__name__)
