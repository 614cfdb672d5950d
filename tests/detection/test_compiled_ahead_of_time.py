"""Functions that ``aot_compile()`` compiled: detection leaves their guards alone, and checks what they return."""

from __future__ import annotations

import sys

import pytest
import torch
from torch._dynamo import aot_compile

import torchnan
from tests.support.processes import run

pytestmark = pytest.mark.breadth(2)

OBSTACLE = "a function that was compiled ahead of time has no graph"


def loss(x, w):
    return torch.log(x * w).sum()


def compiled(needs_grad=False):
    torch._dynamo.reset()
    inputs = torch.ones(4), torch.ones(4, requires_grad=needs_grad)
    return torch.compile(loss, fullgraph=True).aot_compile((inputs, {}))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("saved") / "loss"
    compiled().save_compiled_function(str(file))
    return file


def loaded(path):
    with path.open("rb") as file:
        return torch.compiler.load_compiled_function(file)


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_loaded_function_is_named_as_the_region_that_made_a_value(path, when):
    function = loaded(path)
    with torchnan.detect(action="log") as session:
        if when == "during":
            function = loaded(path)
        assert function(torch.ones(4), torch.ones(4)).item() == 0
        function(torch.zeros(4), torch.ones(4)).item()
    (finding,) = session.findings
    assert (finding.origin, finding.kind, finding.output) == ("compiled", "inf", 0)
    assert (finding.compiled.region, finding.compiled.file) == ("loss", __file__)
    assert (finding.compiled.replay, finding.compiled.obstacle) == ("none", OBSTACLE)
    assert session.stats()["internal_errors"] == 0
    assert function(torch.ones(4), torch.ones(4)).item() == 0  # after detection


def test_arguments_of_a_loaded_function_keep_their_origin(path):
    function = loaded(path)
    with torchnan.detect(action="log") as session:
        function(torch.zeros(4).log() * 0, torch.ones(4)).item()
    assert [finding.op for finding in session.findings] == ["aten::log"]


def test_a_gradient_is_that_of_the_region():
    function = compiled(needs_grad=True)
    w = torch.tensor([1e-45, 1.0, 1.0, 1.0], requires_grad=True)
    with torchnan.detect(action="log") as session:
        function(torch.ones(4), w).backward()
        torch.optim.SGD([w], lr=0.1).step()
    assert [(finding.origin, finding.phase) for finding in session.findings] == [("compiled", "backward")]


def test_a_function_that_was_compiled_under_detection_is_followed():
    with torchnan.detect(action="log") as session:
        function = compiled()
        function(torch.zeros(4), torch.ones(4)).item()
    (finding,) = session.findings
    assert (finding.op, finding.compiled.replay) == ("aten::log", "traced")
    assert function(torch.ones(4), torch.ones(4)).item() == 0  # after detection


def test_a_program_that_loads_dynamo_under_detection_is_followed(path):
    program = f"""
import torch, torchnan
with torchnan.detect(action="log") as session, open({str(path)!r}, "rb") as file:
    torch.compiler.load_compiled_function(file)(torch.zeros(4), torch.ones(4)).item()
print([finding.origin for finding in session.findings])
"""
    assert "['compiled']" in run([sys.executable, "-c", program]).stdout


def test_without_detection_these_functions_are_as_they_were():
    original = dict(vars(aot_compile.AOTCompiledFunction)), aot_compile.aot_compile_fullgraph
    with torchnan.detect():
        assert aot_compile.AOTCompiledFunction.guard_check is not original[0]["guard_check"]
    assert (dict(vars(aot_compile.AOTCompiledFunction)), aot_compile.aot_compile_fullgraph) == original
