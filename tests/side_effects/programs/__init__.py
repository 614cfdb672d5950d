"""Programs as users write them, by theme. Each is run without and with torchnan, and may not notice the difference."""

from tests.side_effects.programs import (  # noqa: F401 - a program registers itself
    checkpoints,
    compiler,
    guards,
    hooks,
    lifetimes,
    locks_and_signals,
    random_numbers,
    surroundings,
)
