"""Going back: when snapshots are taken, and to which of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from torchnan.config.options import OptionError
from torchnan.detection.containment import Failures, describe
from torchnan.distributed.agreement import Agreement
from torchnan.recovery.errors import TrainingStopped
from torchnan.recovery.log import RecoveryLog
from torchnan.recovery.policy import Policy
from torchnan.recovery.snapshots import DiskSnapshots, MemorySnapshots, Snapshots, TrainingState, UserSnapshots
from torchnan.recovery.step.gradients import nonfinite_among
from torchnan.recovery.step.replay import digest_of


class Rollback:
    """The snapshots of a run.

    Args:
        policy: how many, how often, where.
        training: what they are of.
        agreement: with the other ranks: all go back to the same step.
        log: told of each.
        failures: told of those that could not be taken.
        save, load: the user's own.
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
        self._training = training
        self._agreement = agreement
        self._log = log
        self._failures = failures
        self._snapshots: Snapshots
        if save is not None and load is not None:
            self._snapshots = UserSnapshots(save, load, policy.snapshots)
        elif policy.snapshot_folder is not None:
            where = Path(policy.snapshot_folder)
            self._snapshots = DiskSnapshots(training, policy.snapshots, where, agreement.global_rank)
        else:
            self._snapshots = MemorySnapshots(training, policy.snapshots)

    @property
    def possible(self) -> bool:
        """Every rank has one. All must ask."""
        return self._agreement.all_reduce_max(int(not self._snapshots.steps)) == 0

    @property
    def bytes_in_memory(self) -> int:
        """Of the snapshots that are kept there."""
        return self._snapshots.bytes_in_memory if isinstance(self._snapshots, MemorySnapshots) else 0

    def require_no_leftovers(self) -> None:
        """A run that does not go on from snapshots must not go back to them.

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
        """Whether one is to be taken before the step after this one."""
        return self._every > 0 and step % self._every == 0 and step not in self._snapshots.steps[-1:]

    def take(self, step: int) -> None:
        """Keeps the state, unless it is already bad: there is no use in going back to that."""
        bad = nonfinite_among(self._training.model.named_parameters())
        if self._agreement.all_reduce_max(len(bad)) > 0:
            self._log.note("no_snapshot", step=step, reason=f"not finite: {', '.join(bad[:5]) or 'on another rank'}")
            return
        try:
            self._snapshots.take(step)
        except Exception as error:  # noqa: BLE001 - the others have theirs: all go back to the newest that all have
            self._log.note("no_snapshot", step=step, reason=describe(error))
            self._failures.record("taking a snapshot", error)
            return
        self._log.note("snapshot", step=step, kept=self._snapshots.steps)

    def replicas_differ(self) -> bool:
        """Whether ranks that ought to have the same weights do not: somebody has written to one of them. Asked with
        every snapshot, of models in DDP."""
        if self._agreement.ranks == 1 or not isinstance(self._training.model, DistributedDataParallel):
            return False
        mine = int(digest_of(self._training.model.parameters()), 16) >> 2  # fits an int64
        return self._agreement.all_reduce_max(mine) != -self._agreement.all_reduce_max(-mine)

    def restore(self, further: int) -> int:
        """Goes back to the newest snapshot, or to one ``further`` before it, the oldest at most; past those that cannot
        be gone back to. Returns its step.

        Raises:
            TrainingStopped: there is none.
        """
        steps = self._snapshots.steps
        step = steps[max(0, len(steps) - 1 - further)]
        while True:
            step = -self._agreement.all_reduce_max(-step)  # a rank that was killed while it wrote may lack the newest
            failed = 1
            with self._failures.contained("going back to a snapshot"):
                self._snapshots.restore(step)
                failed = 0
            if self._agreement.all_reduce_max(failed) == 0:
                return step
            older = [kept for kept in self._snapshots.steps if kept < step]
            if self._agreement.all_reduce_max(int(not older)) > 0:
                raise TrainingStopped(f"no snapshot can be gone back to: that after step {step} failed", "model")
            step = older[-1]
