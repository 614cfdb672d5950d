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
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a test under a separate detection session."""
    options = _options(item)
    if options is None:
        return (yield)
    import torchnan

    with torchnan.detect(**options):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Removes the frames of PyTorch and torchnan from the traceback of a finding, except with ``--full-trace``."""
    if call.excinfo is not None and call.excinfo.typename == "NonFiniteError":
        users = _users(call.excinfo.tb)
        if users is not None and not item.config.getoption("fulltrace"):
            call.excinfo = pytest.ExceptionInfo.from_exc_info((call.excinfo.type, call.excinfo.value, users))
    return (yield)


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of PyTorch's machinery; ``None`` if no frame is left."""
    from torchnan.detection import introspection

    if trace is None:
        return None
    rest = _users(trace.tb_next)
    if introspection.is_internal(trace.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


@pytest.fixture
def torchnan_session() -> Iterator[torchnan.detect]:
    """The detection session around the test, which keeps its findings for the test: ``torchnan_session.first``."""
    import torchnan

    with torchnan.detect(action="log") as session:
        yield session


def _options(item: pytest.Item) -> dict[str, Any] | None:
    """Returns the options to check a test with, ``None`` if it is not to be checked."""
    if FIXTURE in getattr(item, "fixturenames", ()):
        return None
    action = item.config.getoption("--torchnan")
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return None if action is None else {"action": action}
    if marker.args not in ((), (False,)) or (marker.args and marker.kwargs):
        raise pytest.UsageError(f"{item.nodeid}: {_USAGE}.")
    return None if marker.args else {"action": action or "raise", **marker.kwargs}
