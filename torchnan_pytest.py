"""The pytest plugin: ``pytest --torchnan`` checks every test for NaN and Inf.

Every pytest run of an environment that has torchnan loads this module: it imports neither torchnan nor torch before a
test is to be checked.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
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
        choices=("raise", "warn"),
        help="check every test for NaN and Inf: one that does harm fails the test (raise, the default), or warns. "
        "Before a path it needs its value: --torchnan=raise tests/",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", f"{MARKER}(**options): check this test with torchnan.detect(); (False): do not")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a test under a detection of its own."""
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
    """Leaves torchnan's own frames out of the traceback of a finding."""
    if call.excinfo is not None and call.excinfo.typename == "NonFiniteError":
        own = os.path.join(os.path.dirname(__file__), "torchnan", "")
        users = [entry for entry in call.excinfo.traceback if not str(entry.path).startswith(own)]
        if users and str(call.excinfo.traceback[-1].path).startswith(own):
            call.excinfo.traceback = type(call.excinfo.traceback)(users)
    return (yield)


@pytest.fixture
def torchnan_session() -> Iterator[torchnan.detect]:
    """Detection around the test, which keeps its findings for the test to look at: ``torchnan_session.first``."""
    import torchnan

    with torchnan.detect(action="log") as session:
        yield session


def _options(item: pytest.Item) -> dict[str, Any] | None:
    """Returns the options to check a test with, ``None`` if it is not to be checked here."""
    if FIXTURE in getattr(item, "fixturenames", ()):
        return None
    action = item.config.getoption("--torchnan")
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return None if action is None else {"action": action}
    if marker.args not in ((), (False,)) or (marker.args and marker.kwargs):
        raise pytest.UsageError(f"{item.nodeid}: {_USAGE}.")
    return None if marker.args else {"action": action or "raise", **marker.kwargs}
