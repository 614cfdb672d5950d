"""Says for each verdict what to do, and how to check it."""

from __future__ import annotations

from torchnan.training.diagnosis.verdict import Cause, Kind

RELOAD = "Reload the last checkpoint before step {step}"
SCORE_BOTH = (
    "Score batches from before and after step {step} with one checkpoint: if the later batches score worse, the data "
    "is the cause."
)
RERUN = (
    "Run step {step} in float32 with the same data: if it is finite there, it overflowed; otherwise the cause is "
    "structural."
)

_BY_CAUSE: dict[tuple[Kind, Cause], tuple[str, str]] = {
    ("nonfinite", "log_zero"): (
        "Use log_softmax (or cross_entropy on logits) instead of log(softmax(x)), or add an epsilon inside the log.",
        "Print the argument of the logarithm{place} in step {step}: it holds a zero or a negative number.",
    ),
    ("nonfinite", "zero_by_zero"): (
        "Keep the divisor from being zero: divide by max(count, 1), add an epsilon, or skip a batch for which it is 0.",
        "Print the divisor{place} in step {step}.",
    ),
    ("nonfinite", "data"): (
        "Repair the data, or drop such rows in the data loader: the values were not finite before the model used them.",
        "Look for NaN and Inf in the batch of step {step}, row by row: torch.isfinite(x).",
    ),
    ("nonfinite", "parameter"): (
        RELOAD + ": a weight or a buffer was not finite before the step began.",
        "Find the step that wrote it: start from that checkpoint with TORCHNAN=raise in front of the command.",
    ),
    ("nonfinite", "uninitialised"): (
        "Write the memory before it is read: zeros() in place of empty().",
        "Look at the line that allocated the memory{place}.",
    ),
    ("nonfinite", "lr_discontinuity"): (
        RELOAD + " and repair the schedule: the update after the jump of the learning rate was destructive.",
        "Print the learning rate around step {step}.",
    ),
    ("nonfinite", "gradient_overflow"): (
        "Clip gradients by value (at 100) in addition to clipping by norm.",
        "Run step {step} again with TORCHNAN=raise in front of the command: it names the operation.",
    ),
    ("spike", "long_tail_batch"): (
        "Stratify the batches, so that rare samples do not come together; write a post-mortem of the batch.",
        "Look at the batch of step {step}: its loss is high under the weights of the step before, too.",
    ),
    ("spike", "lr_discontinuity"): (
        "Repair the schedule: the learning rate jumps. Then run again.",
        "Plot the learning rate that the schedule gives for the steps around {step}.",
    ),
    ("spike", "duplicate_batch"): (
        "Repair the data loader: it serves a batch again that was served a few steps before.",
        "Print the indices that the sampler gives around step {step}.",
    ),
    ("persistent_elevation", "lr_discontinuity"): (
        RELOAD + ", repair the schedule, whose learning rate jumps, and start again from there.",
        "Plot the learning rate that the schedule gives for the steps around {step}.",
    ),
    ("persistent_elevation", "duplicate_batch"): (
        RELOAD + ", repair the data loader, which serves a batch again, and start again from there.",
        "Print the indices that the sampler gives around step {step}.",
    ),
    ("silent_divergence", "lr_increasing"): (
        "Repair the schedule: the learning rate goes up with the loss (an inverse cosine, a warm-up without end).",
        "Plot the learning rate of the whole schedule before the next start.",
    ),
    ("silent_divergence", "weight_norm"): (
        "Change the weight decay by a factor of 2, up if the norm climbs and down if it collapses, and run again from "
        "a checkpoint before step {step}.",
        "Compare the norm of each parameter group with the one at the checkpoint.",
    ),
    ("silent_divergence", "gradient_trend"): (
        "Halve the learning rate, and look upstream: bad data or labels from step {step} on, drift of weights.",
        SCORE_BOTH,
    ),
    ("not_learning", "lr_zero"): (
        "Repair the schedule, or the order of optimizer.step() and scheduler.step(): the learning rate is 0.",
        "Print optimizer.param_groups[0]['lr'] in step {step}.",
    ),
}

_BY_KIND: dict[Kind, tuple[str, str]] = {
    "nonfinite": (
        "Reload the last checkpoint without a NaN, find the first operation that makes one of finite values, and "
        "repair it. If it comes again, it is structural: go through the architecture.",
        "Print what goes into the operation{place} in step {step}.",
    ),
    "fp16_overflow": (
        "Use dynamic loss scaling (torch.amp.GradScaler), or switch from float16 to bfloat16. If a module's outputs "
        "grow, look at its initialisation and at the residual stream.",
        RERUN,
    ),
    "loss_scale_constant": (
        "Engage dynamic loss scaling: torch.amp.GradScaler, with update() after every step, or switch to bfloat16.",
        "Print scaler.get_scale() after an overflow: it must halve.",
    ),
    "loss_scale_collapse": (
        "Overflow is systematic: halve the learning rate, look at the initialisation and the residual stream, or "
        "switch to bfloat16.",
        RERUN,
    ),
    "spike": (
        "Nothing, if it stays the only one; several: lower the clip threshold, stratify the batches.",
        "Score the batch of step {step} with the checkpoint before: a high loss there says that it is the batch.",
    ),
    "persistent_elevation": (
        RELOAD + ", lower the clip threshold to 0.5, stratify the batches, and start again. Without a checkpoint it "
        "costs the whole run.",
        "Score the batches of the steps after {step} with the checkpoint before: a low loss there says that the "
        "weights or the optimizer's moments are damaged, a high one that the data has changed.",
    ),
    "silent_divergence": (
        "Halve the learning rate and start again from a checkpoint before step {step}; look at data and labels.",
        SCORE_BOTH,
    ),
    "plateau": (
        "Training is done: look at the evaluation. If that stands as well, stop.",
        "Compare the evaluation of the last checkpoints.",
    ),
    "dead_gradients": (
        "Look for what cuts the graph: detach(), no_grad(), parameters that the optimizer does not have, an activation "
        "that makes everything 0, weights that were frozen.",
        "Print p.grad.norm() for each parameter in step {step}, from the last layer back: the first 0 is behind it.",
    ),
    "not_learning": (
        "Try to overfit a single batch. If that fails, look at the learning rate, at what the optimizer holds, and "
        "whether labels belong to their inputs.",
        "Print the learning rate, the gradient norm and one weight before and after a step.",
    ),
    "overfitting": (
        "Stop at the checkpoint near step {step}, or regularise: more data, augmentation, dropout, weight decay.",
        "Evaluate the checkpoint near step {step} and the last one on data that neither has seen.",
    ),
    "undetermined": (
        "Log what is missing, or name it with --column, and diagnose again.",
        "Look at the numbers of the last steps.",
    ),
    "healthy": ("None is needed.", "None is needed."),
}


NAME_THE_ORIGIN = (
    "Run it again with TORCHNAN=raise in front of the command: it stops where the value does harm, and names the "
    "operation that made it, its line and its inputs."
)


def remedy_and_check(
    kind: Kind, cause: Cause, step: int, origin: str | None = None, place: str | None = None
) -> tuple[str, str]:
    """Returns what to do about a verdict, and how to check it.

    Args:
        kind, cause, step: of the verdict.
        origin: the origin from the finding of a non-finite value; ``None`` if there is none.
        place: its file and line.
    """
    remedy, check = _BY_CAUSE.get((kind, cause), _BY_KIND[kind])
    if kind == "nonfinite" and origin is None:
        check = NAME_THE_ORIGIN
    found = {"step": f"{step:,}", "place": f" at {place}" if place else ""}
    return remedy.format(**found), check.format(**found)
