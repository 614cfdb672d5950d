"""Faults planted at random in real models, and what has to be said of them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import random
from collections.abc import Callable

import torch
import transformers
from torch import nn

import torchnan

SEEDS = 40
SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def tokens() -> torch.Tensor:
    return torch.randint(2, 64, (2, 8))


def gpt2():
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    ids = tokens()
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def bert():
    config = transformers.BertConfig(**SMALL, max_position_embeddings=16, num_labels=3)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    model = transformers.BertForSequenceClassification(config)
    return model, {"input_ids": tokens(), "attention_mask": mask, "labels": torch.tensor([0, 2])}


def t5():
    config = transformers.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    config.decoder_start_token_id = config.pad_token_id = 0
    return transformers.T5ForConditionalGeneration(config), {"input_ids": tokens(), "labels": tokens()}


def vit():
    options = {name: value for name, value in SMALL.items() if name != "vocab_size"}
    config = transformers.ViTConfig(**options, image_size=8, patch_size=4, num_labels=3)
    return transformers.ViTForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 8, 8),
        "labels": torch.tensor([0, 2]),
    }


def mamba():
    config = transformers.MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4)
    ids = tokens()
    return transformers.MambaForCausalLM(config), {"input_ids": ids, "labels": ids}


def mixtral():
    config = transformers.MixtralConfig(
        **SMALL, num_key_value_heads=2, num_local_experts=4, max_position_embeddings=16, output_router_logits=True
    )
    ids = tokens()
    return transformers.MixtralForCausalLM(config), {"input_ids": ids, "labels": ids}


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "gpt2": gpt2,
    "bert": bert,
    "t5": t5,
    "vit": vit,
    "mamba": mamba,
    "mixtral": mixtral,
}


@functools.cache
def built(name: str):
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    return model.train(), batch


def fresh(name: str, device: str | torch.device = "cpu"):
    model, batch = built(name)
    return copy.deepcopy(model).to(device), {name: values.to(device) for name, values in batch.items()}


@dataclasses.dataclass
class Fault:
    """A planted fault, and its expected report (only known fields are compared)."""

    place: str
    truth: dict[str, object]
    plant: Callable[[], object]  # just before the step; what it returns is removed after it
    names: tuple[str, ...] = ()  # of the parameter; tied weights have several


def log_of_a_negative(x: torch.Tensor) -> torch.Tensor:
    return x + (x.detach() * 0 - 1).log()  # PLANTED


def root_of_a_negative(x: torch.Tensor) -> torch.Tensor:
    return x + (x.detach() * 0 - 1).sqrt()  # PLANTED


def overflow(x: torch.Tensor) -> torch.Tensor:
    return x + (x.detach() * 0 + 3e38) * 10  # PLANTED


def line_of(function) -> int:
    source, first = inspect.getsourcelines(function)
    return first + next(i for i, text in enumerate(source) if "# PLANTED" in text)


def tensor_modules(model: nn.Module, batch) -> dict[str, nn.Module]:
    """Modules that return one tensor of floats that the loss depends on."""
    found: dict[str, tuple[nn.Module, torch.Tensor]] = {}

    def look(name, module, _, out):
        if isinstance(out, torch.Tensor) and out.requires_grad and out.numel() > 0:
            out.retain_grad()
            found.setdefault(name, (module, out))

    hooks = [m.register_forward_hook(functools.partial(look, n)) for n, m in model.named_modules() if n]
    model(**batch).loss.backward()
    model.zero_grad()
    for hook in hooks:
        hook.remove()
    return {name: module for name, (module, out) in found.items() if out.grad is not None}


def bad_parameter(model, batch, rng) -> Fault:
    name, parameter = rng.choice([(n, p) for n, p in model.named_parameters() if p.numel() > 0])
    names = tuple(n for n, p in model.named_parameters(remove_duplicate=False) if p is parameter)
    position = rng.randrange(parameter.numel())
    value = rng.choice([math.nan, math.inf])

    def plant():
        parameter.data.view(-1)[position] = value

    return Fault(f"{name}[{position}] = {value}", {"origin": "parameter"}, plant, names)


def bad_activation(make, model, batch, rng) -> Fault:
    name, module = rng.choice(sorted(tensor_modules(model, batch).items()))
    truth = {
        "origin": "op",
        "op": {"log_of_a_negative": "aten::log", "overflow": "aten::mul"}[make.__name__],
        "module": name,
        "phase": "forward",
        "file": __file__,
        "line": line_of(make),
        "kind": "inf" if make is overflow else "nan",
    }
    return Fault(
        f"{make.__name__} in {name}", truth, lambda: module.register_forward_hook(lambda _m, _i, out: make(out))
    )


def bad_gradient(model, batch, rng) -> Fault:
    name, module = rng.choice(sorted(tensor_modules(model, batch).items()))

    def hook(_module, _inputs, out):
        out.register_hook(root_of_a_negative)

    truth = {
        "origin": "op",
        "op": "aten::sqrt",
        "phase": "backward",
        "file": __file__,
        "line": line_of(root_of_a_negative),
        "kind": "nan",
    }
    return Fault(f"gradient of {name}", truth, lambda: module.register_forward_hook(hook))


FAULTS = [
    bad_parameter,
    functools.partial(bad_activation, log_of_a_negative),
    functools.partial(bad_activation, overflow),
    bad_gradient,
]


def planted(
    name: str, seed: int, device: str | torch.device = "cpu"
) -> tuple[nn.Module, dict[str, torch.Tensor], Fault, int]:
    """The model, its batch, the fault of this seed, and the step (1 or 2) to plant it in."""
    rng = random.Random(f"{name}-{seed}")
    model, batch = fresh(name, device)
    fault = FAULTS[seed % len(FAULTS)](model, batch, rng)
    return model, batch, fault, rng.choice([1, 2])


def train(
    model: nn.Module,
    batch: dict[str, torch.Tensor],
    watch: torchnan.detect | None = None,
    fault: Fault | None = None,
    step_of_fault: int = 0,
) -> list[torch.Tensor]:
    """Runs two steps; returns the values that the program reads."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    symptoms = []
    for step in (1, 2):
        if watch is not None:
            watch.mark_step(step)
        hook = fault.plant() if fault and step == step_of_fault else None
        loss = model(**batch).loss
        loss.backward()
        symptoms += [loss.detach(), *(p.grad.detach().clone() for p in model.parameters() if p.grad is not None)]
        optimizer.step()
        optimizer.zero_grad()
        if hook is not None:
            hook.remove()
    return symptoms + [p.detach() for p in model.parameters()]


def is_named(watch: torchnan.detect, symptoms: list[torch.Tensor], fault: Fault, step: int) -> bool:
    """Whether the fault has done harm. Then there is one error, which names it exactly, and else none."""
    errors = [finding for finding in watch.findings if finding.level == "error"]
    if all(bool(torch.isfinite(x.cpu()).all()) for x in symptoms):
        assert not errors, f"{fault.place} has done no harm:\n{errors[0]}"
        return False
    assert errors, f"{fault.place}: no word of it"
    truth = {**fault.truth, "step": step}
    told = {key: getattr(errors[0], key) for key in truth}
    assert told == truth, f"{fault.place} at step {step}:\n{errors[0]}"
    assert not fault.names or errors[0].name in fault.names, f"{fault.place}:\n{errors[0]}"
    assert len(errors) == 1, f"{fault.place}: one cause, {len(errors)} errors:\n{errors[1]}"
    return True
