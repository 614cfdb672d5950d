"""However a program names its parts, no text of torchnan acts on the terminal or page that shows it.

The test puts every string of the corpus in every name that a program can give, and reads every text of torchnan: no
foreign control character, no extra line, strict JSON, bounded length. It finds the functions that show text in the
sources, so a new one cannot be missed.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import torchnan
from tests.support.captured_output import lines_of, stored
from tests.support.hostile_programs import TAME, Bench
from tests.support.hostile_strings import HOSTILE
from tests.support.processes import REPOSITORY, run
from torchnan._load import _C
from torchnan.capture import CaptureError
from torchnan.detection import terminal
from torchnan.health import HealthReport, Trouble
from torchnan.training.capture.reproducer import write_example
from torchnan.training.guard.remedies import trials
from torchnan.training.guard.remedies.change import Change
from torchnan.training.guard.remedies.origin import Origin

pytestmark = pytest.mark.guarantee(17)

LARGEST = 16 * 1024  # bytes of one text
IN_REPLAY = "not replayed: it raised ValueError when run again: "
LONGEST = 1000  # bytes of a name in JSON
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # categories of Unicode

Said = list[str]


def _told_in_pieces(bench: Bench) -> Said:
    findings = bench.watch.findings
    pieces = [piece for f in findings for piece in (*f.stack, *f.lineage, f.harm)]
    return [str(told) for told in (*findings, *pieces)]


def _laid_out(bench: Bench) -> Said:
    """Findings in terminal layout, without the colours, which are torchnan's own."""
    laid_out = [terminal.layout(f, columns=10**6, with_source=True) for f in bench.watch.findings]
    return [re.sub(r"\x1b\[[0-9;]*m", "", text) for text in laid_out]


def _loggers(bench: Bench) -> Said:
    return [*bench.stepped[1], *bench.bad_snapshot(), *bench.detector()]


def _tried(bench: Bench) -> Said:
    """A remedy whose line and error have the string in them."""
    trial = trials.compare(Change(bench.string), bench.string, "", Origin(None))
    return [str(trials.Trials(1, (trial,), 1))]


TERMINAL: dict[str, Callable[[Bench], Said]] = {
    "str(finding)": _told_in_pieces,
    "watch.report()": lambda bench: bench.watch.report().split("\n\n"),
    "warnings": Bench.warned,
    "warnings of the detector": Bench.of_the_detector,
    "NonFiniteError": Bench.raised,
    "str(event)": lambda bench: [str(event) for event in bench.stepped[0].events],
    "loggers": _loggers,
    "an error in a replay": lambda bench: [*map(str, bench.raised_in_replay[0].events), *bench.raised_in_replay[1]],
    "TrainingStopped": Bench.stopped,
    "out of memory": Bench.out_of_memory,
    "errors of options": Bench.options,
    "errors of the environment": Bench.environment,
    "errors of captures": Bench.damaged_capture,
    "commands": Bench.commands,
    "replay": Bench.replayed,
    "extract": Bench.extracted,
    "doctor": Bench.doctor,
    "show": Bench.shown,
    "html": Bench.page,
    "annotations": Bench.annotations,
    "str(headroom)": Bench.headroom,
    "the monitor": lambda bench: bench.monitored[1],
    "diagnose": Bench.diagnosed,
    "errors of runs": Bench.refused_runs,
    "a terminal": _laid_out,
    "tried remedies": _tried,
    "what ranks say": Bench.among_ranks,
    "the health of ranks": lambda bench: [
        str(HealthReport(0, 2, (Trouble(1, "hangs", bench.string),), (bench.string,)))
    ],
    "a notebook": lambda bench: [one._repr_html_() for one in (*bench.watch.findings, bench.watch)],
}
JSON: dict[str, Callable[[Bench], Said]] = {
    "finding.to_json()": lambda bench: [finding.to_json() for finding in bench.watch.findings],
    "findings log": lambda bench: [bench.watch.report(), lines_of(bench.folder / "findings.jsonl")][1],
    "event.to_json()": lambda bench: [event.to_json() for event in bench.stepped[0].events],
    "an error in a replay, as JSON": lambda bench: [event.to_json() for event in bench.raised_in_replay[0].events],
    "recovery log": lambda bench: [bench.stepped, lines_of(bench.folder / "recovery.jsonl")][1],
    "monitor log": lambda bench: [line for line in lines_of(bench.monitored[0]) if not line.startswith('{"verdict"')],
    "diagnose --json": lambda bench: [text.removesuffix("\n") for text in bench.diagnose("--json")],
    "capture": lambda bench: stored(Path(str(bench.stepped[0].events[0].capture))),
}

# Functions in the sources that show text, and the name under which it is tested above.
TELLS = {
    "detection/finding.py Frame.__str__": "str(finding)",
    "detection/finding.py LineageStep.__str__": "str(finding)",
    "detection/finding.py Harm.__str__": "str(finding)",
    "detection/finding.py Finding.__str__": "str(finding)",
    "detection/finding.py Finding.to_json": "finding.to_json()",
    "detection/debugger.py stop": "str(finding)",
    "detection/uncaught.py _show_uncaught": "a terminal",
    "detection/uncaught.py _write_error_file": "a terminal",
    "detection/session.py detect.report": "watch.report()",
    "detection/session.py detect.__repr__": "watch.report()",  # numbers, and the action
    "detection/errors.py warn": "warnings",
    "detection/errors.py warn_of_detector": "warnings of the detector",
    "training/health/report.py Trouble.__str__": "the health of ranks",
    "training/health/report.py HealthReport.__str__": "the health of ranks",
    "training/health/group.py Group.exchange": "the health of ranks",  # to the other ranks
    "training/health/group.py Group.exchange.ask": "the health of ranks",
    "cli/doctor.py _print_health": "the health of ranks",
    "startup.py switch_on": "errors of the environment",
    "program_end.py finish": "NonFiniteError",
    "config/text.py say": "what ranks say",
    "training/guard/nan_detector.py NaNDetector._reject": "loggers",
    "training/guard/rollback.py Rollback._say_what_is_not_restored": "loggers",
    "training/guard/step_guard.py StepGuard._leave_out": "loggers",
    "training/guard/late_steps.py _settle_at_exit": "TrainingStopped",
    "training/guard/step/operation.py Operation.__str__": "extract",
    "detection/headroom.py Headroom.__str__": "str(headroom)",
    "detection/session.py detect.headroom": "warnings of the detector",  # says only that there is no room
    "detection/session.py _warn_unscanned": "warnings of the detector",
    "training/guard/reporter.py Reporter.report": "loggers",
    "training/guard/bad_step.py BadStepAnalyzer._agreed_origin": "str(event)",  # from rank to rank
    "training/guard/event.py StepEvent.__str__": "str(event)",
    "training/guard/remedies/trials.py Trial.__str__": "tried remedies",
    "training/guard/remedies/trials.py Trials.__str__": "tried remedies",
    "training/guard/event.py StepEvent.to_json": "event.to_json()",
    "training/guard/errors.py exit_codes": "TrainingStopped",
    "detection/containment.py Failures.record": "loggers",
    "training/storage/atomic_folder.py _to_json": "capture",
    "training/storage/atomic_folder.py _write_files": "capture",
    "cli/__init__.py main": "commands",
    "cli/doctor.py execute": "doctor",
    "cli/extract.py execute": "extract",
    "cli/replay.py execute": "replay",
    "cli/html.py execute": "html",
    "cli/completion.py execute": "commands",  # torchnan's own names
    "cli/run.py execute": "commands",
    "cli/show.py execute": "show",
    "cli/show.py _show_findings": "show",
    "cli/show.py _show_annotations": "annotations",
    "cli/code_host.py sarif": "annotations",
    "cli/show.py _show_bad_steps": "show",
    "cli/diagnose.py execute": "diagnose",
    "cli/diagnose.py _follow": "diagnose",
    "cli/diagnose.py _write": "diagnose",
    "training/diagnosis/verdict.py Forecast.__str__": "the monitor",
    "training/monitor/options.py validate_meta": "monitor log",
    "training/monitor/row_writer.py RowWriter._warn": "the monitor",
    "training/monitor/row_writer.py RowWriter.report": "the monitor",
    "training/monitor/row.py Row.to_dict": "monitor log",
    "training/monitor/format.py to_dict": "monitor log",
    "training/storage/jsonl.py to_json_line": "monitor log",  # and the recovery log
}
NO_MESSAGES = {
    "config/options.py warn_deprecated",  # names of options only
    "config/text.py to_valid_utf8",
    "training/diagnosis/series.py Series.to_rows",
    "training/guard/step/forward_backward.py ForwardBackward._warn_if_backward_did_not_run",  # a fixed text
    "training/guard/unchecked_steps.py UncheckedSteps.note_batch",  # a fixed text
    "distributed/agreement.py Agreement.to_global_rank",
    "training/monitor/async_copy.py to_floats",
    "training/diagnosis/readers/encoded.py to_float",
    "training/guard/step/buffers.py Buffers.to_check",
    "training/guard/step/forward_backward.py CheckedBuffers.to_check",
    "training/capture/capture.py _CapturedBuffers.to_check",
    "training/guard/step/forward_backward.py ForwardBackward._warn_of_no_gradient",  # a fixed text
    "training/guard/rollback.py Rollback.find",  # numbers of ranks and steps
}

# Unescaped parts in the messages of Python's own exception types: numbers, torchnan's own words, and the reason.
PLAIN = {
    "_load.py": {
        "', '.join(releases())",
        "running",
        "folder",
        "python",
        "REMEDY",
        "number",
        "torch.__version__",
        "error",
    },  # the core does not exist yet
    "detection/bounds.py": {"suggest(op, names)"},  # the name of a registered operator, which PyTorch has checked
    "__init__.py": {"name"},  # as Python prints names of other modules
    "detection/session.py": {"environment.REQUIRE_CUDA"},
    "detection/compiled/time_limit.py": {"seconds"},
    "training/guard/step/early_steps.py": {"_ADVICE"},
    "detection/compiled/received.py": {"func", "op"},  # names of collectives; the report escapes them
    "training/guard/arguments.py": {"name"},  # of an argument
    "training/guard/nan_detector.py": {"tuple(loss.shape)"},
    "training/storage/atomic_folder.py": {  # files with torchnan's own names
        "free",
        "reason",
        "needed",
        "path.name",
        "option",
        "error.strerror",
    },
    "training/storage/folder_reader.py": {"name"},
    "integrations/lightning_step.py": {"len(optimizers)", "', '.join(optimizers) or 'none'", "strategy"},  # type_name
    "integrations/transformers.py": {"args.n_gpu", "state.global_step + 1", "_NO_LOSS"},
    "training/diagnosis/__init__.py": {"error.name"},  # of a package
    "training/monitor/monitor.py": {"error"},  # the same
    "training/monitor/options.py": {"name", "wanted", "shape"},
    "distributed/agreement.py": {"self.rank", "self.ranks", "os.getpid()", "socket.gethostname()"},
    "training/guard/step/forward_backward.py": {"shape"},
    "training/health/group.py": {
        "otherwise",
        "seconds",
        "failure[0]",
    },  # the text of a trouble, which is escaped as a whole
}
ESCAPES = ("printable(", "brief(", "type_name(")
ESCAPED = {
    "OptionError",
    "RunError",
    "CaptureError",
    "UnkeepableError",
    "TrainingStopped",
    "damaged",
    "_LimitReached",
}  # the whole texts are escaped


@pytest.fixture(scope="module")
def benches(tmp_path_factory) -> dict[str, Bench]:
    folder = tmp_path_factory.mktemp("hostile")
    return {name: Bench(string, folder / str(i)) for i, (name, string) in enumerate({TAME: TAME, **HOSTILE}.items())}


@pytest.mark.parametrize("renderer", TERMINAL)
def test_nothing_acts_on_a_terminal(benches, renderer):
    tame = TERMINAL[renderer](benches[TAME])
    assert tame
    assert any(TAME in text for text in tame)
    for name in HOSTILE:
        said = TERMINAL[renderer](benches[name])
        for text, of_tame in zip(said, tame, strict=True):
            where = f"{renderer} of {name!r}: {text[:2000]!r}"
            acting = {character for character in text if character != "\n" and _acts(character)}
            assert not acting, f"{where} holds {acting!r}"
            assert text.count("\n") == of_tame.count("\n"), f"{where} has other lines than {of_tame!r}"
            assert len(text.encode()) < LARGEST, where


def _acts(character: str) -> bool:
    return unicodedata.category(character) in UNSEEN


@pytest.mark.parametrize("renderer", JSON)
def test_json_is_strict_and_restores_the_string(benches, renderer):
    for name, string in HOSTILE.items():
        for i, line in enumerate(JSON[renderer](benches[name])):
            where = f"{renderer} of {name!r}: {line[:2000]!r}"
            assert line.isascii(), where
            document = strict_json(line)
            if renderer != "capture":
                assert "\n" not in line, where
                assert len(line) < LARGEST * 4, where  # six bytes for one, at worst
            texts = list(_texts(document))
            if renderer != "capture" or i == 0:  # the other says which files there are
                assert any(_tells(text, string) for text in texts), where


def strict_json(line: str) -> Any:
    """A strict parser accepts it: no NaN, no duplicate key, no half of a surrogate pair."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), "a key twice"
        return dict(pairs)

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    document = json.loads(line, parse_constant=refuse, object_pairs_hook=object_of)
    json.dumps(document, ensure_ascii=False).encode()
    return document


def _texts(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for key, value in document.items():
            yield key
            yield from _texts(value)
    elif isinstance(document, list):
        for value in document:
            yield from _texts(value)


def _tells(text: str, string: str) -> bool:
    """The string itself; with escapes for invalid UTF-8; in hexadecimal; or its remainder around a mark."""
    text = text.removesuffix("Backward")  # autograd's name of a Function
    if text == TAME and ("\0" in string or not _is_unicode(string)):
        return True  # the name of a guard or a type, which cannot be this string
    try:
        raw = string.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = string.encode("utf-8", "surrogatepass")
    whole = raw.decode("utf-8", "backslashreplace")
    if len(raw) <= LONGEST:
        return text.endswith(whole) or text == string.encode("utf-8", "surrogatepass").hex()
    return _is_cut_from(whole, text.removeprefix(IN_REPLAY)) or text == string


def _is_cut_from(whole: str, told: str) -> bool:
    """Perhaps shortened twice: an event shortens a finding's shortened text."""
    head, tail = told.partition("...")[0], told.rpartition("...")[2]
    is_cut = head != told and len(told) > LONGEST // 12  # of four bytes each
    return is_cut and whole.startswith(head) and whole.endswith(tail)


def _is_unicode(string: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in string)


def test_a_finding_holds_names_as_they_are_or_both_their_ends(benches):
    for name, string in HOSTILE.items():
        finding = benches[name].watch.findings[0]
        try:
            string.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            continue  # no bytes and no characters: only deliberate code has such a name
        assert finding.module == string or _is_cut_from(string, finding.module), name


def test_every_character_of_unicode(figure):
    """Fails when a range is taken out of kUnseen."""
    shown = seen = 0
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        out = _C.printable("x" + character)
        acts = _acts(character) or (number & 0xFFFE == 0xFFFE and number < 0x10000)
        if out == "x" + character:
            assert not acts, hex(number)
            shown += 1
        else:
            assert re.fullmatch(r"x(\\x[0-9a-f]{2}){1,3}|x\\u[0-9a-f]{4}|x\\U[0-9a-f]{8}", out), hex(number)
            seen += 1
    figure(f"{shown + seen:,} characters of Unicode, {seen:,} of them written as escapes")


@pytest.mark.breadth(0)
def test_the_last_report_is_not_an_exception(tmp_path, figure):
    """At the end of a program, on standard error: with TORCHNAN=raise and TORCHNAN=warn."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from tests.support.hostile_programs import hostile_model\n"
        "from tests.support.hostile_strings import HOSTILE\n"
        "kept = [hostile_model(s)(torch.tensor([-1.0])) for s in HOSTILE.values()]\n"
    )
    path = os.pathsep.join([str(REPOSITORY), *sys.path])
    for mode in ("raise", "warn"):
        ended = run([sys.executable, str(program)], TORCHNAN=mode, PYTHONPATH=path)
        assert "it was still referenced" in ended.stderr
        assert not {character for character in ended.stderr if character != "\n" and _acts(character)}
        labels = {line.split()[0] for line in ended.stderr.splitlines() if line.startswith("  ") and line[2] != " "}
        assert labels <= {"made", "output", "inputs", "harm", "stack", "because", "see"}, labels
        figure(f"TORCHNAN={mode} at exit: {len(ended.stderr.splitlines())} lines, none of theirs")


def test_no_name_becomes_a_part_of_a_program(benches, tmp_path, figure):
    """People run the programs that `extract` writes. Fails without _is_name(), or with the unescaped title."""
    capture = torchnan.load_capture(str(benches[TAME].stepped[0].events[0].capture))
    honest = write_example(capture, tmp_path / "honest")
    nodes = [type(node) for node in ast.walk(ast.parse(honest.read_text()))]
    refused = 0
    for i, string in enumerate(HOSTILE.values()):
        told = dataclasses.replace(capture, event={**capture.event, "origin": string}, versions={"torch": string})
        written = write_example(told, tmp_path / str(i)).read_text()
        assert [type(node) for node in ast.walk(ast.parse(written))] == nodes
        for changed in ({"op": f"aten::log{string}"}, {"op": string}, {"overload": string}, {"kwargs": {string: 1}}):
            odd = dataclasses.replace(capture, operation=dataclasses.replace(capture.operation, **changed))
            if string.isidentifier() and string.isascii():
                continue
            with pytest.raises(CaptureError, match="is not an operator of PyTorch"):
                write_example(odd, tmp_path / "odd")
            refused += 1
    assert not (tmp_path / "odd").exists()
    figure(f"{refused} operations of hostile names refused, {len(HOSTILE)} titles that end no docstring")


# -- nothing is left out


def sources() -> Iterator[tuple[str, ast.Module]]:
    package = REPOSITORY / "torchnan"
    for path in sorted(package.rglob("*.py")):
        yield str(path.relative_to(package)), ast.parse(path.read_text())


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.FunctionDef | ast.ClassDef)
        name = f"{prefix}{node.name}" if named else prefix.rstrip(".")
        if isinstance(node, ast.FunctionDef):
            yield name, node
        yield from functions(node, f"{name}." if named else prefix)


def test_everything_that_reports_is_in_the_list(figure):
    found = {
        f"{file} {name}"
        for file, tree in sources()
        for name, function in functions(tree)
        if re.search(r"(^|\.)(__str__|__repr__|report|to_\w+)$", name)
        or (file.startswith("cli/") and name == "execute")
        or _emits(function)
    }
    assert found - NO_MESSAGES == TELLS.keys()
    assert set(TELLS.values()) <= TERMINAL.keys() | JSON.keys()
    assert len(HOSTILE) >= 60
    figure(f"{len(HOSTILE)} strings, {len(TERMINAL)} kinds of text for people, {len(JSON)} of JSON: none acts")


def _emits(function: ast.AST) -> bool:
    calls = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(re.match(r"print$|logger\.|warnings\.warn|sys\.std|os\.write$|json\.dumps?$", call) for call in calls)


def test_every_error_escapes_the_text_that_it_quotes():
    found: dict[str, set[str]] = {}
    for file, tree in sources():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
                continue
            if ast.unparse(node.exc.func).split(".")[-1] in ESCAPED:
                continue
            pieces = [piece for piece in ast.walk(node.exc) if isinstance(piece, ast.FormattedValue)]
            plain = {ast.unparse(p.value) for p in pieces if p.conversion != ord("r")}
            found.setdefault(file, set()).update(text for text in plain if not text.startswith(ESCAPES))
    assert {file: plain for file, plain in found.items() if plain} == PLAIN


def test_the_core_reports_through_the_same_few_places():
    public = set()
    for header in sorted((REPOSITORY / "csrc" / "include").rglob("*.h")):
        public |= set(re.findall(r"std::string (\w+)\(", header.read_text()))
    assert public == {"describe", "to_text", "to_json", "report"}
    tells = re.compile(r"TORCH_WARN|user_notifier\(\)\.\w+|std::c(?:err|out)|\bprintf|fputs|\bwrite\(")
    places = {
        (str(path.relative_to(REPOSITORY / "csrc")), place)
        for path in sorted((REPOSITORY / "csrc").rglob("*.cpp"))
        for place in tells.findall(path.read_text())
    }
    assert places == {
        ("detection/user_notifier.cpp", "TORCH_WARN"),
        ("detection/delivery.cpp", "user_notifier().raise"),
        ("detection/delivery.cpp", "user_notifier().stop_in_debugger"),
        ("detection/delivery.cpp", "user_notifier().warn"),
        ("report/append_only_file.cpp", "write("),
        ("detection/session.cpp", "user_notifier().warn"),
    }
