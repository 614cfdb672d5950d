"""Sends questions to the other ranks of a process group, with a deadline, whatever state those ranks are in.

Answers go through the group's store. A collective follows only when every rank has answered, because a collective that
hangs does not show which rank it waits for.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_POLL = 0.005  # seconds
_asked: dict[str, int] = {}  # number of questions so far, by the name of the group; the same on every rank


class Group:
    """A process group, asked with a deadline.

    Args:
        group: the process group. ``None``: the default one.
        timeout: seconds for each answer.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: float) -> None:
        default = dist.group.WORLD
        assert default is not None
        self.group = default if group is None else group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._timeout = timeout
        name = self.group.group_name
        _asked[name] = number = _asked.get(name, 0) + 1
        self._prefix = f"torchnan/health/{number}"

    def exchange(self, question: str, mine: Any) -> dict[int, Any]:
        """Sends this rank's answer to all, and returns those that came in time, by rank.

        Raises:
            TimeoutError: the store does not answer.
        """
        answers: dict[int, Any] = {}

        def ask() -> None:
            store = dist.distributed_c10d.PrefixStore(f"{self._prefix}/{question}", self.group.get_group_store())
            store.set(str(self.rank), json.dumps(mine))
            deadline = time.monotonic() + self._timeout
            while len(answers) < self.ranks and time.monotonic() < deadline:
                for rank in range(self.ranks):
                    if rank not in answers and store.check([str(rank)]):
                        answers[rank] = json.loads(store.get(str(rank)))
                time.sleep(_POLL)

        _within(self._timeout + 5.0, ask, "the store of the process group (rank 0, or torchrun) does not answer")
        return answers

    def all_reduce(self, values: torch.Tensor) -> str | None:
        """Sums ``values`` over the ranks, in place. Returns the reason if it does not end in time, else ``None``."""
        work = dist.all_reduce(values, group=self.group, async_op=True)
        deadline = time.monotonic() + self._timeout
        while not work.is_completed():
            if time.monotonic() > deadline:
                return f"the all-reduce did not end in {self._timeout:g} s, though every rank had answered"
            time.sleep(_POLL)
        try:
            work.wait()
        except RuntimeError as error:
            return f"the all-reduce failed: {str(error).partition(chr(10))[0]}"
        return None


def _within(seconds: float, ask: Callable[[], None], otherwise: str) -> None:
    """Runs ``ask`` in a separate thread: a store whose process is stopped blocks forever."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            ask()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run, name="torchnan health", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"{otherwise} within {seconds:g} s")
    if failure:
        raise TimeoutError(f"{otherwise}: {failure[0]}") from failure[0]
