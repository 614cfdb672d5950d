"""accelerate: a loop with mixed precision, gradient accumulation and clipping.

Bug: a temperature is learned directly, and its first update makes it negative, where its logarithm is not defined.
"""

import sys

import torch
from accelerate import Accelerator

HAS_BUG = "--bug" in sys.argv
torch.manual_seed(0)
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2, cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
temperature = torch.nn.Parameter(torch.tensor(0.01))
optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [temperature]}], lr=0.5)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=8))
for x, y in loader:
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        if HAS_BUG:
            loss = loss + temperature + 0.0 * temperature.log()  # expect: aten::log
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print(accelerator.gather(loss.detach()).item())
