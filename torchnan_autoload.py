"""Called by `import torch` in every program of an environment that has torchnan, so it must cost almost nothing.

A separate module, so that a program that does not use torchnan imports no part of it.
"""

import os


def switch_on_from_environment() -> None:
    """Turns detection on if a TORCHNAN variable asks for it."""
    if any(name.startswith("TORCHNAN") for name in os.environ):
        from torchnan import startup

        startup.switch_on()
