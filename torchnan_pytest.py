"""The pytest plugin: ``pytest --torchnan`` checks every test for NaN and Inf.

Every pytest run of an environment with torchnan loads this module. It imports neither torchnan nor torch before a test
is to be checked.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torchnan

MARKER = "torchnan"
FIXTURE = "torchnan_session"
_SETUP: pytest.StashKey[torchnan.detect] = pytest.StashKey()
_OF_PYTEST = ("_pytest", "pluggy", "torchnan_pytest")
_USAGE = "the marker torchnan takes the options of torchnan.detect() as keywords, or False alone to switch it off"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--torchnan[=raise|warn]``."""
    parser.getgroup("torchnan").addoption(
        "--torchnan",
        nargs="?",
        const="raise",
        type=_action,
        metavar="raise|warn",
        help="check every test for NaN and Inf: one that does harm fails the test (raise, the default), or warns. "
        "Before a path it needs its value: --torchnan=raise tests/",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", f"{MARKER}(**options): check this test with torchnan.detect(); (False): do not")


def _action(text: str) -> str:
    if text not in ("raise", "warn"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither raise nor warn; before a path write --torchnan=raise")
    return text


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Checks fixtures, and knows until the teardown where their values come from."""
    options = _options(item)
    if options is not None:
        item.stash[_SETUP] = _session(options)
        item.stash[_SETUP].__enter__()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a test under a separate detection session: what its fixtures hold is not left over by the test."""
    options = _options(item)
    if options is None:
        return (yield)
    with _session(options):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Ends the session of the fixtures."""
    if _SETUP in item.stash:
        item.stash[_SETUP]._leave(report_pending=False)
        del item.stash[_SETUP]
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Removes the frames of PyTorch, torchnan and pytest from the traceback of a finding, except with
    ``--full-trace``."""
    raised = call.excinfo
    if raised is None or raised.typename != "NonFiniteError" or item.config.getoption("fulltrace"):
        return (yield)
    users = _users(raised.tb)
    if users is not None:
        call.excinfo = pytest.ExceptionInfo.from_exc_info((raised.type, raised.value, users))
    report = yield
    if users is None:  # found when the test had ended
        report.longrepr = str(raised.value)
    return report


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of PyTorch's machinery and of pytest; ``None`` if no frame is left."""
    from torchnan.detection import introspection

    if trace is None:
        return None
    rest = _users(trace.tb_next)
    package = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    if package in _OF_PYTEST or introspection.is_internal(trace.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


@pytest.fixture
def torchnan_session(request: pytest.FixtureRequest) -> Iterator[torchnan.detect]:
    """The detection session around the test, which keeps its findings for the test: ``torchnan_session.first``. The
    marker gives its options."""
    with _session({"action": "log", **(_marked(request.node) or {})}) as session:
        yield session


def _options(item: pytest.Item) -> dict[str, Any] | None:
    """Returns the options to check a test with, ``None`` if it is not to be checked."""
    marked = _marked(item)
    action = item.config.getoption("--torchnan")
    if action is None or marked is None or FIXTURE in getattr(item, "fixturenames", ()):
        return None
    return {"action": action, **marked}


def _marked(item: pytest.Item) -> dict[str, Any] | None:
    """Returns the options that the marker of a test gives; ``None`` if it says that the test is not to be checked."""
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return {}
    if marker.args not in ((), (False,)) or (marker.args and marker.kwargs):
        pytest.fail(f"@pytest.mark.{MARKER}: {_USAGE}.", pytrace=False)
    return None if marker.args else dict(marker.kwargs)


def _session(options: dict[str, Any]) -> torchnan.detect:
    import torchnan

    try:
        return torchnan.detect(**options)
    except (TypeError, ValueError) as error:
        raise pytest.fail.Exception(f"@pytest.mark.{MARKER}: {error}", pytrace=False) from None
