"""peft: LoRA on a GPT-2, trained on padded sentences, merged, and used to generate.

Bug: the scale of LoRA is computed with a rank of 0.
"""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

HAS_BUG = "--bug" in sys.argv
torch.manual_seed(0)
config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0)
model = get_peft_model(
    GPT2LMHeadModel(config), LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True)
)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
ids = torch.randint(1, 64, (4, 16))
mask = torch.ones_like(ids)
mask[:2, :6] = 0

rank = torch.tensor(0.0 if HAS_BUG else 4.0)
for _ in range(3):
    output = model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
    regularizer = sum(p.square().mean() for name, p in model.named_parameters() if "lora_B" in name)
    loss = output.loss + 1e-3 * regularizer / rank  # expect: aten::div
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

merged = model.merge_and_unload()
merged.eval()
print(
    merged.generate(ids[:, :8], attention_mask=mask[:, :8], max_new_tokens=4, do_sample=True, top_k=5, pad_token_id=0)
)
