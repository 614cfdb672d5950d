"""Takes snapshots, and rolls training back to one of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from torchnan.config.options import OptionError
from torchnan.config.policy import Policy
from torchnan.detection.containment import Failures, describe
from torchnan.distributed.agreement import Agreement
from torchnan.training import health
from torchnan.training.guard.errors import TrainingStopped
from torchnan.training.guard.log import RecoveryLog
from torchnan.training.guard.snapshots import DiskSnapshots, MemorySnapshots, Snapshots, TrainingState, UserSnapshots
from torchnan.training.guard.step.gradients import nonfinite_among
from torchnan.training.guard.step.replay import digest_of


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
        self._checks_health = policy.health
        self._training = training
        self._agreement = agreement
        self._log = log
        self._failures = failures
        self._snapshots: Snapshots
        if save is not None and load is not None:
            self._snapshots = UserSnapshots(save, load, policy.snapshots)
        elif policy.snapshot_folder is not None:
            folder = Path(policy.snapshot_folder)
            self._snapshots = DiskSnapshots(training, policy.snapshots, folder, agreement.global_rank)
        else:
            self._snapshots = MemorySnapshots(training, policy.snapshots)

    @property
    def possible(self) -> bool:
        """Whether every rank has a snapshot. Collective."""
        return self._agreement.all_reduce_max(int(not self._snapshots.steps)) == 0

    @property
    def bytes_in_memory(self) -> int:
        """CPU memory taken by snapshots."""
        return self._snapshots.bytes_in_memory if isinstance(self._snapshots, MemorySnapshots) else 0

    def require_no_leftovers(self) -> None:
        """Checks that a run that was not resumed cannot go back to snapshots of an earlier run.

        Raises:
            OptionError: there are snapshots of an earlier run.
        """
        steps = self._snapshots.steps
        if steps:
            raise OptionError(
                f"snapshot_folder has snapshots of an earlier run, up to step {steps[-1]}: call guard.resume() to go "
                "on from there, or give another folder."
            )

    def due(self, step: int) -> bool:
        """Returns whether a snapshot is due after this step."""
        return self.ends_interval(step) and step not in self._snapshots.steps[-1:]

    def ends_interval(self, step: int) -> bool:
        """Returns whether the steps from one snapshot to the next end with this step."""
        return self._every > 0 and step % self._every == 0

    def take(self, step: int) -> None:
        """Takes a snapshot, unless the weights are already bad."""
        nonfinite = nonfinite_among(self._training.model.named_parameters())
        if self._agreement.all_reduce_max(len(nonfinite)) > 0:
            self._log.record(
                "no_snapshot", step=step, reason=f"not finite: {', '.join(nonfinite[:5]) or 'on another rank'}"
            )
            return
        try:
            self._snapshots.take(step)
        except Exception as error:  # noqa: BLE001 - ranks go back to the newest snapshot that all of them have
            self._log.record("no_snapshot", step=step, reason=describe(error))
            self._failures.record("taking a snapshot", error)
            return
        self._log.record("snapshot", step=step, kept=self._snapshots.steps)

    def replicas_differ(self) -> bool:
        """Returns whether the ranks of a DDP model have different weights: one of them was modified. Collective."""
        if self._agreement.ranks == 1 or not isinstance(self._training.model, DistributedDataParallel):
            return False
        mine = int(digest_of(self._training.model.parameters()), 16) >> 2  # fits an int64
        return self._agreement.all_reduce_max(mine) != -self._agreement.all_reduce_max(-mine)

    def restore(self, back: int) -> int:
        """Restores the newest snapshot, or an older one. Falls back to older ones if a restore fails. Collective.

        Args:
            back: how many snapshots older than the newest; limited to the oldest.

        Returns:
            The step after which the snapshot was taken.

        Raises:
            TrainingStopped: no snapshot can be restored, or a rank or its device is not healthy.
        """
        self._require_health()
        steps = self._snapshots.steps
        step = steps[max(0, len(steps) - 1 - back)]
        while True:
            step = -self._agreement.all_reduce_max(-step)  # a rank that was killed while it wrote may lack the newest
            failed = 1
            with self._failures.contained("restoring a snapshot"):
                self._snapshots.restore(step)
                failed = 0
            if self._agreement.all_reduce_max(failed) == 0:
                return step
            older = [taken for taken in self._snapshots.steps if taken < step]
            if self._agreement.all_reduce_max(int(not older)) > 0:
                raise TrainingStopped(f"no snapshot can be restored: the one after step {step} failed", "model")
            step = older[-1]

    def _require_health(self) -> None:
        """Checks ranks and devices. If one computes wrong results, the steps after a rollback would be bad as well."""
        if not self._checks_health:
            return
        report = None
        with self._failures.contained("checking the health of ranks and devices"):
            report = health.check(self._agreement.group)
        if report is not None and not report.ok:
            seen = "; ".join(str(trouble) for trouble in report.troubles)
            raise TrainingStopped(f"no rollback, because the next steps would be bad too: {seen}", "transient")
