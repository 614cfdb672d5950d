"""``pytest --torchnan``: tests run by pytest itself, with the plugin and without it."""

from __future__ import annotations

import sys

import pytest

from tests.support.processes import REPOSITORY, run_python

pytest_plugins = ["pytester"]

TESTS = """
import pytest, torch, torchnan

def divide(x):
    return (x / x.sum()).sum().item()

def test_good():
    divide(torch.ones(2))

def test_bad():
    divide(torch.zeros(2))

@pytest.mark.torchnan(False)
def test_left_out():
    divide(torch.zeros(2))

@pytest.mark.torchnan(action="log")
def test_own_options():
    divide(torch.zeros(2))

def test_session(torchnan_session):
    divide(torch.zeros(2))
    assert torchnan_session.first.op == "aten::div"
"""


def run(pytester, *options):
    pytester.makepyfile(TESTS)
    return pytester.runpytest_inprocess("-p", "torchnan_pytest", "-p", "no:cacheprovider", *options)


def test_without_the_option_nothing_is_checked(pytester):
    run(pytester).assert_outcomes(passed=5)


def test_a_finding_fails_its_test_with_the_report(pytester):
    result = run(pytester, "--torchnan")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*_ test_bad _*", "E*made by   aten::div, output 0*:4", "*.py:4: NonFiniteError"])


def test_a_finding_is_a_warning_of_its_test(pytester):
    result = run(pytester, "--torchnan=warn")
    result.assert_outcomes(passed=5, warnings=1)
    result.stdout.fnmatch_lines(["*::test_bad", "*NonFiniteWarning: torchnan: NaN*"])


def test_a_path_after_the_option_is_refused_with_the_way_to_write_it(pytester):
    result = run(pytester, "--torchnan", "test_it.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--torchnan: 'test_it.py' is neither raise nor warn; before a path write --torchnan=raise"]
    )


MARKED = """
import pytest, torch

@pytest.mark.torchnan(when="origin")
def test_marked():
    assert torch.zeros(1).log().isinf().all()

@pytest.mark.torchnan(when="origin")
def test_with_the_fixture(torchnan_session):
    assert torch.zeros(1).log().isinf().all()
    assert torchnan_session.first.op == "aten::log"
"""


def test_a_marker_gives_options_and_switches_nothing_on(pytester):
    pytester.makepyfile(MARKED)
    pytester.runpytest_inprocess("-p", "torchnan_pytest").assert_outcomes(passed=2)
    pytester.runpytest_inprocess("-p", "torchnan_pytest", "--torchnan").assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize(
    ("marker", "line"),
    [
        (
            "'warn'",
            "@pytest.mark.torchnan: the marker torchnan takes the options of torchnan.detect() as keywords, or *",
        ),
        ("wehn='origin'", "@pytest.mark.torchnan: there is no option 'wehn'. Did you mean 'when'? *"),
        ("when='never'", "@pytest.mark.torchnan: when='never' cannot be used*"),
    ],
)
@pytest.mark.parametrize("fixture", ["", "torchnan_session"])
def test_invalid_arguments_of_a_marker_are_refused_in_one_line(pytester, marker, line, fixture):
    pytester.makepyfile(f"import pytest\n@pytest.mark.torchnan({marker})\ndef test_it({fixture}): pass\n")
    result = pytester.runpytest_inprocess("-p", "torchnan_pytest", "--torchnan")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*_ ERROR at setup of test_it _*", line, "=*"], consecutive=True)


FIXTURES = """
import pytest, torch

@pytest.fixture
def batch():
    return torch.zeros(2) / torch.zeros(2)

@pytest.fixture
def number(batch):
    return batch.sum().item()

def test_reads(batch):
    batch.sum().item()

def test_only_looks(batch):
    assert batch.isnan().all()

def test_is_given_a_number(number):
    pass

kept = []
def test_keeps():
    kept.append(torch.zeros(2) / torch.zeros(2))
"""


def test_fixtures_are_checked_like_the_test(pytester):
    pytester.makepyfile(FIXTURES)
    result = pytester.runpytest_inprocess("-p", "torchnan_pytest", "--torchnan")
    result.assert_outcomes(passed=1, failed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*_ ERROR at setup of test_is_given_a_number _*",
            "E*made by   aten::div, output 0*:5",
            "*_ test_reads _*",
            "E*made by   aten::div, output 0*:5",
        ]
    )


def test_a_finding_at_the_end_of_a_test_shows_no_frames_of_pytest(pytester):
    pytester.makepyfile(FIXTURES)
    result = pytester.runpytest_inprocess("-p", "torchnan_pytest", "--torchnan", "-k", "test_keeps")
    result.stdout.fnmatch_lines(["*_ test_keeps _*", "torchnan: NaN at step 1 (cpu)"], consecutive=True)
    result.stdout.no_fnmatch_line("*_callers.py*")


TRAINING = """
import torch

def test_step():
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([w], lr=0.1)
    w.sqrt().sum().backward()
    optimizer.step()
"""


def test_the_traceback_ends_at_the_line_of_the_test(pytester):
    pytester.makepyfile(TRAINING)
    result = pytester.runpytest_inprocess("-p", "torchnan_pytest", "--torchnan")
    result.stdout.fnmatch_lines([">       optimizer.step()", "E  *", "*.py:7: NonFiniteError"])
    result.stdout.no_fnmatch_line("*optimizer.py:*")
    full = pytester.runpytest_inprocess("-p", "torchnan_pytest", "--torchnan", "--full-trace")
    full.stdout.fnmatch_lines(["*/torch/optim/optimizer.py:*"])


def test_it_works_under_xdist(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":".join([str(REPOSITORY), *sys.path]))
    result = run(pytester, "--torchnan", "-n", "1")
    result.assert_outcomes(passed=4, failed=1)
    stack = ["E         stack     *.py:4 divide", "E                   *.py:10 test_bad", ""]
    result.stdout.fnmatch_lines(stack, consecutive=True)


def test_the_plugin_imports_no_torch():
    assert run_python(
        "import sys, torchnan_pytest; print('torch' in sys.modules, 'torchnan' in sys.modules)"
    ).stdout == ("False False\n")
