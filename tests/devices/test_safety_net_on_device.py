"""A wrong bound rule is found out on a device, too."""

from __future__ import annotations

import pytest
import torch

import torchnan
from tests.devices.conftest import NAME
from torchnan.detection.errors import DetectorWarning

EVERY = 5
pytestmark = pytest.mark.skipif(NAME != "lagging", reason="the extension for tests is not built where a GPU is")


def test_a_bound_that_is_too_small_is_found_within_n_steps(device):
    """Much too small: what comes to a device is assumed to be large."""
    from tests.support.testing_extension import _testing

    x = torch.full((5000,), 3.0).to(device)
    try:
        with torchnan.detect(action="log", rescan_every=EVERY) as watch:
            y = x * 1
            for step in (1, 2):  # the first one, where everything is read, is over
                watch.mark_step(step)
            _testing.falsify_rule("aten::mul", 1e-13)
            with pytest.warns(
                DetectorWarning, match=r"the bound of aten::mul is wrong: a result on a device was proved"
            ):
                for step in range(2, 2 + 2 * EVERY):
                    watch.mark_step(step)
                    z = y * y
                    z.sum().item()  # reads the results of the device
            assert _testing.is_rule_withdrawn("aten::mul")
        assert watch.findings == []
    finally:
        _testing.falsify_rule("aten::mul", 1.0)
