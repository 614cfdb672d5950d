"""AOTInductor packages: one made under detection is followed; else what it returns is reported as the package's."""

from __future__ import annotations

import gc
import inspect
import io

import pytest
import torch
from torch import nn

import torchnan
from torchnan.detection.compiled import package as packages
from torchnan.detection.compiled import packaged_graph

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
    assert (finding.compiled.replay, finding.compiled.obstacle) == ("none", packages.NO_GRAPH)
    assert finding.harm.kind == "read"
    assert f"not followed: {packages.NO_GRAPH}" in str(finding)
    assert session.stats()["internal_errors"] == 0


def test_arguments_of_a_package_keep_their_origin(path):
    package = torch._inductor.aoti_load_package(path)
    with torchnan.detect(action="log") as session:
        package(torch.zeros(4).log() * 0, torch.ones(4))[1].sum().item()
    assert [finding.op for finding in session.findings] == ["aten::log"]


def test_an_argument_that_a_package_overwrites_loses_its_old_bound(path):
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


class Logarithm(nn.Module):
    def forward(self, x):
        return torch.log(torch.relu(x))  # LOG


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), Logarithm())

    def forward(self, x, power, seen, *, scale=2.0):
        seen[:2].add_(x[:2])
        return self.layers(x) * power * scale


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, and the package that was made of it under detection."""
    model = Model()
    with torch.no_grad():
        model.layers[0].weight.copy_(torch.eye(4))
        model.layers[0].bias.zero_()
    file = tmp_path_factory.mktemp("made") / "model.pt2"
    exported = torch.export.export(model, (torch.ones(4), 3, torch.ones(4)), {"scale": 2.5})
    with torchnan.detect() as session, torch._inductor.config.patch(compile_threads=1):
        torch._inductor.aoti_compile_and_package(exported, package_path=str(file))
    assert session.stats()["internal_errors"] == 0
    return model, file


def session_of(package, x, seen):
    with torchnan.detect(action="log") as session:
        package(x, 3, seen, scale=2.5).sum().item()
    assert session.stats()["internal_errors"] == 0
    return session


@pytest.mark.parametrize("how", ["path", "buffer"])
def test_the_origin_inside_a_package_that_was_made_under_detection_is_named(made, how):
    _, file = made
    with torchnan.detect():
        package = torch._inductor.aoti_load_package(str(file) if how == "path" else io.BytesIO(file.read_bytes()))
    assert session_of(package, torch.ones(4), torch.ones(4)).findings == []
    seen = torch.ones(4)
    (finding,) = session_of(package, torch.tensor([0.0, 1.0, 1.0, 1.0]), seen).findings
    assert seen.tolist() == [1, 2, 1, 1]
    assert (finding.op, finding.kind, finding.phase, finding.module) == ("aten::log", "inf", "forward", "layers.1")
    lines = inspect.getsource(inspect.getmodule(Model)).splitlines()
    assert lines[finding.line - 1].endswith("# LOG")
    assert finding.file == __file__
    assert finding.compiled.region.startswith("AOTInductor package /")
    assert (finding.compiled.replay, finding.compiled.obstacle) == ("traced", None)


def test_a_bad_input_of_a_package_is_the_cause(made):
    _, file = made
    with torchnan.detect():
        package = torch._inductor.aoti_load_package(str(file))
    x = torch.frombuffer(bytearray(b"\xff" * 16), dtype=torch.float32)
    assert [finding.origin for finding in session_of(package, x, torch.ones(4)).findings] == ["input"]


@pytest.mark.parametrize("how", ["overwritten", "replaced"])
def test_a_package_is_not_replayed_with_other_weights(made, how):
    model, file = made
    weights = model.layers[0]
    with torchnan.detect():
        package = torch._inductor.aoti_load_package(str(file))
        if how == "replaced":
            names = package.get_constant_fqns()
            package.load_constants({name: model.get_parameter(name) for name in names}, check_full_update=True)
    with torch.no_grad():
        before = weights.bias.detach().clone()
        if how == "overwritten":
            weights.bias.zero_()
    (finding,) = session_of(package, torch.zeros(4), torch.ones(4)).findings
    assert torch.equal(weights.bias, before)
    assert (finding.origin, finding.compiled.obstacle) == ("compiled", packages.OTHER_WEIGHTS)


def test_weights_of_a_package_are_not_held():
    graph = packaged_graph.graph_of(torch.export.export(Net(), (torch.ones(4), torch.ones(4))).module())
    gc.collect()
    assert graph.alive_weights() is None


def test_overwritten_arguments_are_known_from_the_graph_of_a_package():
    net = Net()
    graph = packaged_graph.graph_of(torch.export.export(net, (torch.ones(4), torch.ones(4))).module())
    assert (graph.overwritten, graph.keeps_state()) == ([0, 2], True)
    assert graph.alive_weights() is not None
    example = (torch.ones(4), 3, torch.ones(4))
    graph = packaged_graph.graph_of(torch.export.export(Model(), example, {"scale": 2.5}).module())
    assert (graph.overwritten, graph.keeps_state()) == ([3], False)
