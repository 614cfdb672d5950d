"""Self-contained web pages: no script, no network, no font, no external image."""

try:
    import numpy as _numpy  # noqa: F401
except ImportError:
    raise ImportError("torchnan.pages needs numpy: pip install torchnan[diagnose]") from None
