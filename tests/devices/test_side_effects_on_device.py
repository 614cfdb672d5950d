"""Programs as users write them, on the simulated device, without torchnan and under ``detect(action="log")``."""

from __future__ import annotations

import pytest

from tests.devices.conftest import NAME
from tests.side_effects.comparison import Comparison
from tests.side_effects.program import all_cases

pytestmark = pytest.mark.skipif(NAME != "lagging", reason="each program has a process with a device of its own")


@pytest.mark.breadth(4)
@pytest.mark.parametrize("case", all_cases("lagging"), ids=str)
def test_a_program_does_not_notice_torchnan(case):
    Comparison.of(case).assert_unnoticed()
