"""What one line does to many tensors is one finding, with the names of the others; no other cause makes room for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchnan
from tests.support.forked_python import run_forked_command
from torchnan import cli, findings
from torchnan.distributed.incidents import incidents

LAYERS = 20
NAMES = [f"{layer}.{name}" for layer in range(LAYERS) for name in ("weight", "bias")]


def model():
    return nn.Sequential(*[nn.Linear(3, 3) for _ in range(LAYERS)])


def with_zero_gradients():
    net = model()
    net(torch.zeros(1, 3)).sum().mul(0).backward()
    return net


def moving_average_of_nothing():
    net = model()
    shadow = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    net.load_state_dict({name: value / (1 - 0.9**0) for name, value in shadow.items()})
    return net(torch.ones(1, 3))


def plain_optimizer():
    net = with_zero_gradients()
    with torch.no_grad():
        for p in net.parameters():
            p.sub_(0.1 * p.grad / p.grad.norm())
    return net(torch.ones(1, 3))


class Normalized(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            p.sub_(0.1 * p.grad / p.grad.norm())


def torch_optimizer():
    net = with_zero_gradients()
    Normalized(net.parameters(), {}).step()
    return net(torch.ones(1, 3))


def normalized_gradients():
    net = with_zero_gradients()
    for p in net.parameters():
        p.grad = p.grad / p.grad.norm()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    return net(torch.ones(1, 3))


LOOPS = [moving_average_of_nothing, plain_optimizer, torch_optimizer, normalized_gradients]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_over_parameters_is_one_finding(loop):
    with torchnan.detect(action="log") as watch:
        kept = loop()
    assert kept is not None
    (finding,) = (one for one in watch.findings if one.level == "error")
    assert (finding.op, len(finding.others), finding.others_omitted) == ("aten::div", 39, 0)
    assert sorted([finding.harm.name, *finding.others]) == sorted(NAMES)
    first_names = ", ".join(finding.others[:4])
    assert f"\n  others    and 39 more: {first_names}, ...\n" in str(finding)


def test_log_show_and_page_name_the_others(tmp_path, capsys):
    log, page = tmp_path / "findings.jsonl", tmp_path / "page.html"
    with torchnan.detect(action="log", log=log):
        kept = moving_average_of_nothing()
    assert kept is not None
    read = findings.read(log)
    assert [sorted([one.harm.name, *one.others]) for one in read.findings] == [sorted(NAMES)]
    assert (read.damaged_lines, read.dropped) == (0, 0)
    shown = run_forked_command("show", str(log)).stdout
    assert "  others    and 39 more: " in shown
    assert shown.endswith(f"{log}: 1 finding\n")
    assert cli.main(["html", str(log), "-o", str(page)]) == 0
    capsys.readouterr()
    assert all(name in page.read_text() for name in NAMES)


def bad_parameters_then(log_of_zero, **options):
    """120 parameters that one line makes NaN, and then another cause."""
    with torchnan.detect(action="log", **options) as watch:
        for layer in range(60):
            net = nn.Linear(3, 3)
            net.load_state_dict({name: torch.zeros_like(p) / 0.0 for name, p in net.named_parameters()})
            net(torch.ones(1, 3))
            watch.mark_step(layer)
        log_of_zero()
    return watch


def test_another_cause_is_never_dropped_for_repetitions():
    watch = bad_parameters_then(lambda: torch.zeros(1).log().sum().item(), max_findings=2)
    assert [finding.op for finding in watch.findings if finding.level == "error"] == ["aten::div", "aten::log"]
    assert watch.stats()["dropped"] == 0


def test_findings_that_were_dropped_are_counted_in_log_show_and_page(tmp_path, capsys):
    log, page = tmp_path / "findings.jsonl", tmp_path / "page.html"
    with torchnan.detect(action="log", log=log, max_findings=2) as watch:
        for operation in (torch.log, torch.sqrt, torch.rsqrt, torch.log2):
            operation(torch.tensor([-1.0])).item()
    assert findings.read(log).dropped == 2
    assert "2 more findings were counted, not kept (max_findings=2)" in watch.report()
    told = "2 more findings counted, not kept (max_findings)"
    assert told in run_forked_command("show", str(log)).stdout
    assert cli.main(["html", str(log), "-o", str(page)]) == 0
    capsys.readouterr()
    assert told in page.read_text()


def test_a_finding_that_was_found_again_is_one_line_of_a_read_log(tmp_path):
    log = tmp_path / "findings.jsonl"
    for _ in range(2):
        with torchnan.detect(action="log", log=log) as watch:
            for step in range(5):
                watch.mark_step(step)
                torch.zeros(1).log().sum().item()
    assert len(log.read_text().splitlines()) == 4
    assert [finding.repeats for finding in findings.read(log).findings] == [4, 4]
    (story,) = incidents(findings.read(log).findings)
    assert (story.count, len(story.again)) == (10, 1)
    (streamed,) = incidents(findings.LogStream(log))
    assert len(streamed.again) == 1
