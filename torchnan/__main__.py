"""``python -m torchnan``."""

import sys

from torchnan.cli import main

sys.exit(main())
