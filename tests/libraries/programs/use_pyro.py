"""pyro: variational inference of a regression, and samples of its posterior.

Bug: the model takes the logarithm of a rate that the data make zero.
"""

import sys

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

HAS_BUG = "--bug" in sys.argv
pyro.set_rng_seed(0)
exposure = torch.rand(40) + 0.5
if HAS_BUG:
    exposure[7] = 0.0
x = torch.randn(40)
counts = torch.poisson(exposure.clamp(min=0.1) * torch.exp(0.3 * x))


def model(x, counts=None):
    weight = pyro.sample("weight", dist.Normal(0.0, 1.0))
    bias = pyro.sample("bias", dist.StudentT(3.0, 0.0, 1.0))
    log_rate = weight * x + bias + torch.log(exposure)  # expect: aten::log
    with pyro.plate("data", len(x)):
        return pyro.sample("counts", dist.Poisson(log_rate.exp() + torch.exp(-log_rate) * 1e-6), obs=counts)


for guide in (AutoNormal(model), AutoMultivariateNormal(model)):
    pyro.clear_param_store()
    inference = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
    losses = [inference.step(x, counts) for _ in range(5)]
    samples = Predictive(model, guide=guide, num_samples=5)(x)
    print(losses[-1], samples["counts"].mean().item())
