"""Detection in a scope, and in the whole program."""

from __future__ import annotations

import contextlib
import fnmatch
import inspect
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from torchnan._load import _C
from torchnan.config import environment
from torchnan.config.detection_options import OLD_NAMES, DetectionOptions
from torchnan.config.options import OptionError, suggest, unknown_option
from torchnan.config.text import brief, counted, printable
from torchnan.detection import hooks, new_threads, registry, report_rows, resumable
from torchnan.detection.errors import DetectorWarning, NonFiniteError, may_be_of_nonfinite
from torchnan.detection.finding import LEVELS, Finding
from torchnan.detection.headroom import Headroom

if TYPE_CHECKING:
    from typing_extensions import Never, Unpack

    from torchnan.detection.keywords import DetectKeywords


_DEFAULTS = {name: option.default for name, option in DetectionOptions.options().items()} | {"model": None}
_SUSPENDED = 0  # in place of a thread, which has another number: a body that is between two steps


def _signature() -> inspect.Signature:
    """Returns the signature of ``detect.__init__``."""
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(name, keyword, default=default) for name, default in _DEFAULTS.items()]
    return inspect.Signature([receiver, *options])


class detect(contextlib.ContextDecorator):
    """Checks every operation, forward, backward and in the optimizer, and reports the origin of a NaN or an Inf.

    A context manager and a decorator. The body of a decorated generator, coroutine or asynchronous generator is checked
    while it runs, on whatever thread, and not while it is suspended. Sessions nest: the innermost decides what a
    finding does, all keep it. The same object may be entered again, also by other threads, which then take part in the
    same session. Backward passes started inside are checked on whatever thread they run.

    With ``TORCHNAN=0`` in the environment nothing is checked; options are still validated.

    Args:
        action: what a finding of level ``"error"`` does once it is in the log of the session: ``"raise"`` a
            :class:`torchnan.NonFiniteError`, ``"warn"`` once per origin, ``"log"`` nothing more, ``"breakpoint"`` opens
            the debugger in the user's frame (with ``when="origin"`` where the value was made). In Python also a
            callable that is given the :class:`Finding`.
        check_nan: report NaN.
        check_inf: report infinities.
        when: ``"harm"`` reports a value where it does harm, so that values that user code repairs or never uses stay
            silent; ``"origin"`` reports it at once, at the operation that made it, which suits a debugger.
        backward: check the backward pass.
        stacks: record forward call sites, so that a finding in the backward pass has a source line.
        skip_ops: operators that are never checked: names or globs, such as ``("aten::log", "_foreach_*")``.
        rescan_every: ``N`` also scans results that are proved finite: each once in ``N`` steps, in turn, and all of the
            first step. A result that is tested out of turn, because it is the first of its operator so close to the
            limit of its dtype, misses its next turn. This finds a wrong proof, faulty memory, and code that writes into
            tensors where PyTorch cannot see it. 1 scans every result, 0 none that is proved.
        headroom: record the largest magnitude of each module's results, for :meth:`headroom`.
        max_findings: how many findings are kept; further ones are only counted.
        max_copied_bytes: how many bytes of arguments that a compiled region overwrites are copied before a call, so
            that the call can be replayed; the same holds for values that its collectives bring. A call that needs more
            is reported at its border. On a GPU, also how many bytes of inputs are kept after the calls of regions.
        max_preserved_bytes: on a GPU, how many bytes are reserved for copies of the inputs of compiled regions, weights
            first. They are copied before the program overwrites them, and only if the device has found a value by then:
            the call that made it can still be replayed. Until then the memory is not used.
        max_explanation_seconds: how long torchnan may look for the origin of a value that a call of a compiled region
            has made. After that the finding names the region and says so, and later calls of the region in this session
            are named by it, too. 0 never looks.
        log: path of a file to which the log of the session, ``findings``, is written as well: one line of strict JSON
            per finding, readable by its owner only.
        model: a module whose parameters and submodules are named in reports; needed only where no module is on the call
            stack.

    Raises:
        OptionError: an option cannot be used.
        OSError: the log cannot be written.
        RuntimeError: this PyTorch leaves no dispatch key to intercept operations with.

    Example::

        with torchnan.detect() as watch:
            loss = model(batch).loss
            loss.backward()
            optimizer.step()
    """

    def __init__(self, *args: Never, **options: Unpack[DetectKeywords]) -> None:
        if args:  # `@torchnan.detect` passes the function
            raise TypeError(
                f"detect({brief(args[0])}): options are given by name, such as detect(action='warn'); the decorator is "
                "@torchnan.detect()."
            )
        given: dict[str, Any] = dict(options)
        for name in given:
            if name not in _DEFAULTS and name not in OLD_NAMES:  # a TypeError, like that of any function
                raise TypeError(unknown_option(name, _DEFAULTS))
        model = given.pop("model", None)
        self._make(DetectionOptions.from_dict(given), model)

    __init__.__signature__ = _signature()  # type: ignore[attr-defined]

    @classmethod
    def with_options(cls, options: DetectionOptions, model: torch.nn.Module | None = None) -> detect:
        """Returns a detection with options that have been checked."""
        made = cls.__new__(cls)
        made._make(options, model)
        return made

    def _make(self, options: DetectionOptions, model: torch.nn.Module | None) -> None:
        if model is not None and not isinstance(model, torch.nn.Module):
            raise OptionError(f"model={brief(model)} cannot be used: model takes a torch.nn.Module or None.")
        _require_operators(options.values["skip_ops"])
        self.model = model
        self._options = options
        self._session = _C.DetectionSession(dict(options.values))
        self._entries: Counter[int] = Counter()  # by thread, and _SUSPENDED
        registry.sessions[self._session.id] = self

    def __repr__(self) -> str:
        findings, stats = self.findings, self.stats()
        errors = sum(finding.level == "error" for finding in findings)
        state = "open" if self._entries.total() > 0 else "closed" if self._entries else "not entered"
        found = counted(len(findings), "finding")
        return (
            f"<torchnan.detect(action={brief(self._options.values['action'])}), {state}: {found}, "
            f"{errors} of level error; {stats['ops']:,} operations, {stats['checked']:,} results checked>"
        )

    # -- as a scope

    def __enter__(self) -> detect:
        if _C.is_disabled():
            return self
        _require_cuda_if_asked_to()
        _C.enter_session(self._session)
        with hooks.lock:
            self._entries[threading.get_ident()] += 1
        hooks.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._leave(report_pending=True)
            return
        try:
            self._leave(report_pending=may_be_of_nonfinite(error))  # values that the frames of the error reference
        except NonFiniteError as report:  # the program's own error propagates
            if sys.version_info >= (3, 11):
                error.add_note(str(report))

    def _leave(self, report_pending: bool) -> None:
        if _C.is_disabled():
            return
        if not self._entries:
            raise RuntimeError("torchnan: this detect() has not been entered: use `with torchnan.detect():`")
        if report_pending and self._entries.total() == 1:
            _C.resolve_pending(self._session)  # may replay compiled regions, which needs the hooks
        hooks.uninstall()
        _C.leave_session(self._session)
        with hooks.lock:
            self._entries[threading.get_ident()] -= 1  # may be below zero: another thread has entered
            last = self._entries.total() <= 0
        if last:
            _C.end_session(self._session, report_pending)
            _warn_unscanned(self.stats()["skipped"].get("device", 0))

    def _forget_other_threads(self) -> None:
        """Forgets that other threads have entered the session."""
        self._entries = Counter({by: self._entries[by] for by in (threading.get_ident(), _SUSPENDED)})

    def __call__(self, function: Any) -> Any:
        return resumable.checked(function, self._recreate_cm) or super().__call__(function)

    @contextlib.contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keeps the session open, with its hooks, between the steps of a generator or coroutine; then ends it."""
        if _C.is_disabled():
            yield
            return
        hooks.install()
        self._entries[_SUSPENDED] += 1
        try:
            yield
        except BaseException:
            with self._until_its_end():
                raise
        with self._until_its_end():
            pass

    @contextlib.contextmanager
    def _until_its_end(self) -> Iterator[None]:
        with self:
            self._entries[_SUSPENDED] -= 1
            hooks.uninstall()
            yield

    def _recreate_cm(self) -> detect:  # each call of a decorated function is a new session
        return type(self).with_options(self._options, self.model)

    # -- results

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, oldest first."""
        findings: list[Finding] = self._session.findings()
        return findings

    @property
    def first(self) -> Finding | None:
        """The first finding of level ``"error"``, ``None`` if there is none."""
        return next((finding for finding in self.findings if finding.level == "error"), None)

    def report(self) -> str:
        """Returns all findings as text, the most serious first: the first in full, the others a line each."""
        first, *others = self._reports() or ["torchnan: no non-finite value has done harm"]
        parts = [first]
        if others:
            lines = (f"  {report_rows.summary(report)}" for report in others)
            parts.append("\n".join([f"torchnan: {len(others)} more", *lines]))
        if dropped := self.stats()["dropped"]:
            kept = self._options.values["max_findings"]
            parts.append(f"torchnan: {dropped} more findings were counted, not kept (max_findings={kept})")
        return "\n\n".join(parts)

    def _reports(self) -> list[str]:
        return [str(finding) for level in LEVELS for finding in self.findings if finding.level == level]

    def _repr_html_(self) -> str:
        from torchnan.detection import notebook  # used nowhere else

        return notebook.html_of_session(repr(self), self._reports())

    def stats(self) -> dict[str, Any]:
        """Exact counts since the session was made.

        Returns:
            ``ops`` intercepted; tensors ``checked``, of which ``proved`` were proved finite without a scan; ``bytes``
            scanned, of which ``bytes_rescanned`` because a bound had left its range or its turn had come, and
            ``bytes_scanned_unknown`` for arguments; ``bytes_proved``; tensors found ``nonfinite``; ``device_bytes``
            scanned
            on devices, ``device_alarms`` handled, ``device_resolves`` and ``device_waits`` because of alarms or of
            harm;
            ``findings`` kept, ``repeats`` merged, ``dropped`` beyond ``max_findings``, ``log_failures`` that could not
            be
            written to the log, ``call_sites`` recorded for the backward pass, ``headroom_dropped`` results without room
            in
            :meth:`headroom`, ``internal_errors``, and ``skipped``: tensors that were not checked, by reason.
        """
        stats: dict[str, Any] = self._session.stats()
        return stats

    @property
    def keeps_headroom(self) -> bool:
        """Whether the session was made with ``headroom=True``."""
        return bool(self._options.values["headroom"])

    def headroom(self) -> list[Headroom]:
        """Returns how close forward results have come to overflow, by module and dtype, since the last call.

        Uses values that detection knows anyway: the largest ``|x|`` of a scanned result, the bound of another. Needs
        the option of the same name. Scanned values come first; in float16 these are the ones near the end of the range,
        because bounds prove nothing there. ``rescan_every=N`` scans everything once in ``N`` steps.

        Returns:
            one :class:`Headroom` per module and dtype, the least room first.

        Raises:
            RuntimeError: the session was made without ``headroom=True``.
        """
        headroom: list[Headroom] = self._session.headroom()
        if self.stats()["headroom_dropped"]:
            warnings.warn(
                "torchnan: headroom() has no room for more call sites, and has left some out: "
                "stats()['headroom_dropped'] counts their results. A new session starts with an empty table.",
                DetectorWarning,
                stacklevel=2,
            )
        return headroom

    def mark_step(self, k: int) -> None:
        """Sets the step number that findings carry. Without it, optimizer steps are counted."""
        if not isinstance(k, int) or isinstance(k, bool) or not -(2**63) <= k < 2**63:
            raise TypeError(f"mark_step({brief(k)}): a step is an integer of 64 bits")
        self._session.mark_step(k)


def _require_operators(patterns: Sequence[str]) -> None:
    """Raises OptionError for a pattern that matches no operator. An unknown namespace is accepted: it may be registered
    later."""
    if not patterns:
        return
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    bare = {name.rpartition("::")[2] for name in names}
    for pattern in patterns:
        namespace, is_qualified, _ = pattern.partition("::")
        known = names if is_qualified else bare
        if is_qualified and not any(name.startswith(f"{namespace}::") for name in names):
            continue
        if not any(fnmatch.fnmatchcase(name, pattern.replace("[^", "[!")) for name in known):
            raise OptionError(
                f"skip_ops={brief(tuple(patterns))} cannot be used: no operator is called "
                f"'{printable(pattern, 100)}'.{suggest(pattern, known)}"
            )


def _require_cuda_if_asked_to() -> None:
    if not environment.requires_cuda(os.environ):
        return
    if torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]  # the scanner is made for the device that is current
    why = _C.unscanned_reason("cuda")
    if why:
        raise RuntimeError(
            f"torchnan cannot check tensors on GPUs, and {environment.REQUIRE_CUDA}=1: {printable(why, 1000)}."
        )


_warned_unscanned: set[str] = set()  # warns once in a process


def _warn_unscanned(results: int) -> None:
    if results == 0:
        return
    for device, why in _C.unscanned_devices().items():
        if device not in _warned_unscanned:
            _warned_unscanned.add(device)
            text = f"torchnan has not checked results on {device} devices ({results} in this detection): "
            warnings.warn(f"{text}{printable(why, 1000)}.", DetectorWarning, stacklevel=4)


def _after_fork_in_child() -> None:
    """Forgets the other threads: they do not exist in the child, and will not leave their sessions."""
    for session in list(registry.sessions.values()):
        session._forget_other_threads()
    hooks.lock.release()


os.register_at_fork(before=hooks.lock.acquire, after_in_parent=hooks.lock.release, after_in_child=_after_fork_in_child)


_program_wide: detect | None = None


def is_program_wide() -> bool:
    """Whether a program-wide session is open."""
    return _program_wide is not None


def set_detect(mode: bool, **options: Unpack[DetectKeywords]) -> detect | None:
    """Turns detection on or off for the whole program.

    The calling thread takes part, and every thread that Python starts from now on. Values that are still referenced
    when the program ends are reported then.

    Args:
        mode: ``True`` starts a session, and replaces one that this function started before; ``False`` ends it.
        options: those of :class:`detect`.

    Returns:
        the session that was started, or ``None``.

    Raises:
        as :class:`detect` does; and :class:`NonFiniteError` when ending it finds that harm was done.
    """
    if not isinstance(mode, bool):
        raise TypeError(
            f"set_detect({brief(mode)}): mode is True or False; options are given by name, such as "
            "set_detect(True, action='warn')."
        )
    started = detect(**options) if mode else None
    if started is None:
        end_program_wide(report_pending=True)
    else:
        start_program_wide(started)
    return started


def start_program_wide(session: detect) -> None:
    """Makes a session the program-wide one, and ends the one before it."""
    end_program_wide(report_pending=True)
    session.__enter__()
    if not _C.is_disabled():
        new_threads.watch_new_threads(session._session)
    _end(_swap_program_wide(session), report_pending=True)  # one that another thread has started meanwhile


def end_program_wide(*, report_pending: bool) -> None:
    """Ends the session that :func:`set_detect` started, if there is one."""
    ended = _swap_program_wide(None)
    if ended is not None:
        new_threads.watch_new_threads(None)
    _end(ended, report_pending)


def innermost_with_headroom() -> registry.Session | None:
    """Returns the session in force that was made with ``headroom=True``: the innermost of this thread, else the
    program-wide one; ``None`` if there is none."""
    current = _C.current_session()
    innermost = None if current is None else registry.sessions.get(current.id)
    return next((one for one in (innermost, _program_wide) if one is not None and one.keeps_headroom), None)


@contextlib.contextmanager
def entered_with_new_threads(session: detect) -> Iterator[None]:
    """Enters a session on this thread and on every thread that Python starts inside."""
    with session, new_threads.watching_new_threads(session._session):
        yield


def _swap_program_wide(started: detect | None) -> detect | None:
    """Replaces the program-wide session by this one, and returns the old one."""
    global _program_wide
    with hooks.lock:
        before, _program_wide = _program_wide, started
    return before


def _end(ended: detect | None, report_pending: bool) -> None:
    if ended is not None:
        ended._leave(report_pending)
