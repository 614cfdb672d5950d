"""transformers: twenty architectures, three steps of training on padded batches, then generation.

Bug: the loss is weighted by hand with the number of non-padding tokens, and one batch has none.
"""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

HAS_BUG = "--bug" in sys.argv
ARCHITECTURES = [
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "opt",
    "bloom",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "phi",
    "phi3",
    "falcon",
    "stablelm",
    "olmo2",
    "granite",
    "mamba",
    "codegen",
]
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "n_embd": 32,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rotary_dim": 4,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OWN = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "opt": {"word_embed_proj_dim": 32},
    "gpt_neox": {"rotary_pct": 0.25},
}


def small(architecture):
    config = AutoConfig.for_model(architecture)
    known = set(config.to_dict()) | set(config.attribute_map)
    given = {name: value for name, value in SMALL.items() if name in known}
    for name in ("head_dim", "rotary_dim"):
        if name in config.attribute_map or config.to_dict().get(name) is None:
            given.pop(name, None)
    return AutoConfig.for_model(architecture, **{**given, **OWN.get(architecture, {})})


for architecture in ARCHITECTURES:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(small(architecture))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(3, 64, (4, 12))
    mask = torch.ones_like(ids)
    mask[:2, :5] = 0
    for step in range(3):
        if HAS_BUG and step == 2:
            mask = torch.zeros_like(ids)
        scores = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        kept = mask[:, 1:].flatten()
        loss = (loss * kept).sum() / kept.sum()  # expect: aten::div
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    model.generate(ids[:, :6], attention_mask=mask[:, :6], max_new_tokens=3, num_beams=2, do_sample=True, top_p=0.9)
    print(architecture, loss.item())
