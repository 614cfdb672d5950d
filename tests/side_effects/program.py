"""What a program is, and the list of them. Does not use torchnan."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.side_effects.recorder import Recorder

KNOWN_DIFFERENCES = Path(__file__).with_name("known_differences.json")
HEALTHY, BAD = "healthy", "bad"
COMPILED, EAGER = "compiled", "eager"


@dataclasses.dataclass(frozen=True)
class Program:
    """A short function that writes what it notices to a recorder.

    Attributes:
        function: the program. It is given the recorder, and whether to compute a NaN or an Inf.
        variants: ``healthy``, ``bad`` or both.
        places_detection: it says with ``recorder.detection()`` what runs under detection; otherwise all of it does.
        guards: it uses torchnan itself, as ``recorder.torchnan``, which is ``None`` in the plain run.
        on_device: it also runs on a device.
        ways: ``compiled``, ``eager`` (the same program with Dynamo switched off) or both.
        generates_code: Inductor generates kernels for it, which takes long; otherwise it calls PyTorch's operators.
        reports: whether the bad variant gets a finding.
    """

    function: Callable[[Recorder, bool], None]
    variants: tuple[str, ...]
    places_detection: bool
    guards: bool
    on_device: bool
    ways: tuple[str, ...]
    generates_code: bool
    reports: bool

    @property
    def name(self) -> str:
        return self.function.__name__


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to run a program: ``finalizers bad compiled cpu``."""

    program: Program
    variant: str
    way: str
    device: str

    @property
    def known_differences(self) -> list[str]:
        """The facets that torchnan changes today. A case that has some must differ."""
        return known_differences().get(str(self), [])

    def __str__(self) -> str:
        return f"{self.program.name} {self.variant} {self.way} {self.device}"


PROGRAMS: dict[str, Program] = {}


def program(
    *,
    variants: tuple[str, ...] = (HEALTHY, BAD),
    places_detection: bool = False,
    guards: bool = False,
    on_device: bool = False,
    ways: tuple[str, ...] = (COMPILED, EAGER),
    generates_code: bool = False,
    reports: bool = True,
    into: dict[str, Program] = PROGRAMS,
) -> Callable[[Callable[[Recorder, bool], None]], Program]:
    """Makes a program of a function, and adds it to a list."""

    def add(function: Callable[[Recorder, bool], None]) -> Program:
        made = Program(function, variants, places_detection, guards, on_device, ways, generates_code, reports)
        assert made.name not in into, f"two programs have the name {made.name}"
        into[made.name] = made
        return made

    return add


def cases_of(made: Program, device: str) -> Iterator[Case]:
    """Returns the cases of a program on a device."""
    if device == "cpu" or made.on_device:
        for way in made.ways:
            for variant in made.variants:
                yield Case(made, variant, way, device)


def all_cases(device: str) -> list[Case]:
    """Returns the cases of all programs on a device, in the order of the list."""
    from tests.side_effects import programs  # noqa: F401 - fills the list

    return [case for made in PROGRAMS.values() for case in cases_of(made, device)]


@functools.cache
def known_differences() -> dict[str, list[str]]:
    """Returns the facets that differ today, by case: faults that are known and not yet mended."""
    known: dict[str, list[str]] = json.loads(KNOWN_DIFFERENCES.read_text())
    return known
