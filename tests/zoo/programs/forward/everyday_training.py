"""Training scripts of every kind, each with the mistake that people report of it."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.zoo.framework import INF, case, mark_step, track


@case(
    "standardise-black-image",
    "each image is standardised by its own mean and deviation; the second batch has a black one",
    "",
    "vision",
    "nan",
    ["div"],
    module=None,
    step=2,
)
def standardise_black_image():
    net = track(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2)))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    images = torch.rand(4, 1, 8, 8)
    images[3] = 0
    for k, batch in enumerate(images.split(2), 1):
        mark_step(k)
        mean, std = batch.mean((1, 2, 3), keepdim=True), batch.std((1, 2, 3), keepdim=True)
        x = (batch - mean) / std  # ORIGIN
        loss = F.cross_entropy(net(x), torch.tensor([0, 1]))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[0].weight


@case(
    "mean-pool-of-padding",
    "a sentence encoder takes the mean over tokens that are none: the sentence is padding alone",
    "",
    "nlp",
    "nan",
    ["div"],
    module="pool",
    step=1,
)
def mean_pool_of_padding():
    class Pool(nn.Module):
        def forward(self, h, mask):
            m = mask.unsqueeze(-1).to(h.dtype)
            return (h * m).sum(1) / m.sum(1)  # ORIGIN

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(10, 4, padding_idx=0)
            self.pool = Pool()
            self.head = nn.Linear(4, 2)

        def forward(self, ids):
            return self.head(self.pool(self.tokens(ids), ids != 0))

    net = track(Encoder())
    mark_step(1)
    loss = F.cross_entropy(net(torch.tensor([[3, 4, 0], [0, 0, 0]])), torch.tensor([0, 1]))
    loss.backward()
    return loss, net.head.weight.grad


@case(
    "ppo-ratio-overflow",
    "PPO's ratio is the exponential of a difference that a stale rollout makes larger than 88",
    "",
    "rl",
    "inf",
    ["exp"],
    module=None,
    step=2,
)
def ppo_ratio_overflow():
    policy = track(nn.Linear(3, 2))
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    old = [torch.tensor([-1.0, -0.7]), torch.tensor([-95.0, -0.9])]
    advantage = torch.tensor([0.5, -1.0])
    for k in (1, 2):
        mark_step(k)
        new = F.log_softmax(policy(torch.ones(2, 3)), -1)[:, 0]
        ratio = (new - old[k - 1]).exp()  # ORIGIN
        loss = -(ratio * advantage).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, policy.weight


@case(
    "advantage-of-one-episode",
    "advantages are standardised over a batch that holds one episode",
    "",
    "rl",
    "nan",
    ["std"],
    module=None,
    step=2,
)
def advantage_of_one_episode():
    policy = track(nn.Linear(3, 2))
    opt = torch.optim.SGD(policy.parameters(), lr=0.1)
    for k, returns in enumerate((torch.tensor([1.0, 0.5, 2.0]), torch.tensor([3.0])), 1):
        mark_step(k)
        logp = F.log_softmax(policy(torch.ones(len(returns), 3)), -1)[:, 0]
        spread = returns.std()  # ORIGIN
        loss = -(logp * (returns - returns.mean()) / (spread + 1e-8)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, policy.weight


@case(
    "gcn-isolated-node",
    "symmetric normalisation of a graph: the degree of a node without edges to the power -1/2",
    "",
    "gnn",
    "inf",
    ["pow"],
    module="conv",
    step=None,
)
def gcn_isolated_node():
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 2)

        def forward(self, x, edges):
            row, col = edges
            degree = torch.zeros(len(x)).scatter_add_(0, row, torch.ones(len(row)))
            root = degree.pow(-0.5)  # ORIGIN
            adjacency = torch.zeros(len(x), len(x))
            adjacency[row, col] = 1
            return root[:, None] * (adjacency @ self.lin(x)) * root

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = Conv()

        def forward(self, x, edges):
            return self.conv(x, edges)

    net = track(Net())
    edges = torch.tensor([[0, 1], [1, 0]])
    y = net(torch.randn(2, 3), edges)
    loss = y.square().mean()
    loss.backward()
    y = net(torch.randn(2, 3), torch.tensor([[0], [0]]))
    return y.sum(), loss


@case(
    "ddim-zero-terminal-snr",
    "the clean image is estimated from the last step of a schedule that was rescaled to end in pure noise",
    "",
    "diffusion",
    "inf",
    ["div"],
    module=None,
    step=None,
)
def ddim_zero_terminal_snr():
    net = track(nn.Linear(4, 4))
    root = torch.linspace(1.0, 0.2, 5).cumprod(0).sqrt()
    root = (root - root[-1]) * root[0] / (root[0] - root[-1])
    alphas = root.square()
    x = torch.randn(2, 4)
    with torch.no_grad():
        for t in (4, 2, 0):
            noise = net(x)
            clean = (x - (1 - alphas[t]).sqrt() * noise) / alphas[t].sqrt()  # ORIGIN
            x = clean.clamp(-1, 1) * 0.5 + clean * 0.5
    return x


@case(
    "vae-log-variance-overflow",
    "the encoder's log-variance has no bound and starts large",
    "",
    "vae",
    "inf",
    ["exp"],
    module="",
    step=1,
)
def vae_log_variance_overflow():
    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(4, 4)
            self.decoder = nn.Linear(2, 4)
            nn.init.constant_(self.encoder.bias, 100.0)

        def forward(self, x):
            mean, logvar = self.encoder(x).chunk(2, -1)
            z = mean + torch.exp(0.5 * logvar) * 0.1
            kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp())  # ORIGIN
            return self.decoder(z), kl.sum(-1)

    net = track(Vae())
    mark_step(1)
    x = torch.rand(3, 4)
    y, kl = net(x)
    loss = F.mse_loss(y, x) + kl.mean()
    loss.backward()
    return loss, net.encoder.weight.grad


@case(
    "flow-singular-weight",
    "an invertible 1x1 convolution that lost its rank: the logarithm of its determinant",
    "",
    "flow",
    "inf",
    ["_linalg_slogdet"],
    module="mix",
    step=None,
)
def flow_singular_weight():
    class Mix(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))

        def forward(self, x):
            return x @ self.weight, torch.linalg.slogdet(self.weight).logabsdet  # ORIGIN

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = Mix()

        def forward(self, x):
            y, logdet = self.mix(x)
            return (0.5 * y.square().sum(-1) - logdet).mean()

    net = track(Flow())
    loss = net(torch.randn(5, 2))
    return loss, loss * 2


@case(
    "log-of-price-zero",
    "log returns of a series of prices in which a quote is missing",
    "",
    "time-series",
    "inf",
    ["log"],
    module=None,
    step=None,
)
def log_of_price_zero():
    prices = torch.tensor([[100.0, 101.0, 99.0], [50.0, 0.0, 51.0]])
    returns = prices.log().diff(dim=1)  # ORIGIN
    net = track(nn.GRU(1, 3, batch_first=True))
    y, _ = net(returns.unsqueeze(-1))
    loss = y.square().mean()
    loss.backward()
    return loss, net.weight_ih_l0.grad


@case(
    "uncertainty-weights-from-zero",
    "the losses of two tasks are divided by the squares of learned deviations that begin at 0",
    "",
    "multi-task",
    "inf",
    ["div"],
    module="balance",
    step=1,
)
def uncertainty_weights_from_zero():
    class Balance(nn.Module):
        def __init__(self):
            super().__init__()
            self.sigma = nn.Parameter(torch.zeros(2))

        def forward(self, losses):
            return (losses / (2 * self.sigma.square())).sum()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.balance = nn.Linear(3, 2), Balance()

        def forward(self, x, y):
            return self.balance((self.body(x) - y).square().mean(0))

    net = track(Net())
    mark_step(1)
    loss = net(torch.randn(4, 3), torch.randn(4, 2))
    loss.backward()
    return loss, net.body.weight.grad


@case(
    "fp16-autocast-linear",
    "activations of a thousand meet weights of a hundred in half precision",
    "",
    "amp",
    "inf",
    ["addmm", "linear"],
    module="fc",
    step=None,
)
def fp16_autocast_linear():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 2)
            nn.init.constant_(self.fc.weight, 100.0)

        def forward(self, x):
            return self.fc(x)  # ORIGIN

    net = track(Net())
    with torch.autocast("cpu", dtype=torch.float16):
        y = net(torch.full((1, 8), 1000.0))
    loss = (y - y.detach().mean()).float().sum()
    return loss, y


@case(
    "ema-without-a-step",
    "the bias of a moving average is corrected before anything went into it",
    "",
    "ema",
    "nan",
    ["div"],
    module=None,
    step=None,
)
def ema_without_a_step():
    net = track(nn.Linear(2, 1))
    average, decay, steps = torch.zeros_like(net.weight), 0.99, 0
    corrected = average / (1 - decay**steps)  # ORIGIN
    with torch.no_grad():
        net.weight.copy_(corrected)
    return net(torch.ones(1, 2))


@case(
    "clip-of-no-gradient",
    "gradients are clipped by hand; in a step whose loss is 0 their norm is",
    "",
    "clipping",
    "inf",
    ["reciprocal"],
    module=None,
    step=2,
)
def clip_of_no_gradient():
    net = track(nn.Linear(2, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k, weight in enumerate((1.0, 0.0), 1):
        mark_step(k)
        loss = weight * net(torch.ones(3, 2)).square().mean()
        opt.zero_grad()
        loss.backward()
        total = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        scale = 1.0 / total  # ORIGIN
        for p in net.parameters():
            p.grad.mul_(scale)
        opt.step()
    return loss, net.weight


@case(
    "checkpointed-rectified-log",
    "a block that is computed again in the backward pass takes the logarithm of a rectified value",
    "",
    "checkpointing",
    "inf",
    ["log"],
    module="block",
    step=1,
)
def checkpointed_rectified_log():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            nn.init.constant_(self.fc.bias, -10.0)

        def forward(self, x):
            return torch.log(F.relu(self.fc(x)))  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = Block(), nn.Linear(3, 1)

        def forward(self, x):
            return self.head(checkpoint(self.block, x, use_reentrant=False)).mean()

    net = track(Net())
    mark_step(1)
    loss = net(torch.rand(2, 3))
    loss.backward()
    return loss, net.head.weight.grad


@case(
    "sparse-neighbours-of-an-isolated-node",
    "the mean over neighbours, from a sparse adjacency with an empty row",
    "",
    "gnn",
    "nan",
    ["div"],
    module="mean",
    step=None,
)
def sparse_neighbours_of_an_isolated_node():
    class Mean(nn.Module):
        def forward(self, adjacency, x):
            count = torch.sparse.sum(adjacency, 1).to_dense()
            return torch.sparse.mm(adjacency, x) / count[:, None]  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.fc = Mean(), nn.Linear(2, 1)

        def forward(self, adjacency, x):
            return self.fc(self.mean(adjacency, x)).sum()

    net = track(Net())
    adjacency = torch.sparse_coo_tensor(torch.tensor([[0, 0, 2], [1, 2, 0]]), torch.ones(3), (3, 3))
    loss = net(adjacency, torch.randn(3, 2))
    loss.backward()
    return loss, net.fc.weight.grad


@case(
    "phase-of-silent-frames",
    "a spectrogram is divided by its magnitude to keep the phase; the silent frames have none",
    "",
    "complex",
    "nan",
    ["div"],
    module=None,
    step=None,
)
def phase_of_silent_frames():
    net = track(nn.Linear(10, 1))
    signal = torch.cat([torch.sin(torch.arange(16.0)), torch.zeros(16)])
    spectrum = torch.fft.rfft(signal.view(2, 16))
    phase = spectrum / spectrum.abs()  # ORIGIN
    loss = net(torch.view_as_real(phase).flatten(1)[:, :10]).sum()
    loss.backward()
    return loss, net.weight.grad


@case(
    "quantise-constant-tensor",
    "min-max quantisation of a tensor whose values are all the same",
    "",
    "quantisation",
    "nan",
    ["div"],
    module="quant",
    step=None,
)
def quantise_constant_tensor():
    class Quant(nn.Module):
        def forward(self, x):
            low, high = x.amin(), x.amax()
            q = ((x - low) / (high - low) * 15).round()  # ORIGIN
            return x + (q / 15 * (high - low) + low - x).detach()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.quant, self.fc = Quant(), nn.Linear(3, 1)

        def forward(self, x):
            return self.fc(self.quant(x)).sum()

    net = track(Net())
    loss = net(torch.full((2, 3), 0.7))
    loss.backward()
    return loss, net.fc.weight.grad


@case(
    "normalise-in-place",
    "attention weights are divided by their sum in place, after dropout took a whole row",
    "",
    "in-place",
    "nan",
    ["div_"],
    module="attention",
    step=None,
)
def normalise_in_place():
    class Attention(nn.Module):
        def forward(self, scores, keep):
            weights = scores.softmax(-1) * keep
            weights.div_(weights.sum(-1, keepdim=True))  # ORIGIN
            return weights

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()

        def forward(self, scores, keep):
            return self.attention(scores, keep).square().sum()

    net = track(Net())
    scores = torch.randn(2, 3, requires_grad=True)
    loss = net(scores, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    return loss, scores


@case(
    "cross-entropy-by-hand",
    "soft targets times the logarithm of a softmax that has a true zero",
    "",
    "losses-by-hand",
    "inf",
    ["log"],
    module="loss",
    step=None,
)
def cross_entropy_by_hand():
    class Loss(nn.Module):
        def forward(self, logits, target):
            return -(target * logits.softmax(-1).log()).sum(-1).mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.loss = nn.Linear(2, 3), Loss()

        def forward(self, x, y):
            return self.loss(self.fc(x) * 200, y)

    net = track(Net())
    loss = net(torch.tensor([[1.0, 5.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
    loss.backward()
    return loss, net.fc.weight.grad


@case(
    "iou-of-empty-boxes",
    "intersection over union of two boxes without area",
    "",
    "vision",
    "nan",
    ["div"],
    module=None,
    step=None,
)
def iou_of_empty_boxes():
    head = track(nn.Linear(2, 4))
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    box = head(torch.randn(3, 2)).sigmoid() - 0.5
    truth = torch.zeros(3, 4)
    low, high = torch.maximum(box[:, :2], truth[:, :2]), torch.minimum(box[:, 2:], truth[:, 2:])
    inside = (high - low).clamp(min=0).prod(-1)
    area = lambda b: (b[:, 2:] - b[:, :2]).prod(-1)  # noqa: E731
    iou = inside / (area(box) + area(truth) - inside)  # ORIGIN
    loss = (1 - iou).mean()
    loss.backward()
    return loss, head.weight.grad


@case(
    "dice-of-nothing",
    "the Dice loss of a slice without the organ, where the prediction is 0 as well",
    "",
    "vision",
    "nan",
    ["div"],
    module="dice",
    step=2,
)
def dice_of_nothing():
    class Dice(nn.Module):
        def forward(self, p, y):
            return 1 - (2 * (p * y).sum() / (p.sum() + y.sum()))  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.dice = nn.Conv2d(1, 1, 1), Dice()

        def forward(self, x, y):
            return self.dice(F.relu(self.conv(x)), y)

    net = track(Net())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    with torch.no_grad():
        net.conv.weight.fill_(1.0)
        net.conv.bias.fill_(-0.5)
    images = [torch.ones(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)]
    for k, x in enumerate(images, 1):
        mark_step(k)
        loss = net(x, x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.conv.weight


@case(
    "contrast-at-low-temperature",
    "similarities by a temperature of 0.01, and their exponentials added up without a maximum",
    "",
    "contrastive",
    "inf",
    ["exp"],
    module=None,
    step=None,
)
def contrast_at_low_temperature():
    net = track(nn.Linear(3, 4))
    z = F.normalize(net(torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0]])), dim=-1)
    similar = (z @ z.t()) / 0.01
    weights = similar.exp()  # ORIGIN
    loss = -(weights[0, 1] / weights.sum()).log()
    loss.backward()
    return loss, net.weight.grad


@case(
    "slerp-of-equal-noise",
    "the angle between two equal unit vectors: their product is a last digit above 1",
    "",
    "diffusion",
    "nan",
    ["acos"],
    module=None,
    step=None,
    until="2.14",
)
def slerp_of_equal_noise():
    a = torch.tensor([0.3333333433, 0.6666666865, 0.6666666865])
    cosine = (a * a).sum() * 1.0000001
    angle = torch.acos(cosine)  # ORIGIN
    mixed = (torch.sin(0.5 * angle) * a + torch.sin(0.5 * angle) * a) / torch.sin(angle)
    return mixed


@case(
    "power-of-a-residual",
    "a robust loss takes the residual, which may be negative, to the power 1.5",
    "",
    "losses-by-hand",
    "nan",
    ["pow"],
    module="loss",
    step=1,
)
def power_of_a_residual():
    class Loss(nn.Module):
        def forward(self, y, target):
            return ((y - target) ** 1.5).mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.loss = nn.Linear(1, 1), Loss()

        def forward(self, x, y):
            return self.loss(self.fc(x), y)

    net = track(Net())
    mark_step(1)
    loss = net(torch.ones(4, 1), torch.tensor([[5.0], [-5.0], [0.0], [9.0]]))
    loss.backward()
    return loss, net.fc.weight.grad


@case(
    "weight-of-a-missing-class",
    "BCE's pos_weight is negatives by positives, of a label that is never there",
    "",
    "losses-by-hand",
    "inf",
    ["div"],
    module=None,
    step=None,
)
def weight_of_a_missing_class():
    labels = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    positive = labels.sum(0)
    weight = (len(labels) - positive) / positive  # ORIGIN
    net = track(nn.Linear(2, 2))
    loss = F.binary_cross_entropy_with_logits(net(torch.randn(3, 2)), labels, pos_weight=weight)
    loss.backward()
    return loss, net.weight.grad


@case(
    "beam-score-of-length-zero",
    "beam scores are divided by a power of their length, which is 0 for the hypothesis that ended at once",
    "",
    "decoding",
    "inf",
    ["div"],
    module=None,
    step=None,
)
def beam_score_of_length_zero():
    net = track(nn.Linear(3, 5))
    with torch.no_grad():
        scores = net(torch.ones(2, 3)).log_softmax(-1).max(-1).values
        lengths = torch.tensor([4.0, 0.0])
        normalised = scores / lengths.pow(0.6)  # ORIGIN
    return normalised.sum(), normalised.softmax(0)


@case(
    "power-iteration-from-zero",
    "a spectral norm by hand: the vector that it begins with is in the null space",
    "",
    "regularisation",
    "nan",
    ["div"],
    module="norm",
    step=None,
)
def power_iteration_from_zero():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
            self.register_buffer("v", torch.tensor([0.0, 1.0]))

        def forward(self):
            with torch.no_grad():
                u = self.weight @ self.v
                u = u / u.norm()  # ORIGIN
                v = self.weight.t() @ u
            return (self.weight / (u @ self.weight @ v)).sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm()

        def forward(self):
            return self.norm()

    net = track(Net())
    loss = net()
    loss.backward()
    return loss, net.norm.weight.grad


@case(
    "warmup-from-minus-infinity",
    "an inverse square root schedule in NumPy begins at step 0, and so with an infinite learning rate",
    "",
    "schedulers",
    "inf",
    ["add_", "_foreach_add_"],
    module=None,
    step=1,
    phase="optimizer",
)
def warmup_from_minus_infinity():
    net = track(nn.Linear(2, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k in (1, 2):
        mark_step(k)
        opt.param_groups[0]["lr"] = 0.1 * (INF if k == 1 else math.pow(k, -0.5))
        loss = net(torch.ones(3, 2)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
    return loss, net.weight


@case(
    "time-gap-of-zero",
    "an embedding of the logarithm of the time since the last event, of two events at once",
    "",
    "time-series",
    "inf",
    ["log"],
    module="clock",
    step=2,
)
def time_gap_of_zero():
    class Clock(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, times):
            gaps = times.diff(dim=-1)
            return torch.log(gaps).unsqueeze(-1) * self.scale  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.clock = Clock()

        def forward(self, times):
            return self.clock(times).tanh().square().mean()

    net = track(Net())
    opt = torch.optim.Adam(net.parameters(), lr=0.1)
    for k, times in enumerate((torch.tensor([[0.0, 1.0, 3.0]]), torch.tensor([[0.0, 2.0, 2.0]])), 1):
        mark_step(k)
        loss = net(times)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.clock.scale
