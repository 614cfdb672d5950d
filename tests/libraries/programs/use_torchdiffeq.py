"""torchdiffeq: a neural ODE, fitted through adaptive solvers and the adjoint method.

Bug: the field has a pole where a trajectory starts.
"""

import sys

import torch
from torchdiffeq import odeint, odeint_adjoint

HAS_BUG = "--bug" in sys.argv
torch.manual_seed(0)


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def forward(self, time, y):
        if HAS_BUG:
            return self.net(y) + 0.01 * y / y.square().sum(-1, keepdim=True)  # expect: aten::div
        return self.net(y)


field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=1e-2)
start, times = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.linspace(0, 1, 4)
target = torch.randn(4, 2, 2)
for solve, method in ((odeint, "rk4"), (odeint, "euler"), (odeint_adjoint, "midpoint"), (odeint, "dopri5")):
    optimizer.zero_grad()
    loss = (solve(field, start, times, method=method) - target).square().mean()
    loss.backward()
    optimizer.step()
    print(method, loss.item())
