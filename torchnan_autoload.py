"""Called by `import torch` in every program of an environment that has torchnan, so it must cost almost nothing.

A separate module, so that a program that does not use torchnan imports no part of it.
"""

import os
import sys


def switch_on_from_environment() -> None:
    """Turns detection on if a TORCHNAN variable asks for it.

    If torchnan cannot be loaded, a program that asks for detection ends with status 2 and one line that says why.
    """
    if not any(name.startswith("TORCHNAN") for name in os.environ):
        return
    try:
        from torchnan import startup
    except ImportError as error:
        if os.environ.get("TORCHNAN", "0") in ("", "0"):
            return
        sys.stderr.write(f"torchnan: {error}\n")
        raise SystemExit(2) from None
    startup.switch_on()
