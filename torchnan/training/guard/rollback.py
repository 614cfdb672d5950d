"""Takes snapshots, and rolls training back to one of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from torchnan.config.options import OptionError
from torchnan.config.policy import Policy
from torchnan.config.text import printable
from torchnan.detection.containment import Failures
from torchnan.distributed.agreement import Agreement
from torchnan.training import health
from torchnan.training.guard.errors import TrainingStopped
from torchnan.training.guard.reporter import RecoveryLog
from torchnan.training.guard.snapshots import DiskSnapshots, MemorySnapshots, Snapshots, TrainingState, UserSnapshots
from torchnan.training.guard.step.replay import digest_of

logger = logging.getLogger("torchnan")


class Rollback:
    """The snapshots of a run.

    Args:
        policy: how many snapshots, how often, and where.
        training: what is saved.
        agreement: agreement with the other ranks: all go back to the same step.
        log: records each snapshot.
        failures: counts snapshots that could not be taken.
        save, load: the user's own functions, in place of snapshots by torchnan.
    """

    def __init__(
        self,
        policy: Policy,
        training: TrainingState,
        agreement: Agreement,
        log: RecoveryLog,
        failures: Failures,
        save: Callable[[int], Any] | None,
        load: Callable[[int], Any] | None,
    ) -> None:
        self._every = policy.snapshot_every
        self._count = policy.snapshots
        self._checks_health = policy.health
        self._training = training
        self._agreement = agreement
        self._log = log
        self._failures = failures
        self._steps: list[int] = []  # snapshots that every rank has, oldest first: the same list on every rank
        self._decided: int | None = None  # the last step for which all ranks have decided about a snapshot
        self._snapshots: Snapshots
        if save is not None and load is not None:
            self._snapshots = UserSnapshots(save, load)
        elif policy.snapshot_folder is not None:
            self._snapshots = DiskSnapshots(training, Path(policy.snapshot_folder), agreement.global_rank)
        else:
            self._snapshots = MemorySnapshots(training)
        if self._every > 0:
            self._say_what_is_not_restored()

    def _say_what_is_not_restored(self) -> None:
        lost = self._training.not_restored()
        if lost:
            logger.warning(
                "torchnan: a rollback does not restore %s: give what must go back in also=, as an object with "
                "state_dict() and load_state_dict().",
                printable(", ".join(lost), 1000),
            )

    @property
    def possible(self) -> bool:
        """Whether there is a snapshot, which every rank then has."""
        return bool(self._steps)

    @property
    def bytes_in_memory(self) -> int:
        """CPU memory taken by snapshots."""
        return self._snapshots.bytes_in_memory if isinstance(self._snapshots, MemorySnapshots) else 0

    def require_no_leftovers(self) -> None:
        """Checks that a run that was not resumed cannot go back to snapshots of an earlier run. Collective.

        Raises:
            OptionError: a rank has snapshots of an earlier run.
        """
        steps = self._held()
        told = self._agreement.first_failure(
            f"snapshot_folder has snapshots of an earlier run, up to step {steps[-1]}: call guard.resume() to go "
            "on from there, or give another folder."
            if steps
            else ""
        )
        if told:
            raise OptionError(told)

    def _held(self) -> list[int]:
        """Returns the steps of this rank's own snapshots."""
        with self._failures.contained("listing snapshots"):
            return self._snapshots.steps
        return []

    def find(self) -> bool:
        """Finds the snapshots of an earlier run that every rank has, and says on every rank which are missing where.
        Returns whether there are any. Collective."""
        mine = self._held()
        most = self._agreement.all_reduce_max(len(mine))
        rows = self._agreement.gather([step + 1 for step in mine] + [0] * (most - len(mine)))
        held = [{step - 1 for step in row if step} for row in rows]
        self._steps = sorted(set.intersection(*held))
        anywhere = set.union(*held)
        gaps = [
            f"rank {self._agreement.to_global_rank(rank)} has none of step {_listed(anywhere - own)}"
            for rank, own in enumerate(held)
            if own != anywhere
        ]
        if gaps:
            goes_on = (
                f"goes on from step {self._steps[-1]}, the newest" if self._steps else "cannot go on: there is none"
            )
            text = f"snapshots are missing: {'; '.join(gaps)}. The run {goes_on} that all ranks have."
            self._log.record("resume", step=self._steps[-1] if self._steps else None, reason=text)
            logger.warning("torchnan: %s", text)
        return bool(self._steps)

    def due(self, step: int) -> bool:
        """Returns whether a snapshot is due after this step: the same on every rank, whatever became of earlier
        ones."""
        return self.ends_interval(step) and step != self._decided

    def ends_interval(self, step: int) -> bool:
        """Returns whether the steps from one snapshot to the next end with this step."""
        return self._every > 0 and step % self._every == 0

    def take(self, step: int) -> None:
        """Takes a snapshot on every rank or on none, unless something in the state is bad already. Collective."""
        self._decided = step
        reason = ""
        with self._failures.contained("taking a snapshot") as reading:  # objects of user code
            nonfinite = self._training.nonfinite()
            reason = f"not finite: {', '.join(nonfinite[:5])}" if nonfinite else ""
        if told := self._agreement.first_failure(reading.failure or reason):
            self._log.record("no_snapshot", step=step, reason=told)
            return
        oldest = self._steps[0] if len(self._steps) >= self._count else None
        with self._failures.contained("taking a snapshot") as taking:  # such as a full disk
            self._snapshots.take(step, instead_of=oldest)
        told = self._agreement.first_failure(taking.failure)
        if told:
            # The oldest is lost, too, if any rank has used its memory for the one that failed.
            is_lost = oldest is not None and oldest not in self._held()
            lost = [oldest] if self._agreement.all_reduce_max(int(is_lost)) > 0 else []
            self._steps = [taken for taken in self._steps if taken not in lost]
            self._drop([step, *lost])
            self._log.record("no_snapshot", step=step, reason=told)
            return
        self._steps = [*(taken for taken in self._steps if taken != oldest), step]
        self._drop(set(self._held()).difference(self._steps))
        self._log.record("snapshot", step=step, kept=self._steps)

    def _drop(self, steps: Iterable[int | None]) -> None:
        """Drops those snapshots of this rank that exist."""
        for step in set(self._held()).intersection(steps):
            with self._failures.contained("removing a snapshot"):
                self._snapshots.drop(step)

    def replicas_differ(self) -> bool:
        """Returns whether the ranks of a DDP model have different weights: one of them was modified. Collective."""
        if self._agreement.ranks == 1 or not isinstance(self._training.model, DistributedDataParallel):
            return False
        mine, failed = 0, 1
        with self._failures.contained("comparing the weights of the ranks"):
            mine = int(digest_of(self._training.model.parameters()), 16) >> 2  # fits an int64
            failed = 0
        failed, largest, smallest = self._agreement.all_reduce_max_of([failed, mine, -mine])
        return not failed and largest != -smallest

    def restore(self, back: int) -> int:
        """Restores the newest snapshot, or an older one. Falls back to older ones if a restore fails on any rank.
        Collective.

        Args:
            back: how many snapshots older than the newest; limited to the oldest.

        Returns:
            The step after which the snapshot was taken.

        Raises:
            TrainingStopped: no snapshot can be restored, or a rank or its device is not healthy.
        """
        self._require_health()
        told = ""
        for step in reversed(self._steps[: max(1, len(self._steps) - back)]):
            with self._failures.contained("restoring a snapshot") as restoring:  # a damaged file, or a user's load()
                self._snapshots.restore(step)
            told = self._agreement.first_failure(restoring.failure)
            if not told:
                self._steps = [taken for taken in self._steps if taken <= step]
                self._decided = step
                self._drop(set(self._held()).difference(self._steps))
                return step
        raise TrainingStopped(f"no snapshot can be restored: the one after step {step} failed: {told}", "model")

    def _require_health(self) -> None:
        """Checks ranks and devices. If one computes wrong results, the steps after a rollback would be bad as well."""
        if not self._checks_health:
            return
        report = None
        with self._failures.contained("checking the health of ranks and devices"):
            report = health.check(self._agreement.group)
        if report is None and self._agreement.ranks > 1:  # the others have waited for an answer in vain, and stop
            raise TrainingStopped("no rollback, because the health check failed on this rank", "transient")
        if report is not None and not report.ok:
            seen = "; ".join(str(trouble) for trouble in report.troubles)
            raise TrainingStopped(f"no rollback, because the next steps would be bad too: {seen}", "transient")


def _listed(steps: set[int]) -> str:
    return ", ".join(map(str, sorted(steps)))
