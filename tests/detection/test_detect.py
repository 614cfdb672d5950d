"""detect() as users use it: scope, decorator, nesting, threads, actions, return values."""

from __future__ import annotations

import sys
import threading
import warnings

import pytest
import torch

import torchnan


def make_nan() -> torch.Tensor:
    return torch.log(torch.tensor([1.0, -1.0]))  # HERE


def line_of(function, mark: str) -> int:
    import inspect

    source, first = inspect.getsourcelines(function)
    return first + next(i for i, text in enumerate(source) if mark in text)


def test_raises_at_the_first_harm_and_names_the_origin():
    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect():
            make_nan().sum().item()
    finding = raised.value.finding
    assert (finding.op, finding.kind, finding.origin, finding.phase) == ("aten::log", "nan", "op", "forward")
    assert (finding.file, finding.line) == (__file__, line_of(make_nan, "# HERE"))
    assert finding.stack[0].function == "make_nan"
    assert (finding.nan, finding.posinf, finding.neginf, finding.first_index) == (1, 0, 0, (1,))
    assert (finding.dtype, finding.shape, finding.strides, finding.device) == ("float32", (2,), (1,), "cpu")
    assert finding.harm.kind == "read"
    assert [step.op for step in finding.lineage] == ["aten::sum"]
    assert str(raised.value) == str(finding)


def test_is_a_runtime_error_with_a_traceback_of_the_users_line():
    with pytest.raises(RuntimeError, match="aten::log") as raised:
        with torchnan.detect():
            make_nan().sum().item()
    assert raised.traceback[0].path.name == "test_detect.py"


def test_yields_the_watch():
    with torchnan.detect(action="log") as watch:
        make_nan().sum().item()
    assert len(watch.findings) == 1
    assert watch.first == watch.findings[0]
    assert "aten::log" in watch.report()
    stats = watch.stats()
    assert stats["ops"] >= 3
    assert stats["checked"] >= 2
    assert stats["bytes"] >= 12
    assert stats["nonfinite"] == 2
    assert stats["findings"] == 1


def test_a_clean_run_reports_nothing():
    with torchnan.detect() as watch:
        torch.ones(3).log().sum().item()
    assert watch.findings == []
    assert watch.first is None
    assert watch.report() == "torchnan: no non-finite value has done harm"


def test_is_a_decorator_and_every_call_is_a_new_session():
    @torchnan.detect()
    def compute(x: torch.Tensor) -> float:
        return x.log().sum().item()

    assert compute(torch.ones(2)) == 0.0
    for _ in range(2):
        with pytest.raises(torchnan.NonFiniteError):
            compute(torch.tensor([-1.0]))


def test_nests_the_innermost_decides_and_all_keep_it():
    with torchnan.detect() as outer:
        with torchnan.detect(action="log") as inner:
            make_nan().sum().item()
        assert len(inner.findings) == len(outer.findings) == 1
        with pytest.raises(torchnan.NonFiniteError):
            make_nan().sum().item()


def test_can_be_entered_again():
    watch = torchnan.detect(action="log")
    for _ in range(2):
        with watch:
            with watch:
                make_nan().sum().item()
            assert torch.ones(1).item() == 1.0
    assert watch.findings[0].repeats == 1


def test_leaving_what_has_not_been_entered_is_refused_and_changes_nothing():
    with pytest.raises(RuntimeError, match=r"this detect\(\) has not been entered: use `with torchnan.detect\(\):`"):
        torchnan.detect().__exit__(None, None, None)
    parameter = torch.ones(1, requires_grad=True)
    parameter.grad = torch.ones(1)
    with torchnan.detect(action="log") as watch:
        torch.optim.SGD([parameter]).step()
        make_nan().sum().item()
    assert watch.first.step == 2  # its hooks on optimizers are there


def test_the_users_own_error_comes_through_as_it_is():
    with pytest.raises(ValueError, match="mine"):
        with torchnan.detect():
            held = make_nan()
            raise ValueError("mine")
    assert held.isnan().any()


def refused(x):
    ratio = x / x.sum()
    return torch.linalg.cholesky(ratio)


def test_an_error_that_may_come_of_a_value_has_its_report_below():
    with pytest.raises(torch.linalg.LinAlgError) as raised, torchnan.detect() as watch:
        refused(torch.zeros(2, 2))
    assert [finding.op for finding in watch.findings] == ["aten::div"]
    assert "torchnan" not in str(raised.value)
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == [str(watch.first)]


REFUSING = {
    "binary_cross_entropy": lambda x: torch.nn.functional.binary_cross_entropy(x.sigmoid(), torch.ones(10)),
    "bernoulli": lambda x: torch.bernoulli(x),
    "poisson": lambda x: torch.poisson(x),
    "normal": lambda x: torch.normal(torch.zeros(10), x),
    "multinomial": lambda x: torch.multinomial(x, 1),
    "cross_entropy": lambda x: torch.nn.functional.cross_entropy(torch.zeros(10, 5), x.long()),
    "gather": lambda x: torch.zeros(10, 5).gather(1, x.long()[:, None]),
    "take": lambda x: torch.zeros(10)[x.long()],
    "quantization": lambda x: torch.quantize_per_tensor_dynamic(x, torch.quint8, reduce_range=False),
}


@pytest.mark.parametrize("name", REFUSING)
def test_an_operator_that_refuses_a_nan_has_its_report_below(name):
    with pytest.raises((RuntimeError, IndexError)), torchnan.detect(action="log") as watch:
        values = (torch.zeros(10) - 1).log() * 2
        REFUSING[name](values)
    assert [finding.op for finding in watch.findings] == ["aten::log"]


@pytest.mark.parametrize("name", sorted(REFUSING.keys() - {"binary_cross_entropy", "quantization"}))
def test_an_operator_that_refuses_a_finite_number_has_no_report(name):
    with pytest.raises((RuntimeError, IndexError)), torchnan.detect() as watch:
        REFUSING[name](torch.full((10,), -20.0))
    assert watch.findings == []


def test_an_error_of_a_loop_is_logged_with_the_value_it_may_come_of():
    with pytest.raises(AssertionError), torchnan.detect(action="log") as watch:
        loss = torch.zeros(2).log().sum()
        assert torch.isfinite(loss), "loss is not finite"
    assert [finding.op for finding in watch.findings] == ["aten::log"]


def test_a_refused_matrix_with_finite_values_is_not_a_finding():
    with pytest.raises(torch.linalg.LinAlgError) as raised, torchnan.detect() as watch:
        torch.linalg.cholesky(-torch.eye(2))
    assert watch.findings == []
    assert not hasattr(raised.value, "__notes__")


def test_other_threads_take_part_when_they_enter():
    watch = torchnan.detect(action="log")
    seen = []

    def work() -> None:
        with watch:
            seen.append(make_nan().sum().item())

    with watch:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(seen) == 8
    assert watch.findings[0].repeats == 7
    assert watch.findings[0].thread != threading.get_native_id()


def test_counts_of_threads_stay_after_they_have_ended():
    scope = torchnan.detect()

    def work():
        for _ in range(2):
            with scope:
                torch.ones(3).sin()

    with scope:
        before = scope.stats()["ops"]
        for _ in range(20):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert scope.stats()["ops"] == before + 20 * 2 * 2


def test_threads_that_do_not_enter_are_left_alone():
    with torchnan.detect():
        thread = threading.Thread(target=lambda: make_nan().sum().item())
        thread.start()
        thread.join()


def test_action_warn_warns_once_per_origin_at_the_users_line():
    with pytest.warns(torchnan.NonFiniteWarning, match="aten::log") as caught:
        with torchnan.detect(action="warn"):
            for _ in range(3):
                make_nan().sum().item()
    assert len(caught) == 1
    assert (caught[0].filename, caught[0].lineno) == (__file__, line_of(make_nan, "# HERE"))


def test_action_may_be_a_callable():
    given = []
    with torchnan.detect(action=given.append):
        make_nan().sum().item()
    assert [finding.op for finding in given] == ["aten::log"]
    assert isinstance(given[0], torchnan.Finding)


def test_a_callable_that_fails_does_not_stop_the_program():
    def fail(finding):
        raise ZeroDivisionError("in the callback")

    with pytest.warns(RuntimeWarning, match="in the callback"):
        with torchnan.detect(action=fail) as watch:
            make_nan().sum().item()
            torch.zeros(1).log().item()
    assert watch.stats()["internal_errors"] == 2


def test_unused_values_are_one_warning():
    with pytest.warns(torchnan.NonFiniteWarning, match="nothing") as caught:
        with torchnan.detect() as watch:
            for _ in range(5):
                make_nan()
    assert len(caught) == 1
    assert [(finding.level, finding.harm.kind) for finding in watch.findings] == [("warning", "unused")]


def test_a_value_that_is_still_held_at_the_end_is_an_error():
    with pytest.raises(torchnan.NonFiniteError, match="still referenced"):
        with torchnan.detect():
            held = make_nan()
    assert held is not None


def test_when_origin_raises_at_the_operation_itself():
    with torchnan.detect(when="origin"):
        with pytest.raises(torchnan.NonFiniteError) as raised:
            make_nan()
    assert raised.value.finding.harm.kind == "origin"
    assert raised.value.__traceback__ is not None


@pytest.mark.parametrize(("kinds", "found"), [({"check_inf": False}, "nan"), ({"check_nan": False}, "inf")])
def test_kinds_can_be_asked_for_one_by_one(kinds, found):
    with torchnan.detect(action="log", **kinds) as watch:
        torch.log(torch.tensor([-1.0])).item()
        torch.log(torch.tensor([0.0])).item()
    assert [finding.kind for finding in watch.findings] == [found]


@pytest.mark.parametrize("skip", [("aten::log",), ("log",), ("aten::l*",), ["lo?"]])
def test_skipped_ops_and_their_consequences_are_never_checked(skip):
    with torchnan.detect(skip_ops=skip) as watch:
        held = make_nan() * 2
        held.sum().item()
        torch.sqrt(torch.tensor([4.0])).item()
    assert watch.findings == []


def test_findings_are_bounded_and_the_rest_counted():
    with torchnan.detect(action="log", max_findings=2) as watch:
        for op in (torch.log, torch.sqrt, torch.rsqrt, torch.log2):
            op(torch.tensor([-1.0])).item()
    assert len(watch.findings) == 2
    assert watch.stats()["dropped"] == 2
    assert "2 more findings" in watch.report()


def test_steps_are_marked_by_the_user():
    with torchnan.detect(action="log") as watch:
        watch.mark_step(4711)
        make_nan().sum().item()
    assert watch.first.step == 4711
    assert "at step 4711" in str(watch.first)
    with pytest.raises(TypeError, match="mark_step"):
        watch.mark_step("4711")


def test_steps_are_counted_by_the_optimizer_without_marks():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with torchnan.detect(action="log") as watch:
        for _ in range(3):
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()
        make_nan().sum().item()
    assert watch.first.step == 4


class Wrapper(torch.optim.Optimizer):
    """Calls the step of another optimizer, as ``ZeroRedundancyOptimizer`` does."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()


def test_an_optimizer_inside_another_one_counts_no_step_again():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = Wrapper(torch.optim.SGD([parameter], lr=0.1))
    with torchnan.detect(action="log") as watch:
        for _ in range(3):
            parameter.grad = torch.ones(2)
            optimizer.step()
        make_nan().sum().item()
    assert watch.first.step == 4


def test_optimizers_in_a_backward_pass_count_one_step():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    with torchnan.detect(action="log", when="origin") as watch:
        for step in range(3):
            x = model(torch.ones(1, 2))
            if step == 2:
                x.register_hook(lambda gradient: gradient / 0)
            x.sum().backward()
        make_nan().sum().item()
    assert {finding.step for finding in watch.findings if finding.phase == "backward"} == {3}
    assert watch.findings[-1].step == 4


def test_the_backward_pass_can_be_left_out():
    x = torch.zeros(2, requires_grad=True)
    with torchnan.detect(backward=False):
        x.sqrt().sum().backward()


def test_a_finding_survives_pickling_in_an_error():
    import pickle

    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect():
            make_nan().sum().item()
    copy = pickle.loads(pickle.dumps(raised.value))
    assert copy.finding == raised.value.finding
    assert str(copy) == str(raised.value)


def test_a_clean_run_prints_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torchnan.detect():
            parameter = torch.nn.Parameter(torch.ones(2))
            parameter.sum().backward()


class TestSetDetect:
    def test_turns_the_whole_program_on_and_off(self):
        watch = torchnan.set_detect(True, action="log")
        try:
            make_nan().sum().item()
            thread = threading.Thread(target=lambda: torch.sqrt(torch.tensor(-1.0)).item())
            thread.start()
            thread.join()
        finally:
            assert torchnan.set_detect(False) is None
        assert [finding.op for finding in watch.findings] == ["aten::log", "aten::sqrt"]
        make_nan().sum().item()
        assert len(watch.findings) == 2

    def test_a_second_one_takes_the_place_of_the_first(self):
        first = torchnan.set_detect(True, action="log")
        second = torchnan.set_detect(True, action="log")
        make_nan().sum().item()
        torchnan.set_detect(False)
        assert first.findings == []
        assert len(second.findings) == 1

    def test_threads_that_outlive_it_are_no_longer_watched(self):
        go, ready = threading.Event(), threading.Event()
        values = []

        def work() -> None:
            ready.set()
            assert go.wait(60)
            values.append(make_nan().sum().item())

        watch = torchnan.set_detect(True)
        thread = threading.Thread(target=work)
        thread.start()
        assert ready.wait(60)
        torchnan.set_detect(False)
        go.set()
        thread.join()
        assert len(values) == 1
        assert watch.findings == []

    def test_takes_a_bool(self):
        with pytest.raises(TypeError, match="True or False"):
            torchnan.set_detect("raise")


def test_the_operator_stats_has_every_count():
    """Fails when only the session's stats() counts it."""
    with torchnan.detect(action="log") as watch:
        torch.ones(2).exp()
        counted = torch.ops.torchnan.stats()
        assert set(watch.stats()) - {"skipped"} <= set(counted)
        assert counted["ops"] >= 2
