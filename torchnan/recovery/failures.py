"""What the step guard could not do of its own work: counted, and warned about once for each part."""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import Iterator

from torchnan.config.text import printable
from torchnan.detection.containment import text_of
from torchnan.distributed.agreement import AgreementError

logger = logging.getLogger("torchnan")


class Failures:
    """Of one guard."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()

    def note(self, part: str, error: BaseException) -> None:
        """A part of the work has failed."""
        self.counts[part] += 1
        if self.counts[part] == 1:
            with contextlib.suppress(Exception):  # a handler of the program's may fail, too
                why = printable(text_of(error))
                logger.warning("torchnan: %s failed: %s. TrainingState goes on; this is said once.", part, why)

    @contextlib.contextmanager
    def contained(self, part: str) -> Iterator[None]:
        """What fails inside is noted, and ends there; not so a rank that has gone."""
        try:
            yield
        except AgreementError:
            raise
        except Exception as error:  # noqa: BLE001 - it may come from any object of the program's
            self.note(part, error)
