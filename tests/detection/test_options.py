"""Bad input is rejected with one clear error, before anything is switched on."""

from __future__ import annotations

import os
import re

import pytest
import torch

import torchnan
from tests.support import write_options_table
from tests.support.processes import REPOSITORY
from torchnan import startup
from torchnan._load import _C
from torchnan.config import environment, policy
from torchnan.config.detection_options import OLD_NAMES, DetectionOptions
from torchnan.config.options import OptionError
from torchnan.detection.keywords import DetectKeywords

BAD_OPTIONS = [
    (
        {"action": "rais"},
        "action='rais' cannot be used: action takes 'raise', 'warn', 'log', 'breakpoint' or a callable",
    ),
    ({"action": None}, "action=None cannot be used"),
    ({"check_nan": 1}, "check_nan=1 cannot be used: check_nan takes True or False"),
    ({"check_inf": "yes"}, "check_inf='yes' cannot be used"),
    ({"check_nan": False, "check_inf": False}, "nothing would be checked"),
    ({"when": "later"}, "when='later' cannot be used: when takes 'harm' or 'origin'"),
    ({"backward": 0}, "backward=0 cannot be used"),
    ({"stacks": "no"}, "stacks='no' cannot be used"),
    ({"model": "gpt2"}, "model='gpt2' cannot be used: model takes a torch.nn.Module or None"),
    ({"skip_ops": "aten::log"}, "skip_ops='aten::log' cannot be used: skip_ops takes a sequence"),
    ({"skip_ops": ("aten::log", "")}, "skip_ops=('aten::log', '') cannot be used"),
    ({"skip_ops": (torch.log,)}, "cannot be used: skip_ops takes a sequence"),
    ({"exact": 1}, "exact=1 cannot be used: exact takes True or False"),
    ({"sample": -1}, "sample=-1 cannot be used: sample takes 0, or a number of steps"),
    ({"rescan_every": -1}, "rescan_every=-1 cannot be used: rescan_every takes 0, or a number of steps"),
    ({"rescan_every": 2.5}, "rescan_every=2.5 cannot be used"),
    ({"rescan_every": True}, "rescan_every=True cannot be used"),
    ({"exact": True, "sample": 4}, "sample=4 is an old name for rescan_every: give rescan_every alone"),
    ({"headroom": 1}, "headroom=1 cannot be used: headroom takes True or False"),
    ({"max_findings": 0}, "max_findings=0 cannot be used: max_findings takes an integer of at least 1"),
    ({"max_findings": 1.5}, "max_findings=1.5 cannot be used"),
    ({"max_findings": True}, "max_findings=True cannot be used"),
    ({"max_findings": 2**63}, "cannot be used: max_findings takes an integer of at least 1"),
    ({"max_copied_bytes": -1}, "max_copied_bytes=-1 cannot be used: max_copied_bytes takes an integer of at least 0"),
    ({"log": ""}, "log='' cannot be used: log takes a path"),
    ({"log": 3}, "log=3 cannot be used"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=[message for _, message in BAD_OPTIONS])
def test_a_bad_option_is_rejected_with_the_remedy(options, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the text is asserted
        torchnan.detect(**options)
    assert message in str(raised.value)
    assert _C.open_scopes() == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("old", "new"), [({"exact": True}, 1), ({"sample": 7}, 7), ({"exact": False}, 1000), ({"sample": 0}, 1000)]
)
def test_an_old_name_of_rescan_every_still_works_and_warns(old, new):
    with pytest.warns(DeprecationWarning, match=r"the option (exact|sample) is now called rescan_every") as warned:
        watch = torchnan.detect(**old)
    assert warned[0].filename == __file__
    assert watch._options.values["rescan_every"] == new


def test_an_old_name_is_warned_about_where_set_detect_is_called():
    with pytest.warns(DeprecationWarning, match="the option exact is now called rescan_every") as warned:
        torchnan.set_detect(True, action="log", exact=True)
    torchnan.set_detect(False)
    assert warned[0].filename == __file__


def test_an_unknown_option_is_a_type_error_as_in_python():
    for face in (torchnan.detect, lambda **options: torchnan.set_detect(True, **options)):
        with pytest.raises(TypeError, match=r"there is no option 'acton'\. Did you mean 'action'\? Options: action, "):
            face(acton="raise")
    with pytest.raises(TypeError, match=r"there is no option 'modle'\. Did you mean 'model'\?"):
        torchnan.detect(modle=None)


def test_a_positional_option_is_rejected_with_the_keyword_to_use():
    with pytest.raises(TypeError, match=r"^detect\('warn'\): options are given by name, such as detect\(action="):
        torchnan.detect("warn")
    with pytest.raises(TypeError, match=r"the decorator is @torchnan\.detect\(\)\.$"):

        @torchnan.detect
        def train():
            pass


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("aten::lgo", "no operator is called 'aten::lgo'. Did you mean 'aten::log'?"),
        ("_foreach_lgo*", "no operator is called '_foreach_lgo*'."),
    ],
)
def test_a_pattern_that_matches_no_operator_is_refused(pattern, message):
    with pytest.raises(OptionError) as raised:
        torchnan.detect(skip_ops=("aten::log", pattern))
    assert message in str(raised.value)


def test_patterns_that_match_or_may_match_later_are_taken():
    torchnan.detect(skip_ops=("log", "aten::[!a-k]*", "aten::_foreach_*", "library_to_come::*"))


def test_the_repr_of_a_detection_states_its_findings():
    watch = torchnan.detect(action="log")
    start = "<torchnan.detect(action='log'), "
    assert repr(watch).startswith(f"{start}not entered: 0 findings, 0 of level error; 0 operations")
    with watch:
        torch.log(torch.tensor(-1.0)).item()
        assert "open: 1 finding, 1 of level error; " in repr(watch)
    assert repr(watch).startswith(f"{start}closed: 1 finding")


@pytest.mark.parametrize("options", [{"action": "rais"}, {"log": "/no/such/folder/log"}])
def test_a_refused_set_detect_leaves_the_running_one_alone(options):
    running = torchnan.set_detect(True, action="log")
    try:
        with pytest.raises((ValueError, OSError)):
            torchnan.set_detect(True, **options)
        torch.log(torch.tensor(-1.0)).item()
    finally:
        torchnan.set_detect(False)
    assert len(running.findings) == 1


def test_a_log_that_cannot_be_written_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="no/such/folder"):
        torchnan.detect(log=tmp_path / "no/such/folder")
    read_only = tmp_path / "read-only"
    read_only.mkdir(mode=0o500)
    if os.geteuid() != 0:  # root may write anywhere
        with pytest.raises(OSError, match="cannot be opened"):
            torchnan.detect(log=read_only / "log")
    with pytest.raises(OSError, match="cannot be opened"):
        torchnan.detect(log=tmp_path)  # a folder


def test_every_option_is_a_keyword_of_detect_and_has_the_same_default():
    import inspect

    keywords = inspect.signature(torchnan.detect).parameters
    assert set(keywords) == {*DetectionOptions.options(), "model"}
    for name, option in DetectionOptions.options().items():
        assert keywords[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert keywords[name].default == option.default


GOOD_ENVIRONMENT = [
    ({}, None),
    ({"TORCHNAN": ""}, None),
    ({"TORCHNAN": "0", "TORCHNAN_WHEN": "origin"}, None),
    ({"TORCHNAN": "1"}, {}),
    ({"TORCHNAN": "raise"}, {"action": "raise"}),
    ({"TORCHNAN": "warn"}, {"action": "warn"}),
    ({"TORCHNAN": "log", "TORCHNAN_LOG": "/tmp/x"}, {"action": "log", "log": "/tmp/x"}),
    ({"TORCHNAN": "1", "TORCHNAN_ACTION": "warn"}, {"action": "warn"}),
    ({"TORCHNAN": "1", "TORCHNAN_CHECK_NAN": "0"}, {"check_nan": False}),
    ({"TORCHNAN": "1", "TORCHNAN_CHECK_INF": "False"}, {"check_inf": False}),
    ({"TORCHNAN": "1", "TORCHNAN_WHEN": "origin"}, {"when": "origin"}),
    ({"TORCHNAN": "1", "TORCHNAN_BACKWARD": "true"}, {"backward": True}),
    ({"TORCHNAN": "1", "TORCHNAN_STACKS": "0"}, {"stacks": False}),
    ({"TORCHNAN": "1", "TORCHNAN_SKIP_OPS": "aten::log, _foreach_*"}, {"skip_ops": ("aten::log", "_foreach_*")}),
    ({"TORCHNAN": "1", "TORCHNAN_HEADROOM": "1"}, {"headroom": True}),
    ({"TORCHNAN": "1", "TORCHNAN_MAX_FINDINGS": "7"}, {"max_findings": 7}),
]


@pytest.mark.parametrize(("environment", "expected"), GOOD_ENVIRONMENT, ids=[str(e) for e, _ in GOOD_ENVIRONMENT])
def test_the_environment_says_the_same_as_keywords(environment, expected):
    options = startup.options_from(environment)
    assert options == (None if expected is None else DetectionOptions.from_dict(expected))


BAD_ENVIRONMENT = [
    ({"TORCHNAN": "rasie"}, "TORCHNAN=rasie cannot be used: it takes one of raise, warn, log, breakpoint, 1, 0"),
    ({"TORCHNAN": "Raise"}, "1, 0. Did you mean 'raise'?"),
    ({"TORCHNAN": "true"}, "it takes one of raise, warn, log, breakpoint, 1, 0"),
    ({"TORCHNAN": "1", "TORCHNAN_CHEK_NAN": "1"}, "no variable TORCHNAN_CHEK_NAN. Did you mean 'TORCHNAN_CHECK_NAN'?"),
    (
        {"TORCHNAN": "1", "TORCHNAN_RESCAN": "3"},
        "TORCHNAN_LOG, TORCHNAN_HTML, TORCHNAN_REPLACE_ANOMALY, TORCHNAN_REQUIRE_CUDA, TORCHNAN_TRACEBACK, "
        "TORCHNAN_POLICY, TORCHNAN_POLICY_<FIELD>.",
    ),
    ({"TORCHNAN": "1", "TORCHNAN_MODEL": "x"}, "there is no variable TORCHNAN_MODEL"),
    ({"TORCHNAN_": "1"}, "there is no variable TORCHNAN_"),
    ({"TORCHNAN_when": "origin"}, "there is no variable TORCHNAN_when"),
    ({"TORCHNAN": "1", "TORCHNAN_CHECK_NAN": "yes"}, "TORCHNAN_CHECK_NAN=yes cannot be used: it takes 1, 0, true or"),
    ({"TORCHNAN": "1", "TORCHNAN_CHECK_NAN": ""}, "TORCHNAN_CHECK_NAN= cannot be used"),
    ({"TORCHNAN": "1", "TORCHNAN_WHEN": "now"}, "TORCHNAN_WHEN=now cannot be used: it takes harm or origin"),
    ({"TORCHNAN": "1", "TORCHNAN_MAX_FINDINGS": "many"}, "TORCHNAN_MAX_FINDINGS=many cannot be used"),
    ({"TORCHNAN": "1", "TORCHNAN_MAX_FINDINGS": "-1"}, "it takes an integer of at least 1"),
    ({"TORCHNAN": "1", "TORCHNAN_SKIP_OPS": "a,,b"}, "TORCHNAN_SKIP_OPS=a,,b cannot be used"),
    (
        {"TORCHNAN": "1", "TORCHNAN_ACTION": "print"},
        "TORCHNAN_ACTION=print cannot be used: it takes raise, warn, log or breakpoint",
    ),
    ({"TORCHNAN": "warn", "TORCHNAN_ACTION": "log"}, "TORCHNAN=warn and TORCHNAN_ACTION=log disagree"),
    ({"TORCHNAN": "1", "TORCHNAN_LOG": ""}, "TORCHNAN_LOG= cannot be used: it takes a path"),
    ({"TORCHNAN_LOG": ""}, "TORCHNAN_LOG= cannot be used"),
]


@pytest.mark.parametrize(("environment", "message"), BAD_ENVIRONMENT, ids=[str(e) for e, _ in BAD_ENVIRONMENT])
def test_a_bad_variable_is_rejected_with_the_remedy(environment, message):
    with pytest.raises(OptionError) as raised:
        startup.options_from(environment)
    assert message in str(raised.value)


def test_the_documented_options_are_those_of_detect():
    """Fails after a change of a meaning or a default in the core: python -m tests.support.write_options_table."""
    assert write_options_table.written() == write_options_table.table()
    assert write_options_table.written_arguments() == write_options_table.arguments()


def test_type_checkers_know_the_keywords_of_detect():
    """Fails when an option of the core is missing in DetectKeywords, or has another type there."""
    types = {bool: "bool", int: "int", str: "str", tuple: "Sequence[str]", type(None): "str | Path | None"}
    known = {name: types[type(option.default)] for name, option in DetectionOptions.options().items()}
    known |= {"action": "str | Callable[[Finding], object]", "model": "torch.nn.Module | None"}
    old = {name: types[type(option.default)] for name, option in OLD_NAMES.items()}
    written = {name: given.__forward_arg__ for name, given in DetectKeywords.__annotations__.items()}
    assert written == known | old


def test_every_variable_that_the_documents_name_exists():
    known = {f"TORCHNAN_{name.upper()}" for name in DetectionOptions.options()}
    known |= {environment.REQUIRE_CUDA, environment.REPLACE_ANOMALY, environment.PAGE, environment.TRACEBACK}
    known |= {environment.POLICY, *policy.variables(), "TORCHNAN_"}  # the last: TORCHNAN_<OPTION>
    for page in [*(REPOSITORY / "docs").glob("*.md"), *REPOSITORY.glob("*.md")]:
        named = set(re.findall(r"(?<![-\w])TORCHNAN_[A-Z_]*", page.read_text()))
        assert named <= {*known, f"{environment.POLICY}_"}, page.name
