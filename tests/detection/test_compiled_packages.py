"""AOTInductor packages: what one returns is checked at its border, and reported as the package's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchnan

pytestmark = pytest.mark.breadth(0)  # it takes long to make a package


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, seen):
        self.calls.add_(1)
        seen.add_(x)
        return torch.log(torch.relu(x)), x * 2


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    exported = torch.export.export(Net(), (torch.ones(4), torch.ones(4)))
    file = tmp_path_factory.mktemp("package") / "log.pt2"
    with torch._inductor.config.patch(compile_threads=1):
        return torch._inductor.aoti_compile_and_package(exported, package_path=str(file))


@pytest.mark.parametrize("loaded", ["before", "during"])
def test_a_package_is_named_as_the_region_that_made_a_value(path, loaded):
    package = torch._inductor.aoti_load_package(path)
    with torchnan.detect(action="log") as session:
        if loaded == "during":
            package = torch._inductor.aoti_load_package(path)
        assert package(torch.ones(4), torch.ones(4))[0].sum().item() == 0
        package(torch.zeros(4), torch.ones(4))[0].sum().item()
    (finding,) = session.findings
    assert (finding.origin, finding.kind, finding.output) == ("compiled", "inf", 0)
    assert finding.compiled.region == "AOTInductor package" + f" {path}" * (loaded == "during")
    assert (finding.compiled.replay, finding.compiled.obstacle) == ("none", "a package has no graph")
    assert finding.harm.kind == "read"
    assert "not followed: a package has no graph" in str(finding)
    assert session.stats()["internal_errors"] == 0


def test_what_a_package_is_given_keeps_its_origin(path):
    package = torch._inductor.aoti_load_package(path)
    with torchnan.detect(action="log") as session:
        package(torch.zeros(4).log() * 0, torch.ones(4))[1].sum().item()
    assert [finding.op for finding in session.findings] == ["aten::log"]


def test_what_a_package_writes_is_not_taken_for_what_it_was(path):
    package = torch._inductor.aoti_load_package(path)
    with torchnan.detect(action="log") as session:
        seen = torch.ones(4) * 2
        package(torch.full((4,), 3e38), seen)
        package(torch.full((4,), 3e38), seen)
        (seen * 1).sum().item()
    assert [finding.kind for finding in session.findings] == ["inf"]


def test_without_detection_a_package_runs_as_it_was(path):
    loader = torch._C._aoti.AOTIModelPackageLoader
    original = vars(loader)["boxed_run"], vars(loader)["__init__"]
    with torchnan.detect():
        assert loader.boxed_run is not original[0]
    assert (vars(loader)["boxed_run"], vars(loader)["__init__"]) == original
