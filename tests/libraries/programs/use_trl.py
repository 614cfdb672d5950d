"""trl: preference optimization (DPO) of a small causal model against its reference.

Bug: preferences are weighted by the logarithm of a margin that is zero for one pair.
"""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from trl.trainer.utils import selective_log_softmax

HAS_BUG = "--bug" in sys.argv
torch.manual_seed(0)
config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0)
policy, reference = GPT2LMHeadModel(config), GPT2LMHeadModel(config)
reference.load_state_dict(policy.state_dict())
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
chosen, rejected = torch.randint(1, 64, (4, 12)), torch.randint(1, 64, (4, 12))
margin = torch.tensor([2.0, 1.0, 0.0 if HAS_BUG else 1.0, 3.0])


def log_probability(model, ids):
    return selective_log_softmax(model(input_ids=ids).logits[:, :-1], ids[:, 1:]).sum(1)


for _ in range(3):
    with torch.no_grad():
        baseline = log_probability(reference, chosen) - log_probability(reference, rejected)
    gain = log_probability(policy, chosen) - log_probability(policy, rejected) - baseline
    weight = margin.log()  # expect: aten::log
    loss = -(torch.nn.functional.logsigmoid(0.1 * gain) * (1 + weight)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
