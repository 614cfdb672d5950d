"""``python -m torchnan``."""

import sys

from torchnan.commands import main

sys.exit(main())
