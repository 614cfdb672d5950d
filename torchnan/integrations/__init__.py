"""StepGuard in the training loops of frameworks: ``torchnan.integrations.lightning.NaNCapture`` for Lightning,
``torchnan.integrations.transformers.NaNCallback`` for the Trainer of Transformers. Each module needs its framework and
is imported by its own name. Accelerate needs no integration: see ``examples/accelerate_loop.py``."""
