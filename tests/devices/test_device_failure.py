"""A device that fails after a NaN, as by a device-side assert, and one that refuses a single request."""

from __future__ import annotations

import pytest
import torch

import torchnan
from tests.devices.conftest import NAME, of_kernel
from tests.support.processes import run_python
from torchnan.detection.errors import DetectorWarning

pytestmark = [
    pytest.mark.skipif(NAME != "lagging", reason="a GPU that has failed cannot be used again"),
    of_kernel,
]


@pytest.fixture(autouse=True)
def mended(machine):
    yield
    machine.break_device(False)
    with torchnan.detect(action="log"):  # handles the alarm that is left
        (torch.ones(8).to("lagging:0") + 1).sum().item()
    machine.synchronize()


def nan_on(machine, device):
    """Makes an infinity and a NaN, and lets the device run until the host can know of the first."""
    bad = torch.zeros(64, device=device).log()
    made = bad - bad
    made.data_ptr()  # launches the scans that wait
    machine.synchronize()
    return made


def findings_of(watch):
    return [(finding.op, finding.level, finding.harm.kind) for finding in watch.findings]


@pytest.mark.parametrize("action", ["log", "raise"])
def test_the_operation_is_reported_once_after_the_device_has_failed(machine, device, action):
    with pytest.warns(torchnan.NonFiniteWarning) if action == "raise" else torch.no_grad():
        with torchnan.detect(action=action) as watch:
            made = nan_on(machine, device)
            machine.break_device()
            for _ in range(3):
                made = made * 2
    assert findings_of(watch) == [("aten::log", "warning", "none")]
    assert "the device failed before the values could be read: they are NaN or Inf" in watch.findings[0].hint
    assert watch.stats()["internal_errors"] == 0


def test_a_value_above_its_limit_is_not_called_a_nan(machine, device):
    with torchnan.detect(action="log") as watch:
        large = torch.special.i0(torch.full((64,), 20.0).to(device))  # 4e7, above the assumed bound
        large.data_ptr()  # launches its scan
        machine.synchronize()
        machine.break_device()
    assert [finding.op for finding in watch.findings] == ["aten::i0"]
    assert "they are NaN or Inf, or |x| is above 1.049e+06" in watch.findings[0].hint


@pytest.mark.filterwarnings("ignore::torchnan.NonFiniteWarning")
@pytest.mark.parametrize("action", ["log", "raise"])
def test_the_programs_exception_is_left_alone(machine, device, action):
    own = RuntimeError("CUDA error: device-side assert triggered")
    with pytest.raises(RuntimeError) as raised, torchnan.detect(action=action) as watch:
        nan_on(machine, device)
        machine.break_device()
        raise own
    assert raised.value is own
    assert [finding.op for finding in watch.findings] == ["aten::log"]


def test_a_device_that_fails_without_a_nan_is_left_in_silence(machine, device):
    with torchnan.detect() as watch:
        x = torch.ones(64).to(device)
        machine.break_device()
        (x + 1).mul_(2)
    assert watch.findings == []
    assert watch.stats()["internal_errors"] == 0


def test_detection_goes_on_after_a_refused_reset_of_the_alarm(machine, device):
    def divide():
        zeros = torch.zeros(64).to(device)
        machine.synchronize()
        return (zeros / zeros).sum().item()

    with torchnan.detect(action="log") as watch, pytest.warns(DetectorWarning, match="cannot reset the alarm"):
        bad = torch.zeros(64, device=device).log()
        bad.data_ptr()
        machine.synchronize()
        machine.refuse_resets(1)
        torch.ones(1, device=device)  # notices the alarm
        bad.sum().item()
        divide()
    assert [finding.op for finding in watch.findings] == ["aten::log", "aten::div"]
    with torchnan.detect(action="log") as watch:
        divide()
    assert [finding.op for finding in watch.findings] == ["aten::div"]


FAILS_AFTER_A_NAN = """
import torch, torchnan
from tests.devices.lagging import Lagging
machine = Lagging()
with torchnan.detect(action="log") as watch:
    bad = torch.zeros(64).to("lagging:0").log()
    machine.synchronize()
    machine.break_device()
print([finding.op for finding in watch.findings])
"""


@pytest.mark.parametrize(("blocking", "named"), [("0", "[]\n"), ("1", "['aten::log']\n")])
def test_no_scan_waits_where_launches_are_to_run_one_by_one(blocking, named):
    """As CUDA's message for an assert suggests. Otherwise the failure comes before the scan."""
    assert run_python(FAILS_AFTER_A_NAN, CUDA_LAUNCH_BLOCKING=blocking).stdout == named


def test_what_waits_is_scanned_before_a_kernel_that_may_end_the_work_of_the_device(machine, device):
    with torchnan.detect(action="log") as watch:
        weights = torch.zeros(64, device=device).log() * 0
        drawn = torch.multinomial(torch.ones(4, device=device), 1)
        machine.synchronize()
        machine.break_device()
    assert [finding.op for finding in watch.findings] == ["aten::log"]
    del weights, drawn
