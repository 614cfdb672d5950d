"""Models called in pieces: by methods, containers, loose criteria, threads, closures."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, run_threads, track


@case(
    "vae-encode-method",
    "a VAE used through model.encode(): the encoder is called, the model itself never is",
    "",
    "overflow-exp",
    "inf",
    "exp",
    module="encoder.scale",
)
def vae_encode_method():
    class Scale(nn.Module):
        def forward(self, log_std):
            return torch.exp(log_std)  # ORIGIN

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(3, 4)
            self.scale = Scale()

        def forward(self, x):
            mu, log_std = self.body(x).chunk(2, -1)
            return mu, self.scale(log_std)

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()
            self.decoder = nn.Linear(2, 3)

        def encode(self, x):
            return self.encoder(x)

        def decode(self, z):
            return self.decoder(z)

    vae = track(Vae())
    x = torch.tensor([[1.0, 2.0, -1.0], [900.0, -2500.0, 1500.0]])
    mu, std = vae.encode(x)
    rec = vae.decode(mu + std * torch.randn_like(std))
    loss = F.mse_loss(rec, x)
    loss.backward()
    return loss, vae.decoder.weight.grad


@case(
    "gan-container",
    "generator and discriminator live in a ModuleDict that is never called itself",
    "",
    "log-zero",
    "inf",
    "log",
    module="disc.1",
    step=2,
)
def gan_container():
    class LogOdds(nn.Module):
        def forward(self, x):
            p = torch.sigmoid(x)
            return torch.log(p) - torch.log(1 - p)  # ORIGIN

    nets = nn.ModuleDict(
        {
            "gen": nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)),
            "disc": nn.Sequential(nn.Linear(2, 1), LogOdds()),
        }
    )
    track(nets)
    g, d = nets["gen"], nets["disc"]
    opt = torch.optim.SGD(nets.parameters(), lr=0.01)
    for k, scale in enumerate((1.0, 300.0), 1):
        mark_step(k)
        real = torch.ones(3, 2) * scale * d[0].weight.detach().sign()
        loss = d(g(torch.randn(3, 2))).mean() - d(real).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, d[0].weight


@case(
    "standalone-criterion",
    "the loss is an nn.Module of the script's own, outside the model",
    "",
    "zero-count",
    "nan",
    "nll_loss_forward",
    module=None,
    step=2,
)
def standalone_criterion():
    model = track(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5)))
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, y in enumerate([torch.tensor([1, -100, 2]), torch.tensor([-100, -100, -100])], start=1):
        mark_step(step)
        out = model(torch.randn(3, 4))
        loss = criterion(out, y)  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, model[0].weight


@case(
    "standalone-poisson-criterion",
    "PoissonNLLLoss of the script's own, fed with a linear output",
    "",
    "log-negative",
    "nan",
    "log",
    module=None,
)
def standalone_poisson_criterion():
    net = track(nn.Linear(3, 1))
    loss_fn = nn.PoissonNLLLoss(log_input=False)
    with torch.no_grad():
        net.bias.fill_(-2.0)
    rate = net(torch.randn(5, 3)).squeeze(1)
    loss = loss_fn(rate, torch.arange(5.0))  # ORIGIN
    loss.backward()
    return loss, net.weight.grad


@case(
    "blocks-in-python-list",
    "blocks kept in a plain Python list are no submodules of the model",
    "",
    "zero-division",
    "nan",
    "div",
    module="trunk",
)
def blocks_in_python_list():
    class Standardise(nn.Module):
        def forward(self, x):
            return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)  # ORIGIN

    class Trunk(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = [Standardise(), nn.Tanh()]

        def forward(self, x):
            for b in self.blocks:
                x = b(x)
            return x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = Trunk()
            self.fc = nn.Linear(3, 1)

        def forward(self, x):
            return self.fc(self.trunk(x))

    net = track(Net())
    x = torch.randn(4, 3)
    x[2] = 1.0
    out = net(x)
    out.mean().backward()
    return out, net.fc.weight.grad


@case(
    "worker-thread-eval",
    "an evaluation worker thread averages the accuracy of an empty shard",
    "",
    "zero-count",
    "nan",
    ["mean", "div"],
    module="meter",
)
def worker_thread_eval():
    class Meter(nn.Module):
        def forward(self, hit):
            return hit.float().mean()  # ORIGIN

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.meter = Meter()

        def forward(self, x, y):
            return self.meter(self.fc(x).argmax(1) == y)

    model = track(Model().eval())
    shards = [(torch.randn(3, 2), torch.tensor([0, 1, 1])), (torch.randn(0, 2), torch.empty(0, dtype=torch.long))]

    def work(x, y):
        with torch.no_grad():
            return model(x, y)

    return run_threads(*[lambda s=s: work(*s) for s in shards])


@case(
    "lbfgs-closure-log",
    "curve fitting by LBFGS: the line search leaves the domain of the log inside the closure",
    "",
    "log-negative",
    "nan",
    "log",
    module="loglik",
)
def lbfgs_closure_log():
    class LogLik(nn.Module):
        def forward(self, rate, x):
            return (torch.log(rate) - rate * x).sum()  # ORIGIN

    class Expo(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.tensor(5.0))
            self.loglik = LogLik()

        def forward(self, x):
            return -self.loglik(self.rate, x)

    model = track(Expo())
    opt = torch.optim.LBFGS(model.parameters(), lr=8.0, max_iter=6)
    x = torch.tensor([0.5, 1.0, 2.0])

    def closure():
        opt.zero_grad()
        loss = model(x)
        loss.backward()
        return loss

    opt.step(closure)
    return model(x), model.rate


@case(
    "compiled-eager-softsign",
    "torch.compile(backend='eager'): x / |x| of a zero activation",
    "",
    "zero-division",
    "nan",
    "div",
    module="act",
    debatable="the module call is inlined by dynamo",
)
def compiled_eager_softsign():
    class Sign(nn.Module):
        def forward(self, x):
            h = x.relu()
            return h / h.abs()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.act = Sign()

        def forward(self, x):
            return self.act(self.fc(x)).sum(1)

    net = track(Net())
    out = torch.compile(net, backend="eager")(torch.randn(4, 3))
    out.mean().backward()
    return out, net.fc.weight.grad
