"""One string in every place that a program can name, and all that torchnan then says."""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchnan
from tests.support.captured_output import as_shown, logged, printed, refusals
from torchnan import cli, startup
from torchnan.distributed.job import Job
from torchnan.recovery import Policy, TrainingStopped
from torchnan.training.monitor import format
from torchnan.training.storage import atomic_folder, folder_reader

TAME = "tame"  # the value of a field that cannot hold the string: a type's name takes no NUL, a variable no '='
LARGE = torch.full((2,), 6e4, dtype=torch.half)


def accepted(use: Callable[[str], Any], string: str) -> Any:
    """The result of using the string where PyTorch, Python or the system may reject it."""
    try:
        return use(string)
    except (ValueError, OSError, RuntimeError):
        return use(TAME)


def renamed(function: Any, string: str) -> types.FunctionType:
    """The function, of this name and from a file of this name."""
    names = ["co_name", "co_filename", *(["co_qualname"] if hasattr(function.__code__, "co_qualname") else [])]
    code = accepted(lambda s: function.__code__.replace(**dict.fromkeys(names, s)), string)
    return types.FunctionType(code, function.__globals__)


def _log(self, x):
    return x.log()


def _through_child(self, x):
    for child in self._modules.values():
        x = child(x)
    return x


def _read(self):
    held = next(itertools.chain(self.parameters(), self.buffers()))
    return (held * 2).sum()


def _identity(ctx, x):
    return x.clone()


def _log_of_gradient(ctx, gradient):
    return gradient.log()


def hostile_model(string: str) -> nn.Module:
    """A module of this name takes a logarithm, in a file and a function of this name."""
    root = type("Root", (nn.Module,), {"forward": renamed(_through_child, string)})()
    root._modules[string] = type("Log", (nn.Module,), {"forward": renamed(_log, string)})()
    root._parameters[string] = nn.Parameter(torch.ones(2))
    root._buffers[f"{string}b"] = torch.ones(2)
    return root


def violations(string: str) -> Callable[[], None]:
    """Made before a detection; what it finds when they run has the string wherever the program names something."""
    parameter, buffer = nn.Module(), nn.Module()
    parameter._parameters[string] = nn.Parameter(torch.full((2,), float("nan")))
    buffer._buffers[string] = torch.full((2,), float("nan"))
    for module in (parameter, buffer):
        module.forward = types.MethodType(_read, module)
    return functools.partial(_violate, hostile_model(string), (parameter, buffer), string)


def _violate(model: nn.Module, bad: tuple[nn.Module, ...], string: str) -> None:
    reached = model(torch.tensor([-1.0, 2.0]))
    accepted(lambda s: torchnan.guard(reached, s), string)
    with torch.no_grad():
        for module in bad:
            module().item()
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight][string] = torch.tensor(-1.0).log()
    weight.grad = torch.ones(2)
    optimizer.step()
    methods = {"forward": staticmethod(_identity), "backward": staticmethod(_log_of_gradient)}
    function = accepted(lambda s: type(s, (torch.autograd.Function,), methods), string)
    x = torch.ones(2, requires_grad=True)
    (-function.apply(x)).sum().backward()
    x.grad.sum().item()


class Bench:
    """The string, a folder for files, and the texts about it. Objects that several tests need are made here: their
    stack is the same, whichever test asks first."""

    def __init__(self, string: str, folder: Path) -> None:
        self.string = string
        self.folder = folder
        folder.mkdir()
        self.watch = self._watch()
        self.stepped = self._stepped()
        self.raised_in_replay = self._raised_in_replay()
        self.monitored = self._monitored()

    def _watch(self) -> torchnan.detect:
        violate = violations(self.string)
        with torchnan.detect(action="log", log=self.folder / "findings.jsonl") as watch:
            violate()
        return watch

    def warned(self) -> list[str]:
        """As Python shows warnings, without the source line."""
        violate = violations(self.string)
        with warnings.catch_warnings(record=True) as caught, torchnan.detect(action="warn"):
            warnings.simplefilter("always")
            violate()
        return as_shown(caught)

    def raised(self) -> list[str]:
        try:
            with torchnan.detect():
                hostile_model(self.string)(torch.tensor([-1.0])).item()
        except torchnan.NonFiniteError as error:
            return [str(error)]
        raise AssertionError("nothing was found")

    def of_the_detector(self) -> list[str]:
        """A callback that fails, and a log that does."""

        def fail(finding: torchnan.Finding) -> None:
            raise ValueError(self.string)

        with warnings.catch_warnings(record=True) as caught, torchnan.detect(action=fail):
            warnings.simplefilter("always")
            torch.log(torch.tensor(-1.0)).item()
        return as_shown(caught)

    # -- the step guard

    def _stepped(self) -> tuple[torchnan.StepGuard, list[str]]:
        """A bad step that is captured, with what loggers were format."""

        def step(model: nn.Module, batch: Any) -> torch.Tensor:
            return (model(batch[self.string]) * model._parameters[self.string]).sum()

        return self._guarded(step, captures=self.folder / "captures", log=self.folder / "recovery.jsonl")

    def _guarded(self, step: Callable[..., Any], **options: Any) -> tuple[torchnan.StepGuard, list[str]]:
        model = hostile_model(self.string)
        guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), step, **options)
        with logged() as lines:
            guard.step({self.string: torch.tensor([-1.0, 2.0])})
        return guard, lines

    def _raised_in_replay(self) -> tuple[torchnan.StepGuard, list[str]]:
        runs = iter(range(9))

        def step(model: nn.Module, batch: Any) -> torch.Tensor:
            if next(runs) > 0:
                raise ValueError(self.string)
            return model(batch[self.string]).sum()

        return self._guarded(step)

    def stopped(self) -> list[str]:
        def step(model: nn.Module, batch: Any) -> torch.Tensor:
            return (model._parameters[self.string] - 1).sqrt().sum() * 0

        try:
            self._guarded(step, on_bad_step="raise", replay=False)
        except TrainingStopped as error:
            return [str(error)]
        raise AssertionError("training went on")

    def out_of_memory(self) -> list[str]:
        def step(model: nn.Module, batch: Any) -> torch.Tensor:
            raise MemoryError(self.string)

        return refusals(lambda: self._guarded(step))

    def bad_snapshot(self) -> list[str]:
        """The weights are bad when a snapshot is due; then the folder is gone."""
        model = hostile_model(self.string)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        where = self.folder / "snapshots" / file_name(self.string)
        guard = torchnan.StepGuard(model, optimizer, _good_step, snapshot_every=1, snapshot_folder=where)
        where.rmdir()
        where.write_text("a file")
        with logged() as lines:
            guard.step(torch.ones(2))
        return lines

    def detector(self) -> list[str]:
        model = hostile_model(self.string)
        model._parameters[self.string].grad = torch.tensor([1.0, float("nan")])
        with logged() as lines:
            torchnan.NaNDetector().check_gradients(model)
        return [*lines, *refusals(lambda: torchnan.NaNDetector(on_nonfinite="raise").check_gradients(model))]

    # -- files

    @property
    def capture(self) -> Path:
        """The captured step, with the string in every part of its report."""
        guard, _ = self.stepped
        changed = self.folder / "changed"
        if not changed.exists():
            documents, tensors = folder_reader.read(Path(str(guard.events[0].capture)))
            about = documents["capture"]
            text = self.string.encode("utf-8", "replace").decode()[:2000]  # what strict JSON can hold of it
            about["event"].update(seen=text, origin=text, what=text, bits=text)
            about["versions"] = {"torch": text}
            about["report"] = about["host"] = text
            atomic_folder.write(changed, documents, tensors)
        return changed

    def damaged_capture(self) -> list[str]:
        """A document that names what it must not, and folders that are none."""
        held = torchnan.training.storage.codec.encode({"op": "aten::log"}, name="operation")[0]  # type: ignore[attr-defined]
        unknown = {"dataclass": {"class": {"module": self.string, "qualname": self.string}, "fields": []}}
        made = accepted(lambda s: type(s, (), {"__module__": s}), self.string)()
        return refusals(
            lambda: torchnan.load_capture(self.folder / file_name(self.string)),
            lambda: torchnan.training.storage.codec.decode({**held, "value": unknown}, {}),  # type: ignore[attr-defined]
            lambda: torchnan.training.storage.codec.decode({**held, "value": {self.string: 1}}, {}),  # type: ignore[attr-defined]
            lambda: torchnan.training.storage.codec.encode({self.string: made}, name="batch"),  # type: ignore[attr-defined]
            lambda: torchnan.training.storage.codec.encode({(self.string,): 1}, name="batch"),  # type: ignore[attr-defined]
        )

    # -- rejected values

    def options(self) -> list[str]:
        s = self.string
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        odd: Any = accepted(lambda s: type(s, (), {}), s)()
        toml = self.folder / "policy.toml"
        errors = "surrogateescape" if _is_bytes(s) else "surrogatepass"
        toml.write_bytes(f"on_bad_step = '{s}'\n".encode("utf-8", errors))
        return refusals(
            *[
                functools.partial(torchnan.detect, **{name: s})
                for name in ("action", "when", "check_nan", "rescan_every")
            ],
            lambda: torchnan.detect(skip_ops=(f"{s} ",)),
            lambda: torchnan.detect(model=s),  # type: ignore[arg-type]
            lambda: torchnan.set_detect(s),  # type: ignore[arg-type]
            lambda: torchnan.detect().mark_step(s),  # type: ignore[arg-type]
            lambda: Policy(keep=s),
            lambda: Policy(remedy={s: s}),  # type: ignore[dict-item]
            lambda: Policy.from_dict({s: 1}),
            lambda: Policy.from_toml(toml),
            lambda: Policy.from_toml(self.folder / "policy.toml", s or "."),
            lambda: torchnan.NaNDetector(on_nonfinite=s),
            lambda: torchnan.register_bound(s, lambda x: None),
            lambda: torchnan.register_bound("a::b", s),  # type: ignore[arg-type]
            lambda: torchnan.StepGuard(odd, optimizer),
            lambda: torchnan.StepGuard(model, odd),
            lambda: torchnan.StepGuard(model, optimizer, odd),
            lambda: torchnan.StepGuard(model, optimizer, lambda m, b: odd).step(1),
            lambda: torchnan.StepGuard(model, optimizer, _bad_step, on_instability=lambda e: s, replay=False).step(1),  # type: ignore[arg-type,return-value]
            lambda: torchnan.detect(log=self.folder / "none" / file_name(s)),
        )

    def environment(self) -> list[str]:
        """Variables of this value, and of this name."""
        said = []
        for name in ("TORCHNAN", "TORCHNAN_ACTION", "TORCHNAN_MAX_FINDINGS", "TORCHNAN_POLICY_ON_BAD_STEP"):
            said += self._with_variable(name, lambda s: f"{s}~", _switch_on)
        for prefix in ("TORCHNAN_", "TORCHNAN_POLICY_"):
            said += self._with_variable(None, lambda s, p=prefix: p + s, _switch_on)
        return said

    def doctor(self) -> list[str]:
        return self._with_variable("TORCHNAN_LOG", lambda s: f"{s}~", lambda: cli.main(["doctor"]))

    def _with_variable(self, name: str | None, made: Callable[[str], str], act: Callable[[], Any]) -> list[str]:
        def run(string: str) -> list[str]:
            variable, value = (name, made(string)) if name else (made(string), "1")
            os.environ["TORCHNAN"] = "log"
            os.environ[variable] = value[:100_000]
            try:
                return printed(act)
            finally:
                del os.environ[variable]
                os.environ.pop("TORCHNAN", None)

        return accepted(run, self.string)  # type: ignore[no-any-return]

    def commands(self) -> list[str]:
        s = self.string
        step = ["--step", f"{__name__}:model_and_step"]
        return printed(
            lambda: cli.main(["run", f"--action={s}~", "x.py"]),
            lambda: cli.main(["replay", str(self.folder), f"--step={s}:{s}~"]),
            lambda: cli.main(["replay", str(self.folder), f"--step={__name__}:{s}~"]),
            lambda: cli.main(["replay", str(self.folder / file_name(s)), *step]),
            lambda: cli.main(["replay", "x", *step, f"~{s}"]),
            lambda: cli.main(["extract", str(self.folder / file_name(s))]),
            lambda: cli.main(["doctor", f"~{s}"]),
        )

    def replayed(self) -> list[str]:
        return printed(lambda: cli.main(["replay", str(self.capture), "--step", f"{__name__}:model_and_step"]))

    def shown(self) -> list[str]:
        """The log of findings, read again; and one that is not there."""
        self.watch.report()
        return printed(
            lambda: cli.main(["show", str(self.folder / "findings.jsonl")]),
            lambda: cli.main(["show", str(self.folder / file_name(self.string))]),
        )

    def page(self) -> list[str]:
        """The messages about the page of the log, and its lines. A name with dots makes several module lines."""
        page = self.folder / file_name(self.string)
        said = printed(lambda: cli.main(["html", str(self.folder / "findings.jsonl"), "-o", str(page)]))
        return [*said, *re.sub(r"(?<=</li>)\n(?=<li)", "", page.read_text()).split("\n")]

    def annotations(self) -> list[str]:
        """The lines in the formats for code hosts."""
        log = str(self.folder / "findings.jsonl")
        forms = (functools.partial(cli.main, ["show", f"--format={form}", log]) for form in ("github", "sarif"))
        return [line for text in printed(*forms) for line in text.split("\n")]

    def among_ranks(self) -> list[str]:
        """The message of the second rank of a job about the report of the first, and the message at the end."""
        first, second = (Job(self.folder / "job", rank) for rank in (0, 1))
        said = [job.text_of(f, str(f))[0] for job in (first, second) for f in self.watch.findings[:3]]
        return [*said, first.last_words()]

    def extracted(self) -> list[str]:
        return printed(lambda: cli.main(["extract", str(self.capture), "--out", str(self.folder / "out")]))

    # -- the monitor

    def headroom(self) -> list[str]:
        model = large_model(self.string)
        with torchnan.detect(headroom=True) as watch:
            model(LARGE)
            return [str(one) for one in watch.headroom()]

    def _monitored(self) -> tuple[Path, list[str]]:
        """The log of a run near the end of its range, under a name of this string if the system has it, and what
        loggers were format."""
        path, model = self.folder / "runs" / file_name(self.string), large_model(self.string)
        optimizer = torch.optim.SGD([{"params": nn.Linear(1, 1).parameters(), "name": self.string}])
        monitor = torchnan.Monitor(path, meta={self.string: self.string}, headroom_every=1, judge_every=1)
        with logged() as lines, torchnan.detect(headroom=True):
            for loss in (2.0, 2.0, math.nan):
                model(LARGE)
                monitor.record.record_finding(3, format.finding_summary(self.watch.findings[0]))
                monitor.step(loss=loss, optimizer=optimizer)
        return path, lines

    def diagnosed(self) -> list[str]:
        """Text without its own ends of lines, and a document."""
        document = self.folder / "post-mortem.md"
        (text,) = self.diagnose("--post-mortem", str(document))
        return [text.replace("\n" + " " * 8, " "), document.read_text()]

    def refused_runs(self) -> list[str]:
        """A table without a column that is known, and one that is not there."""
        table, none = self.folder / "x.csv", self.folder / f"{file_name(self.string)}~"
        table.write_text(f"{self.string}\n1\n", encoding="utf-8", errors="surrogatepass")
        return printed(*(lambda path=path: cli.main(["diagnose", str(path)]) for path in (table, none)))

    def diagnose(self, *options: str) -> list[str]:
        return printed(lambda: cli.main(["diagnose", str(self.monitored[0]), *options]))


def large_model(string: str) -> nn.Module:
    """A module of this name makes numbers near the end of the range."""
    root = type("Root", (nn.Module,), {"forward": _through_child})()
    root._modules[string] = type("Twice", (nn.Module,), {"forward": lambda self, x: x * 1})()
    return root


def _good_step(model: nn.Module, batch: Any) -> torch.Tensor:
    return next(iter(model.parameters())).sum()


def _bad_step(model: nn.Module, batch: Any) -> torch.Tensor:
    return next(iter(model.parameters())).sum() * float("nan")


def model_and_step() -> Any:
    return nn.Linear(1, 1), _good_step


def _switch_on() -> None:
    startup.switch_on()
    torchnan.set_detect(False)


def _is_bytes(string: str) -> bool:
    """Whether it stands for bytes."""
    try:
        os.fsencode(string)
    except UnicodeEncodeError:
        return False
    return True


def file_name(string: str) -> str:
    """As much of it as a file name can hold."""
    fit = string.replace("/", "_").replace("\0", "_")
    if not _is_bytes(fit):
        fit = TAME
    return "x" + os.fsdecode(os.fsencode(fit)[:100])
