"""Views of drills: the plan, and the scorecard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cloudtrain.cli.output import command, count, table
from cloudtrain.cli.plan_view import headline
from cloudtrain.cli.terminal import one_line
from cloudtrain.planning.plan import Plan
from cloudtrain.submission.drills.scenario import DRILLED_HANG_SECONDS, Fault, Scenario, grace_of
from cloudtrain.submission.drills.scorecard import DrillResult, Scorecard
from cloudtrain.submission.drills.verdict import Verdict
from cloudtrain.units import format_duration

_HEADER = ("drill", "verdict", "steps lost", "took")
_INDENT = 11


def plan_lines(plan: Plan, scenarios: Sequence[Scenario]) -> Iterator[str]:
    """Yield what the drills do, and how long they take."""
    least = 1 + len(scenarios)
    most = 1 + 2 * len(scenarios)
    yield f"drill of {plan.spec.name}: {headline(plan)}; on this machine only, at no cost"
    drills = count(len(scenarios), "drill")
    yield (
        f"  1 undisturbed run, then {drills} of one run or two: about {least} to {most} times as"
        " long as the job"
    )
    for scenario in scenarios:
        yield f"  {scenario.name:<16} {scenario.action}"
    if any(scenario.fault is Fault.SIGTERM for scenario in scenarios):
        yield f"  grace period     {grace_of(plan)}"
    if any(scenario.fault is Fault.LOADER_STALLED for scenario in scenarios):
        hang = plan.spec.limits.hang
        shown = "0: never" if hang == 0 else f"{min(hang, DRILLED_HANG_SECONDS)} s for the drill"
        yield f"  limits.hang      {shown}"
    if plan.spec.sweep is not None:
        yield "  note: its section sweep plays no part: the job is drilled with its own values"


def scorecard_lines(card: Scorecard) -> Iterator[str]:
    """Yield the scorecard as a table, then the details of each drill and what to change."""
    history = card.reference.history
    compared = card.reference.trained.by
    steps = "" if history.last_step is None else f", {history.last_step:g} steps"
    yield f"{card.job}: undisturbed in {format_duration(card.reference_seconds)}{steps}; " + (
        f"runs are compared by {compared}" if compared else "no files or metrics to compare runs by"
    )
    yield ""
    yield table(map(_row, card.results), _HEADER)
    for result in card.results:
        yield ""
        yield from _details(card, result)
    if card.advice:
        yield ""
    for text in card.advice:
        yield f"hint: {text}"
    if card.interrupted:
        missing = ",".join(name for name in card.skipped)
        yield f"note: interrupted{f'; what was not done: --only {missing}' if missing else ''}"


def look_at(folder: str, *words: str) -> str:
    """Return the command that looks at a run of a drill."""
    return command("--data-dir", folder, *words)


def _row(result: DrillResult) -> tuple[str, ...]:
    finding = result.finding
    lost = "-" if finding.steps_lost is None else f"{finding.steps_lost:g}"
    return (
        result.scenario.name,
        finding.verdict.value,
        lost,
        format_duration(result.seconds) if result.runs else "-",
    )


def _details(card: Scorecard, result: DrillResult) -> Iterator[str]:
    finding = result.finding
    rows = []
    rows.append(("why" if finding.verdict is Verdict.SKIPPED else "done", result.injected))
    if finding.report:
        rows.append(("told", finding.report))
    if finding.report and result.remedy:
        rows.append(("remedy", result.remedy))
    if result.runs and finding.verdict is not Verdict.NOT_INJECTED:
        rows.append(("then", _outcome(result)))
    rows += [("change", text) for text in result.advice]
    if result.runs and finding.verdict is not Verdict.SAME:
        last = result.runs[-1]
        rows.append(
            (
                "look",
                look_at(
                    card.folder,
                    "diagnose" if last.state.state == "failed" and not last.overdue else "logs",
                    last.run,
                ),
            )
        )
    yield result.scenario.name
    for name, text in rows:
        yield f"  {name:<{_INDENT - 2}}{one_line(text)}"


def _outcome(result: DrillResult) -> str:
    """Describe the end of the runs: restarts, and the rerun."""
    first = result.runs[0]
    last = result.runs[-1]
    if first.overdue:
        return "nothing, until the drill ended it by its own limit"
    parts = []
    if first.state.restarts:
        parts.append(f"{count(first.state.restarts, 'restart')} in place")
    if first.state.state != "succeeded":
        seconds = first.history.stopping_seconds
        duration = (
            f" within {seconds:.1f} s"
            if seconds is not None and first.state.state == "stopped"
            else ""
        )
        parts.append(f"the run {first.state.state}{duration}")
    if result.finding.rerun:
        parts.append(f"its rerun {last.state.state}")
    elif first.state.state == "succeeded":
        parts.append("the run succeeded")
    return ", ".join(parts)
