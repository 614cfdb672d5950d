"""One table of switches: keywords, C++, environment and configuration accept the same names and values, and reject
everything else before anything is switched on."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchnan
from tests.support.forked_python import run_forked
from tests.support.processes import REPOSITORY
from tests.support.switch_values import (
    DETECTION,
    DETECTION_AS_TEXT,
    NO_COUNTS,
    NO_POSITIVE,
    NO_TEXT_OF,
    RECOVERY,
)
from tests.support.testing_extension import _testing
from torchnan import cli, startup
from torchnan._load import _C
from torchnan.config import policy
from torchnan.config.detection_options import DetectionOptions
from torchnan.config.options import OptionError, is_path
from torchnan.config.policy import Policy

pytestmark = pytest.mark.guarantee(20)


def is_taken(check: Any, *arguments: Any, **options: Any) -> bool:
    """Whether it is accepted; any error except an OptionError is a fault."""
    try:
        check(*arguments, **options)
    except OptionError:
        return False
    return True


def test_the_tables_are_whole(figure):
    assert DETECTION.keys() == DETECTION_AS_TEXT.keys() == DetectionOptions.options().keys()
    assert RECOVERY.keys() == policy.options().keys()
    values = [
        (len(good), len(bad)) for table in (DETECTION, RECOVERY, DETECTION_AS_TEXT) for good, bad in table.values()
    ]
    taken, refused = map(sum, zip(*values, strict=True))
    figure(
        f"{len(DETECTION) + len(RECOVERY)} options: {taken} values taken, {refused} refused, wherever they are given"
    )


@pytest.mark.parametrize("name", DETECTION)
def test_detection_accepts_the_documented_values_only(name):
    """Fails when True counts as an integer, and when a path may hold a zero byte."""
    good, bad = DETECTION[name]
    for value in good:
        assert is_taken(DetectionOptions.from_dict, {name: value}), value
    for value in bad:
        assert not is_taken(DetectionOptions.from_dict, {name: value}), value
        with pytest.raises(OptionError):
            torchnan.detect(**{name: value})
    assert _C.open_scopes() == 0


@pytest.mark.parametrize("name", RECOVERY)
def test_recovery_accepts_the_documented_values_only(name):
    """Fails when inf is a number above 0."""
    good, bad = RECOVERY[name]
    for value in good:
        assert is_taken(Policy, **{name: value}), value
    for value in bad:
        assert not is_taken(Policy, **{name: value}), value
        assert not is_taken(Policy.from_dict, {name: value}), value


@pytest.mark.parametrize("name", DETECTION_AS_TEXT)
def test_variables_of_detection_are_read_strictly(name):
    """Fails when int() parses the numbers, and when every text except "0" or "false" is true."""
    good, bad = DETECTION_AS_TEXT[name]
    variable = f"TORCHNAN_{name.upper()}"
    for text, value in good.items():
        # together with the options that it would contradict
        taken = startup.options_from({"TORCHNAN": "1", variable: text})
        assert taken is not None
        assert taken.values[name] == (os.path.abspath(value) if name == "log" else value)
    for text in bad:
        assert not is_taken(startup.options_from, {"TORCHNAN": "1", variable: text}), text
        assert not is_taken(startup.options_from, {"TORCHNAN": "0", variable: text}), text


@pytest.mark.parametrize("name", RECOVERY)
def test_variables_of_recovery_are_read_strictly(name):
    """Fails when detection does not check them, too, before the program begins."""
    option = policy.options()[name]
    variable = f"TORCHNAN_POLICY_{name.upper()}"
    kind = float if option.accepts == policy.POSITIVE else type(option.default)
    for text in NO_TEXT_OF.get(kind, ["", " ", "data", "data=skip,data=raise", "=", "data==skip"]):
        assert not is_taken(policy.from_environment, {variable: text}), text
        assert not is_taken(startup.options_from, {"TORCHNAN": "1", variable: text}), text
    for value in RECOVERY[name][0]:
        if value is not None and value != {}:
            text = ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
            assert policy.from_environment({variable: text})[name] == (str(value) if isinstance(value, Path) else value)


@pytest.mark.parametrize("name", RECOVERY)
def test_a_file_is_read_as_strictly(name, tmp_path):
    """Fails when 0 is a number above 0."""
    path = tmp_path / "policy.toml"
    quoted = {"nan": "nan", "inf": "inf", "True": "true", "False": "false"}
    for values, expected in zip(RECOVERY[name], (True, False), strict=True):
        for value in values:
            text = quoted.get(str(value), repr(value)) if isinstance(value, int | float) else f'"{value}"'
            if value is None or not isinstance(value, int | float | str) or "\0" in text or "\n" in text:
                continue  # TOML cannot represent it
            path.write_text(f"{name} = {text}\n")
            assert is_taken(lambda: Policy.from_toml(path)) is expected, text


@pytest.mark.parametrize(
    "content", [b"on_bad_step = ", b"\xff\xfe", b"retries = 1\nretries = 2", b"a = " + b"[" * 10_000]
)
def test_a_file_that_is_not_toml_is_an_option_error(tmp_path, content):
    """Fails when only TOMLDecodeError is caught."""
    path = tmp_path / "policy.toml"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=r"policy\.toml is not TOML"):
        Policy.from_toml(path)


# -- C++


def header_options() -> dict[str, str]:
    """Field and default of ``Options`` in C++."""
    header = (REPOSITORY / "csrc/include/torchnan/options.h").read_text()
    body = re.search(r"struct TORCHNAN_API Options \{(.*?)\n\};", header, re.DOTALL)
    fields = re.findall(r"^  [\w:<>]+ (\w+)(?: = ([^;]+))?;", body[1], re.MULTILINE)
    return dict(fields)  # without the callback, which is an action in Python


def test_cpp_has_the_same_options_with_the_same_defaults():
    """Fails when a default in Python differs."""
    words = {"Action::kRaise": "raise", "When::kHarm": "harm", "true": True, "false": False, "": None}
    defaults = {
        name: () if name == "skip_ops" else words[text] if text in words else int(text)
        for name, text in header_options().items()
    }
    assert list(defaults.items()) == [(name, option.default) for name, option in DetectionOptions.options().items()]


def test_cpp_reads_every_option():
    """A field that is not visited would keep its default, whatever it is set to."""
    table = (REPOSITORY / "csrc" / "detection" / "option_fields.h").read_text()
    visited = re.findall(r'OptionRow\{"(\w+)"', table)
    assert visited == list(header_options())


@pytest.mark.parametrize("name", DETECTION)
def test_cpp_takes_the_same_values(name):
    """Only values of the C++ types: others cannot be passed."""
    types = {"skip_ops": (tuple, list), "log": (str, Path)}.get(name, (type(DetectionOptions.options()[name].default),))
    for value in [*DETECTION[name][0], *DETECTION[name][1]]:
        if not isinstance(value, types) or (name == "skip_ops" and not all(isinstance(v, str) for v in value)):
            continue
        if value in ("", "\ud800") or (isinstance(value, bool) and bool not in types):
            continue  # no log; text that Python cannot encode; an integer, in C++
        assert _cpp_takes({name: value}) is is_taken(DetectionOptions.from_dict, {name: value}), value


def test_cpp_takes_the_same_characters_and_combinations(figure):
    """Fails when the core accepts a dot in skip_ops, a blank log, or a negative rescan_every."""
    together = [
        {"check_nan": False, "check_inf": False}, {"rescan_every": 0}, {"rescan_every": -1},
        {"rescan_every": 2**63 - 1}, {"check_nan": False}, {"check_inf": False},
    ]  # fmt: skip
    characters = [{"skip_ops": (f"a{chr(c)}b",)} for c in range(1, 0x300)]
    paths = [{"log": text} for c in range(0x300) for text in (chr(c), f"a{chr(c)}")]
    for given in (*together, *characters, *paths):
        assert _cpp_takes(given) is is_taken(DetectionOptions.from_dict, given), given
    for given in characters:
        is_pattern = re.fullmatch(r"[A-Za-z0-9_:*?\[\]!^-]+", given["skip_ops"][0]) is not None
        assert _cpp_takes(given) is is_pattern, given
    for given in paths:  # the rule for the paths of a policy, which is written in Python
        assert _cpp_takes(given) is is_path(given["log"]), given
    figure(f"{len(together) + len(characters) + len(paths)} combinations and characters, taken alike by C++ and Python")


def _cpp_takes(given: dict[str, Any]) -> bool:
    defaults = {name: option.default for name, option in DetectionOptions.options().items()}
    if "log" in given:
        given = {"log": os.fspath(given["log"])}
    try:
        return _testing.validate_options({**defaults, **given}) == []
    except (ValueError, TypeError, RuntimeError):  # an unknown word, an integer beyond int64
        return False


# -- names


def test_unknown_names_are_refused_with_the_nearest(tmp_path):
    """Fails when nearest() finds none."""
    (tmp_path / "policy.toml").write_text("max_skipz = 1\n")
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    refused = {
        "max_findings": lambda: DetectionOptions.from_dict({"max_finding": 1}),
        "TORCHNAN_MAX_FINDINGS": lambda: startup.options_from({"TORCHNAN_MAX_FINDING": "1"}),
        "TORCHNAN_WHEN": lambda: startup.options_from({"TORCHNAN_when": "harm"}),
        "TORCHNAN_POLICY_ON_BAD_STEP": lambda: startup.options_from({"TORCHNAN_POLICI_ON_BAD_STEP": "skip"}),
        "TORCHNAN_POLICY_MAX_SKIPS": lambda: startup.options_from({"TORCHNAN_POLICY_MAX_SKIP": "1"}),
        "TORCHNAN_POLICY_KEEP": lambda: policy.from_environment({"TORCHNAN_POLICY_keep": "copy"}),
        "max_skips": lambda: torchnan.StepGuard(model, optimizer, max_skip=1),
        "norm_limit": lambda: Policy.from_dict({"norm_limits": 1}),
        "retries": lambda: Policy.from_dict({"retrys": 1}),
        "lr_ramp": lambda: torchnan.StepGuard(model, optimizer, policy={"lr_rampe": 1}),
        "snapshots": lambda: Policy.from_dict({"snapshotz": 1}),
        "max_captures": lambda: Policy.from_dict({"max_capture": 1}),
    }
    for nearest, use in refused.items():
        with pytest.raises(OptionError) as error:
            use()
        assert f"Did you mean '{nearest}'?" in str(error.value)
        known = (
            policy.options()
            if "POLICY" not in str(error.value) and nearest not in DetectionOptions.options()
            else DetectionOptions.options()
        )
        if "there is no option" in str(error.value):
            assert str(error.value).endswith(f"Options: {', '.join(known)}.")
    with pytest.raises(OptionError, match="Did you mean 'max_skips'"):
        Policy.from_toml(tmp_path / "policy.toml")
    for odd in ({3: 1}, {None: 1}, {"": 1}):
        with pytest.raises(OptionError, match="there is no option"):
            Policy.from_dict(odd)


@pytest.mark.parametrize(
    ("use", "keyword"),
    [
        (torchnan.detect, {"acton": "raise"}),
        (lambda **k: torchnan.set_detect(True, **k), {"max_finding": 1}),
        (torchnan.NaNDetector, {"max_consecutives": 1}),
        (torchnan.load_capture, {"devise": "cpu"}),
        (torchnan.Bound, {"mast": 1.0}),
        (Policy, {"max_skip": 1}),
    ],
)
def test_unknown_keywords_are_type_errors_as_in_python(use, keyword):
    with pytest.raises(TypeError, match=next(iter(keyword))):
        use(**keyword)


def test_the_command_line_takes_whole_names_and_the_same_values(capsys):
    """Fails when argparse may complete names: the script is run."""
    for flag in ("--act", "--max", "--actions", "--TORCHNAN"):
        with pytest.raises(SystemExit) as ended:
            cli.main(["doctor", flag, "1"])
        assert ended.value.code == 2
    for name, (_, bad) in DETECTION_AS_TEXT.items():
        for text in bad:
            status = cli.main(["run", f"--{name.replace('_', '-')}={text}", "no_such_script.py"])
            assert status == 2, (name, text)
            assert "cannot be used" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["run", "--act=raise", "no_such_script.py"])


@pytest.mark.parametrize("name", ["max_consecutive", "max_history"])
@pytest.mark.parametrize("value", [*NO_COUNTS, 0])
def test_counts_of_the_nan_detector(name, value):
    """Fails when the message does not name the source of the value."""
    with pytest.raises(OptionError, match=f"{name}=.* cannot be used: {name} takes an integer of at least 1"):
        torchnan.NaNDetector(**{name: value})


@pytest.mark.parametrize("name", ["norm_limit", "norm_factor"])
@pytest.mark.parametrize("value", NO_POSITIVE)
def test_limits_of_the_nan_detector(name, value):
    with pytest.raises(OptionError, match=f"{name}=.* cannot be used: {name} takes a number above 0"):
        torchnan.NaNDetector(**{name: value})


@pytest.mark.parametrize("word", ["", "Warn", "log", None, 1, torch.ones(2)])
def test_words_of_the_nan_detector(word):
    with pytest.raises(OptionError, match=r"on_nonfinite=.* cannot be used: on_nonfinite takes one of"):
        torchnan.NaNDetector(on_nonfinite=word)


@pytest.mark.parametrize("k", [2**63, -(2**63) - 1, 10**400, 1.0, True, "1", None])
def test_a_step_is_an_integer(k):
    """Fails when True counts as a number."""
    with pytest.raises(TypeError, match="a step is an integer"):
        torchnan.detect().mark_step(k)


@pytest.mark.parametrize("rank", ["", " ", "x", "1x", " 1", "\u0661", "1.5", "-1", "9" * 30])
def test_an_invalid_rank_is_ignored(monkeypatch, rank):
    """It is the launcher's variable, so torchnan does not reject it."""
    monkeypatch.setenv("RANK", "3")
    assert _C.rank_from_environment() == 3
    monkeypatch.setenv("RANK", rank)
    assert _C.rank_from_environment() is None
    with torchnan.detect(action="log") as watch:
        torch.log(torch.tensor(-1.0)).item()
    assert watch.first.rank is None
    model = nn.Linear(1, 1)
    assert (
        torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: m(b).sum())
        .step(torch.ones(1))
        .applied
    )


# -- read once, and used as given


READ_ONCE = """
import os, torch, torchnan
from torchnan._load import _C
def watched():
    with torchnan.detect(action="log") as watch:
        torch.log(torch.tensor(-1.0)).item()
    return len(watch.findings)
before = _C.open_scopes(), watched()
os.environ.update(TORCHNAN={value!r}, TORCHNAN_WHEN="nonsense", TORCHNAN_MAX_FINDINGS="-1")
print(before == (_C.open_scopes(), watched()), before)
"""


@pytest.mark.breadth(1)
@pytest.mark.parametrize(
    ("at_start", "later", "told"),
    [
        ({}, "0", "(0, 1)"),
        ({}, "raise", "(0, 1)"),
        ({"TORCHNAN": "0"}, "raise", "(0, 0)"),
        ({"TORCHNAN": "log"}, "0", "(1, 1)"),
    ],
)
def test_variables_are_read_once(at_start, later, told, tmp_path):
    """Fails when is_switched_off() is not static: later changes of os.environ reach getenv()."""
    ended = run_forked(READ_ONCE.format(value=later), cwd=tmp_path, **at_start)
    assert ended.stdout.strip() == f"True {told}", ended.stderr


def test_a_step_guard_reads_them_when_it_is_made(monkeypatch):
    model = nn.Linear(1, 1)
    monkeypatch.setenv("TORCHNAN_POLICY_MAX_SKIPS", "7")
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    monkeypatch.setenv("TORCHNAN_POLICY_MAX_SKIPS", "nonsense")
    assert guard.policy.max_skips == 7


OPTIONS = re.compile(r"\b(?:thresholds|limits|options|_every)\b")


def test_nothing_is_clamped():
    """Values are used as they are given: no min() or max() between an option and its use, except the known ones."""
    known = {
        ("detection/terminal.py", "max(_NARROWEST, shutil.get_terminal_size().columns)"),  # labels alone take 12
        ("detection/terminal.py", "min(start, max(0, end - room))"),  # the part of a line that is shown
        ("distributed/agreement.py", "max(length, 1)"),  # a tensor has an element
        ("distributed/agreement.py", "min(anomaly.micro_batch, _MICRO_BATCHES)"),  # of what is shown first
        ("training/storage/folder_reader.py", "min(size, MAX_DOCUMENT_BYTES + 1)"),  # what is read of a larger file
        ("training/guard/decision.py", "max(0, self.budget.rollbacks_in_a_row - 1)"),  # the first goes no further
        ("training/guard/rollback.py", "max(1, len(self._steps) - back)"),  # "the oldest at most"
        # a window has least_rows, "of a short run at most a third of it": docs/diagnose.md says so
        ("training/diagnosis/series.py", "max(self.to_rows(thresholds.spike_window), thresholds.least_rows)"),
        ("training/diagnosis/series.py", "max(thresholds.least_rows, len(self) // 3)"),
        ("training/diagnosis/divergence.py", "max(loss.to_rows(thresholds.divergence_steps), thresholds.least_rows)"),
        # rows of the log, and of a block of them
        (
            "training/diagnosis/divergence.py",
            "min(rate.row_at(found.first + thresholds.divergence_steps), len(rate) - 1)",
        ),
        (
            "training/diagnosis/divergence.py",
            "max(2, norm.to_rows(thresholds.divergence_steps) // BLOCKS, len(values) // MAX_BLOCKS)",
        ),
        # chance may ask for more than spike_sigma; a forecast goes no further than was seen: docs/diagnose.md
        (
            "training/diagnosis/episodes.py",
            "max(outlier_threshold(peaks, ordinary, tested, thresholds.false_alarm), least)",
        ),
        ("training/diagnosis/headroom.py", "min(thresholds.headroom_steps, step[-1] - step[0])"),
        ("training/guard/remedies/arithmetic.py", "clamp({limits})"),  # the name of a remedy
        # no option is involved here: the last line of a function, numbers drawn after the first
        ("detection/graph_code.py", "max(number or 0 for _, _, number in code.co_lines())"),
        ("detection/compiled/random_numbers.py", "max(count - 1, 0)"),
        (
            "detection/compiled/kernels.py",
            "max(run.sources, key=lambda source: (source.kinds & _NAN, source.kinds & _POSITIVE))",
        ),
    }
    package = REPOSITORY / "torchnan"
    found = {
        (str(path.relative_to(package)), text)
        for path in package.rglob("*.py")
        for text in re.findall(r"\b(?:min|max|clamp)\((?!one\.|\()[^()]*(?:\([^()]*\)[^()]*)*\)", path.read_text())
        if text not in ("max()", "max(magnitudes)")
    }
    # Diagnosis, pages and remedies compute with numbers; there, only expressions with an option are listed.
    arithmetic = ("training/diagnosis/", "training/monitor/", "pages/", "training/guard/remedies/")
    found = {(file, text) for file, text in found if not file.startswith(arithmetic) or OPTIONS.search(text)}
    assert found == known
    core = {path: path.read_text() for path in (REPOSITORY / "csrc").rglob("*.cpp")}
    assert not [path for path, text in core.items() if re.search(r"std::(min|max|clamp)\([^)]*options", text)]
