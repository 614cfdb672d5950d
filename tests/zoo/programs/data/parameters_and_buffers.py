"""Parameters and buffers that are not finite."""

import copy
import io

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import NAN, alt, case, mark_step, track


@case(
    "checkpoint-nan-bias",
    "a diverged run was saved: one bias of the second block in the checkpoint is NaN",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="blocks.1.fc2.bias",
    module="blocks.1.fc2",
    also=[alt("forward", ["addmm"])],
)
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


@case(
    "assigned-safetensors-nan",
    "load_state_dict(assign=True) of a memory-mapped file with a corrupted block",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="down.conv.weight",
    module="down.conv",
    also=[alt("forward", ["convolution", "mkldnn_convolution", "_slow_conv2d_forward"])],
)
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


@case(
    "batchnorm-poisoned-in-training",
    "a NaN batch is skipped by the loop, but BatchNorm keeps its statistics: eval is NaN",
    "",
    "state",
    "nan",
    origin="input",
    name="x",
    module="stem.0",
    step=2,
    also=[alt("forward", ["native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "convolution"])],
    notes="the loop looks at the loss and skips the step; the running statistics have taken the NaN in",
)
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
        x = torch.from_numpy(imgs[2 * k - 2 : 2 * k])  # ORIGIN
        loss = F.cross_entropy(net(x), torch.tensor([0, 1]))
        if not torch.isfinite(loss):
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        return net(torch.rand(2, 1, 5, 5))


@case(
    "normalizer-buffer-nan",
    "observation statistics saved before the first observation: mean buffer is NaN",
    "",
    "nan-weights",
    "nan",
    origin="buffer",
    name="normalizer.mean",
    module="normalizer",
    also=[alt("forward", ["sub"])],
)
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
    return (policy(torch.randn(2, 3)).logits,)


@case(
    "tied-embedding-nan-row",
    "input and output embedding are tied; the row of a new token was never trained and is NaN",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="emb.weight",
    module="emb",
    also=[alt("forward", ["embedding", "mm", "addmm", "native_layer_norm"])],
    notes="first read by the lookup of the NaN row in emb",
)
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


@case(
    "parameterlist-level-scale",
    "per-level scales of a detector head live in a ParameterList; one was loaded as NaN",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="scales.1",
    module="",
    also=[alt("forward", ["mul"])],
)
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


@case(
    "numpy-view-of-weight",
    "a legacy converter writes weights through .numpy(): a NaN slips into the last layer",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="detect.weight",
    module="detect",
    also=[alt("forward", ["addmm", "mm"])],
)
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
        view[:] = blob[at : at + view.size]  # ORIGIN
        at += view.size
    net.eval()
    with torch.inference_mode():
        return net(torch.ones(1, 4)).clone()


@case(
    "prune-renormalise-data",
    "after pruning, each row of the weight is rescaled to unit norm through .data: a dead row is 0/0",
    "",
    "load-time",
    "nan",
    "div_",
    module=None,
    phase="load",
    notes="the program breaks the weight before the first forward",
)
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


@case(
    "dora-magnitude-init",
    "DoRA: the weight is divided by its column norm in the constructor; a zero column is NaN",
    "",
    "init",
    "nan",
    "div",
    module=None,
    phase="load",
    notes="the constructor of a module is not a call",
)
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


@case(
    "alibi-slopes-from-zero",
    "decay rates 1/arange(0..) are kept in a buffer; head 0 gets inf and inf * 0 at distance 0",
    "",
    "init",
    "inf",
    "reciprocal",
    module=None,
    phase="load",
)
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


@case(
    "evolution-vector-to-parameters",
    "evolution strategy: all fitnesses equal, the standardised fitness is 0/0, the genome follows",
    "",
    "optimizer",
    "nan",
    "div",
    module=None,
    step=2,
    notes="vector_to_parameters assigns .data",
)
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


@case(
    "swap-tensors-quantised",
    "swap_tensors puts a dequantised weight in place whose scale file held NaN",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="proj.weight",
    module="proj",
    also=[alt("forward", ["addmm", "mm", "mul"])],
    notes="the scale comes from a file; the weight that the model holds is scale * int8",
)
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


@case(
    "adam-state-nan",
    "a resumed Adam: exp_avg of the optimizer checkpoint is NaN, the weights are not",
    "",
    "nan-state",
    "nan",
    origin="input",
    name="exp_avg",
    module=None,
    step=1,
    phase="optimizer",
    also=[alt("forward", ["lerp_", "mul_", "addcdiv_", "_foreach_lerp_"])],
    notes="the state belongs to no module",
)
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
    return (net.weight,)


@case(
    "weightnorm-gain-loaded",
    "weight_norm through parametrizations: the gain g of a vocoder checkpoint is NaN",
    "",
    "nan-weights",
    "nan",
    origin="parameter",
    name="ups.0.parametrizations.weight.original0",
    module="ups.0.parametrizations.weight.0",
    also=[alt("forward", ["_weight_norm_interface", "_weight_norm", "mul"])],
)
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
