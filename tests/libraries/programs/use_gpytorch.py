"""gpytorch: an exact Gaussian process, fitted and then used to predict.

Bug: targets are standardized, and all are the same.
"""

import sys

import gpytorch
import torch

HAS_BUG = "--bug" in sys.argv
torch.manual_seed(0)


class Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


x = torch.linspace(0, 1, 20)
y = torch.ones(20) if HAS_BUG else torch.sin(6 * x) + 0.1 * torch.randn(20)
y = (y - y.mean()) / y.std()  # expect: aten::div
likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = Process(x, y, likelihood)
objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
model.train()
for _ in range(10):
    optimizer.zero_grad()
    loss = -objective(model(x), y)
    loss.backward()
    optimizer.step()
model.eval()
likelihood.eval()
with torch.no_grad(), gpytorch.settings.fast_pred_var():
    predicted = likelihood(model(torch.linspace(0, 2, 7)))
    print(loss.item(), predicted.mean.tolist(), predicted.confidence_region()[0].tolist())
