"""A scaling curve: its runs and its verdict."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.cli import scaling as command
from cloudtrain.cli.scaling import read_sizes
from cloudtrain.errors import UsageError
from cloudtrain.planning.plan import Plan
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.run import Run
from cloudtrain.submission.scaling import (
    Measurement,
    ScalingCurve,
    check_reports,
    measurement_of,
    scaled_plans,
    verdict,
)
from tests.support.in_process import call
from tests.support.samples import AWS_ACCOUNT, BORN, write_events

# The verdict on a scaling curve: how many ranks to take, how sure that is, and what to try.

GPUS = "GPU"
WINDOWS = (0.98, 0.99, 1.0, 1.0, 1.0, 1.01, 1.02)
"""Difference between windows on a quiet machine."""


def measurement(
    ranks: int, rate: float, windows: tuple[float, ...] = WINDOWS, **fields: Any
) -> Measurement:
    rates = tuple(rate * window for window in windows)
    return Measurement(ranks=ranks, windows=rates, run=f"digits-{ranks}", **fields)


def curve(*rates: float, **fields: Any) -> ScalingCurve:
    """With 1, 2, 4, ... ranks."""
    return ScalingCurve([measurement(2**at, rate, **fields) for at, rate in enumerate(rates)])


def test_one_is_the_answer_where_more_hardly_help() -> None:
    scaling_curve = curve(100, 110, 129)
    assert (
        verdict(scaling_curve, GPUS)
        == "use 1 GPU: 4 take 3.1 times the GPU time per sample and are only 1.3 times as fast"
    )
    assert verdict(curve(100, 101), "process") == (
        "use 1 process: 2 take 2.0 times the process time per sample and are no faster"
    )
    assert verdict(curve(100, 60), GPUS) == "use 1 GPU: 2 are slower, 0.60 times as fast"


def test_the_best_may_lie_in_between() -> None:
    assert verdict(curve(100, 180, 216), GPUS) == (
        "2 GPUs are best: 1.8 times as fast as 1, efficiency 0.90; "
        "4 take 1.7 times the GPU time per sample and are only 1.2 times as fast"
    )


def test_known_prices_decide_instead_of_the_number_of_ranks() -> None:
    dear = ScalingCurve(
        [measurement(1, 100, usd_per_hour=3.6), measurement(4, 120, usd_per_hour=14.4)]
    )
    assert (
        verdict(dear, GPUS)
        == "use 1 GPU: 4 cost 3.3 times as much per sample and are only 1.2 times as fast"
    )
    assert dear.points[0].usd_per_million == pytest.approx(10)
    same_machine = ScalingCurve(
        [measurement(1, 100, usd_per_hour=3.6), measurement(4, 200, usd_per_hour=3.6)]
    )
    assert (
        verdict(same_machine, GPUS)
        == "4 GPUs are best: 2.0 times as fast as 1, at 0.5 times the cost of a sample"
    )


def test_the_curve_goes_on_without_a_number_of_ranks_that_failed() -> None:
    scaling_curve = ScalingCurve(
        [Measurement(ranks=1, failure="out of memory"), measurement(2, 100), measurement(4, 190)]
    )
    assert scaling_curve.base == 2
    assert scaling_curve.failures == {1: "out of memory"}
    assert [(point.ranks, round(point.efficiency, 6)) for point in scaling_curve.points] == [
        (2, 1),
        (4, 0.95),
    ]
    assert verdict(scaling_curve, GPUS) == "scales well to 4 GPUs: efficiency 0.95"
    alone = ScalingCurve([measurement(1, 100), Measurement(ranks=2, failure="out of memory")])
    assert verdict(alone, GPUS) == "only 1 GPU could be measured: there is nothing to compare"


# The runs of a scaling curve: what is the same in all of them, what is refused before, and what
# they have measured.

JOB = {"name": "digits", "args": {"batch-size": 64}, "resources": {"processes": 2}}


@pytest.fixture
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(
        "cloudtrain_launcher.host.os.sched_getaffinity", lambda _: {0, 1}, raising=False
    )
    return folder.parent / "data"


def plans(
    job: dict[str, Any], *sizes: int, provider: str = "local"
) -> tuple[dict[int, Plan], Plan]:
    def make(overrides: Sequence[str]) -> Plan:
        return cloudtrain.plan(cloudtrain.load(job, overrides), provider)

    base = make(())
    return scaled_plans(make, base, sizes), base


def arguments(plan: Plan) -> Any:
    return plan.spec.args.values


def test_only_the_ranks_differ_between_the_runs(home: Path) -> None:
    planned, _ = plans({**JOB, "limits": {"restarts": 3, "max_runtime": "2 h"}}, 1, 2, 4)
    assert [plan.spec.resources.processes for plan in planned.values()] == [1, 2, 4]
    assert {plan.spec.resources.nodes for plan in planned.values()} == {1}
    assert all(arguments(plan) == {"batch-size": 64} for plan in planned.values())
    assert {plan.spec.limits.max_runtime for plan in planned.values()} == {1800}
    assert {plan.spec.limits.restarts for plan in planned.values()} == {0}
    assert {plan.spec.env["OMP_NUM_THREADS"] for plan in planned.values()} == {"1"}, (
        "four ranks have two cores"
    )
    assert len({plan.run_id for plan in planned.values()}) == 3


def test_a_job_of_several_nodes_keeps_its_processes_per_node(home: Path) -> None:
    planned, _ = plans({**JOB, "resources": {"nodes": 2, "processes": 2}}, 1, 2, 4)
    shape = [
        (plan.spec.resources.nodes, plan.spec.resources.processes) for plan in planned.values()
    ]
    assert shape == [(1, 1), (1, 2), (2, 2)]
    with pytest.raises(
        UsageError, match="with 3 ranks: the job has 2 on a node, which is no whole number of nodes"
    ):
        plans({**JOB, "resources": {"nodes": 2, "processes": 2}}, 2, 3)


def test_a_program_that_does_not_report_its_throughput_is_told_the_two_lines(home: Path) -> None:
    Path("train.py").write_text("print('training')\n")
    _, base = plans({"entrypoint": "train.py"}, 1, 2)
    with pytest.raises(UsageError, match=r"train.py does not report samples_per_s") as refused:
        check_reports(base, None)
    assert "log_metrics(step=step, samples_per_s=" in (refused.value.hint or "")
    Path("train.py").write_text(
        "from cloudtrain_job import log_metrics\nlog_metrics(samples_per_s=1)\n"
    )
    planned, base = plans({"entrypoint": "train.py"}, 1, 2)
    check_reports(base, None)
    rules = planned[1].context.trial
    assert rules is not None
    assert (rules.metric, rules.until, rules.rungs, rules.measures) == (
        "samples_per_s",
        10,
        (),
        True,
    )


def a_run(data: Path, *events: dict[str, Any], state: str = "succeeded", reason: str = "") -> Run:
    folder = RunStore(data).create(f"a-{len(list(data.glob('runs/*'))) + 1}", {})
    write_events(folder, BORN, *({"time": 2.0, "node": 0, "rank": 0, **event} for event in events))
    write_events(folder, {"type": "ended", "time": 9.0, "state": state, "reason": reason})
    return Run(folder)


def measured(run: Run, ranks: int = 2) -> Measurement:
    return measurement_of(run, run.cached_status(), ranks, None)


def rates(*samples_per_s: float) -> list[dict[str, Any]]:
    """Two reports of the warm-up, and these."""
    return [
        {"type": "metrics", "seq": at, "step": at, "values": {"samples_per_s": rate}}
        for at, rate in enumerate([1.0, 50.0, *samples_per_s], start=1)
    ]


def test_the_first_two_reports_do_not_count(home: Path) -> None:
    assert measured(a_run(home, *rates(100.0, 101.0, 99.0))).windows == (100.0, 101.0, 99.0)
    assert measured(a_run(home, *rates())).failure == "it reported no samples_per_s"


@pytest.mark.parametrize("text", ["", "1", "2,2", "1,a", "0,2", "-1,2"])
def test_what_is_no_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--scaling"):
        read_sizes(text)


def fake_runs(
    monkeypatch: pytest.MonkeyPatch, data: Path, *full: float | BaseException | None
) -> list[int]:
    """Simulate runs with this time per step, failure (None) or interruption; return the numbers of
    ranks in order.
    """
    started = list[int]()
    script = iter(full)

    def run(plan: Plan, _: object) -> Any:
        started.append(plan.processes)
        seconds = next(script)
        if isinstance(seconds, BaseException):
            raise seconds
        messages = (
            a_run(data, *rates(64 / seconds))
            if seconds
            else a_run(data, state="failed", reason="out of memory")
        )
        return messages, messages.cached_status()

    monkeypatch.setattr(command, "_run", run)
    return started


def test_what_costs_money_is_priced_asked_for_and_runs_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AWS_ACCOUNT.items():
        monkeypatch.setenv(name, value)
    Path("job.yaml").write_text("name: digits\nresources: {gpu: T4, gpus: 1}\n")
    limits = list[float | None]()
    monkeypatch.setattr(command, "confirm_cost", lambda _, usd: limits.append(usd))
    started = fake_runs(monkeypatch, home, 0.1, 0.09)
    shown = call("diagnose", "job.yaml", "--scaling", "1,4", "--provider", "aws")
    assert started == [1, 4]
    (usd,) = limits
    assert usd is not None
    assert f"cost        at most {usd:.2f} USD together, by their limits" in shown.err
    assert "1 x ml.g4dn.12xlarge (4 x T4-16GB, EFA), us-east-1, 4.89 USD/h" in shown.err
    assert "USD per million" in shown.out
    assert (
        "use 1 GPU: 4 cost 6.0 times as much per sample and are only 1.1 times as fast" in shown.out
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_measurement_that_is_told_to_end_stops_its_run_as_ctrl_c_does(
    home: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    Path("job.yaml").write_text("name: digits\n")
    stopped = list[int]()
    monkeypatch.setattr(command, "_run", lambda *_: signal.raise_signal(number))
    monkeypatch.setattr(command, "_stop", lambda plan: stopped.append(plan.processes))
    before = signal.signal(number, signal.SIG_DFL)
    try:
        assert call("diagnose", "job.yaml", "--scaling", "1,2").code == 130
        assert signal.getsignal(number) == signal.SIG_DFL, "afterwards as before"
    finally:
        signal.signal(number, before)
    assert stopped == [1]
