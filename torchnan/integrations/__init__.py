"""The step guard inside other people's training loops: ``torchnan.integrations.lightning.NaNCapture`` for Lightning,
``torchnan.integrations.transformers.NaNCallback`` for the Trainer of Transformers. Each is imported by its own name and
needs its framework; nothing else of torchnan does. Accelerate needs none: see ``examples/accelerate_loop.py``."""
