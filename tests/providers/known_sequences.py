"""Sequences of a `CloudMachine` that once went wrong, or that are rare, and mistakes to plant."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import cloudtrain
from cloudtrain.errors import CloudError, Outcome, RunExists
from cloudtrain.providers import get_provider
from cloudtrain.providers.shared.idempotent_create import Attempt
from cloudtrain.runs.logs import Observation
from cloudtrain.runs.state import RunState
from cloudtrain_wire.events import Ended
from tests.fakes.messages import FaultKind
from tests.providers.cloud_machine import CloudMachine
from tests.providers.faults import PERMANENT
from tests.providers.sites import ALWAYS, JOBS, strikes_of
from tests.providers.strikes import TRANSIENT, Blow, FirstTry, Kill, Meanwhile, Strike

Sequence = Callable[[CloudMachine], object]


def strikes(text: str, looks_before: int = 0) -> tuple[Blow, ...]:
    """Return strikes: `create:lost@2x9` has nine creations lost from the second on.

    `looks_before`: number of calls `look` that are not struck.
    """
    found = []
    for call, kind, nth, times in strikes_of(text):
        first = nth + (looks_before if call == "look" else 0)
        found.append(Strike(kind=kind, call=call, nth=first, times=times))
    return tuple(found)


EXECUTED = {
    "a page for an answer": "create:html",
    "an answer cut off": "create:truncated",
    "an empty answer": "create:empty",
    "created and yet an error": "create:failed_afterx200",
    "unreadable for good": "create:htmlx200 look:unseenx200",
    "an error, then cut off": "create:error create:truncated@2",
    "lost, then denied": "create:lost create:denied@2x200 look:unseen",
    "lost, then throttled": "create:lost create:throttle@2x200 look:unseenx200",
    "lost, then a proxy": "create:lost create:proxy@2x200 look:errorx200",
    "lost, and no tags yet": "create:lost tags:unseenx200",
    "lost, and unreadable looks": "create:lostx200 look:emptyx200",
    "lost, and tags denied": "create:lostx200 tags:deniedx200",
    "lost, and tags expired": "create:lostx200 tags:expiredx200",
    "lost, and tags throttled": "create:lostx200 tags:throttle",
}
"""Strikes in a submit whose request is executed, whatever answer the client gets."""


def doubt_and_rerun(blows: str, machine: CloudMachine) -> None:
    """Submit with a doubtful answer, and rerun runs that may continue."""
    run_id = machine.submit("here", strikes(blows, machine.site.looks_before))
    machine.rerun(run_id, "here")
    machine.status(run_id, "here")


def submit_late(machine: CloudMachine) -> str:
    """Submit a job that the cloud has only once its absence was believed; return its run."""
    run_id = machine.submit("here", strikes("create:latex200"))
    machine.let_time_pass(70)
    machine.status(run_id, "here")
    machine.deliver_late_requests()
    return str(run_id)


def arrive_late(verb: str, machine: CloudMachine) -> None:
    """Look for a job that appears when its absence was believed already."""
    run_id = submit_late(machine)
    if verb in ("list_runs", "adopt"):
        getattr(machine, verb)("here")
    else:
        getattr(machine, verb)(run_id, "here")
    machine.status(run_id, "here")


def arrive_late_in_silence(verb: str, machine: CloudMachine) -> None:
    """Ask for a job that appears late while the cloud does not answer."""
    run_id = submit_late(machine)
    getattr(machine, verb)(run_id, "here", strikes("look:expiredx200"))


def strike_each_request(
    kinds: Iterable[FaultKind], times: int, machine: CloudMachine, *, thorough: bool
) -> None:
    """Strike each request of a submit in turn, unless `thorough` with one kind of fault each."""
    several = tuple(kinds)
    number = len(machine.requests(lambda: machine.submit("here", is_new=True)))
    for nth in range(1, number + 1):
        for kind in several if thorough else several[nth % len(several) :][:1]:
            machine.submit("here", (Strike(kind=kind, nth=nth, times=times),), is_new=True)


def fail_first_tries(kind: FaultKind, machine: CloudMachine) -> None:
    """Submit a new source, and then the same one, through a fault in each kind of request."""
    for is_new in (True, False):
        machine.site.reconnect()
        machine.submit("here", (FirstTry(kind),), is_new=is_new)


def kill_at_each_request(machine: CloudMachine) -> None:
    """Kill the client at each request of a submit."""
    number = len(machine.requests(lambda: machine.submit("here", is_new=True)))
    for nth in range(1, number + 1):
        run_id = machine.submit("here", (Kill("", nth, is_executed=True),), is_new=True)
        machine.status(run_id, "here")
    machine.rerun(run_id, "here")
    run_id = machine.submit("here", (Kill("create", 1, is_executed=False),))
    machine.status(run_id, "here")
    machine.let_time_pass(70)
    machine.status(run_id, "here")


def stop_blindly(kind: FaultKind, machine: CloudMachine) -> None:
    """Stop jobs whose state cannot be read."""
    for call in ("observe", "log"):
        run_id = machine.submit("here")
        machine.print_line(run_id)
        machine.start_running(run_id, saves=True)
        times = ALWAYS if kind in PERMANENT else 3
        machine.stop(run_id, "here", (Strike(kind=kind, call=call, times=times),))


def stop_in_doubt(kind: FaultKind, machine: CloudMachine) -> None:
    """Stop a job by requests that are refused, or whose answers are lost."""
    run_id = machine.submit("here")
    machine.let_time_pass(400)
    refused = Strike(kind=kind, call="stop", times=ALWAYS)
    machine.stop(run_id, "here", (refused,))
    machine.status(run_id, "here")
    machine.stop(run_id, "here", (refused, *strikes("observe:expiredx200")))
    machine.stop(run_id, "here", (Meanwhile("ends", "stop", 1), refused))
    machine.stop(run_id, "here")


def stop_through_faults(kind: FaultKind, machine: CloudMachine) -> None:
    """Stop jobs that wait and that run through a fault in each kind of request."""
    for is_running in (False, True):
        run_id = machine.submit("here")
        if is_running:
            machine.start_running(run_id, saves=True)
        machine.site.reconnect()
        machine.stop(run_id, "here", (FirstTry(kind),))


def end_during_a_stop(machine: CloudMachine) -> None:
    """Have a job end while it is being stopped."""
    for saves in (True, False):
        run_id = machine.submit("here")
        machine.start_running(run_id, saves=saves)
        machine.stop(run_id, "here", (Meanwhile("ends", "stop", 1),))
        run_id = machine.submit("here")
        machine.stop(run_id, "here", (Meanwhile("ends", "observe", 1),))


def stop_another_machine_s_job(machine: CloudMachine) -> None:
    """Stop a job from a machine that did not submit it."""
    run_id = machine.submit("here")
    machine.adopt("there")
    machine.stop(run_id, "there")
    machine.status(run_id, "here")


def follow_a_log(machine: CloudMachine) -> None:
    """Read a log through faults, and once more when its job is over."""
    run_id = machine.submit("here")
    for kind in (*TRANSIENT, *PERMANENT):
        machine.print_line(run_id, 0)
        machine.print_line(run_id, 1)
        machine.logs(run_id, "here", (FirstTry(kind),))
    machine.wait(run_id, "here", strikes("observe:errorx3"))
    machine.end(run_id)
    machine.wait(run_id, "here", strikes("log:deniedx200"))
    machine.logs(run_id, "here")


def follow_through_faults(machine: CloudMachine) -> None:
    """Follow a log while the cloud does not answer for a while."""
    run_id = machine.submit("here")
    for kind in TRANSIENT:
        machine.print_line(run_id, 0)
        machine.print_line(run_id, 1)
        faults = [Strike(kind=kind, call=call, times=10) for call in ("observe", "log")]
        machine.wait(run_id, "here", tuple(faults), follows=True)
        each_other = [Strike(kind=kind, nth=nth) for nth in range(1, 40, 2)]
        machine.wait(run_id, "here", tuple(each_other), follows=True)
    machine.end(run_id)
    machine.wait(run_id, "here", follows=True)
    machine.logs(run_id, "here")


def fetch_through_faults(machine: CloudMachine) -> None:
    """Fetch results while requests fail, each at least once."""
    run_id = machine.submit("here")
    machine.end(run_id)
    machine.wait(run_id, "here")
    number = len(machine.requests(lambda: machine.fetch(run_id, "here")))
    for kind in TRANSIENT:
        machine.fetch(run_id, "here", (FirstTry(kind),))
    for nth in range(1, number + 1):
        machine.site.reconnect()
        machine.fetch(run_id, "here", (Strike(kind=PERMANENT[nth % 2], nth=nth),))
    machine.fetch(run_id, "here")
    machine.fetch(run_id, "there")


def take_a_name(machine: CloudMachine) -> None:
    """Submit under a name that another machine uses, or takes meanwhile."""
    run_id = machine.submit("here")
    machine.submit_a_taken_name(run_id, "there")
    for call in ("prepare", "create"):
        taken = machine.submit("here", (Meanwhile("rival", call, 1),))
        machine.status(taken, "here")
        machine.status(taken, "there")


def list_others(machine: CloudMachine) -> None:
    """List the jobs of another machine through faults, and those of strangers not."""
    run_id = machine.submit("here")
    machine.add_a_job_of_a_stranger(run_id, copies_tags=True)
    machine.add_a_job_of_a_stranger(run_id, copies_tags=False)
    machine.adopt("there", strikes("list:deniedx200"))
    machine.adopt("there", (FirstTry("lost"),))
    machine.print_line(run_id)
    machine.end(run_id)
    machine.adopt("there")
    machine.logs(run_id, "there")


def look_before_it_is_shown(machine: CloudMachine) -> None:
    """Look at a job, and stop it, before the cloud shows it."""
    for is_stop in (False, True):
        machine.ask_before_it_is_shown(machine.submit("here"), times=2, is_stop=is_stop)


KNOWN: dict[str, Sequence] = {
    **{case: partial(doubt_and_rerun, blows) for case, blows in EXECUTED.items()},
    **{
        f"late, then {verb}": partial(arrive_late, verb)
        for verb in ("status", "list_runs", "rerun", "stop", "adopt")
    },
    **{
        f"late and silent, then {verb}": partial(arrive_late_in_silence, verb)
        for verb in ("status", "rerun", "stop")
    },
    **{f"each request first {kind}": partial(fail_first_tries, kind) for kind in TRANSIENT},
    "killed at each request": kill_at_each_request,
    **{
        f"blind stop, {kind}": partial(stop_blindly, kind)
        for kind in ("throttle", "error", "lost", *PERMANENT)
    },
    **{f"stop {kind}": partial(stop_in_doubt, kind) for kind in ("denied", "expired", "lost")},
    **{
        f"stop, each request first {kind}": partial(stop_through_faults, kind) for kind in TRANSIENT
    },
    "ends during a stop": end_during_a_stop,
    "stop from another machine": stop_another_machine_s_job,
    "a log": follow_a_log,
    "a log that is followed": follow_through_faults,
    "results": fetch_through_faults,
    "a name in use": take_a_name,
    "jobs of others": list_others,
    "not shown yet": look_before_it_is_shown,
}


class Mistake(NamedTuple):
    """A mistake in the product: how to make it, a sequence that it breaks, and what is found."""

    plant: Callable[[pytest.MonkeyPatch, str], None]
    sequence: Sequence
    found: str
    is_rare: bool = False
    """It needs one kind of fault in one request, or several steps in one order."""


def _wrap(
    patch: pytest.MonkeyPatch, provider: str, method: str, wrong: Callable[..., object]
) -> None:
    """Replace a method of a provider by `wrong`, which gets the right one first."""
    right = getattr(get_provider(provider), method)
    patch.setattr(
        type(get_provider(provider)), method, lambda _, *args, **more: wrong(right, *args, **more)
    )


def _believe_silence(patch: pytest.MonkeyPatch, provider: str) -> None:
    patch.setattr(Attempt, "outcome", property(lambda _: Outcome.REFUSED))


def _record_nothing(patch: pytest.MonkeyPatch, provider: str) -> None:
    def sending(attempt: Attempt) -> None:
        attempt.requests += 1
        attempt.is_refused = False

    patch.setattr(Attempt, "sending", sending)


def _believe_absence(patch: pytest.MonkeyPatch, provider: str) -> None:
    patch.setattr(RunState, "may_have_started", property(lambda _: False))


def _send_again(patch: pytest.MonkeyPatch, provider: str) -> None:
    again: list[object] = []

    def start(right: Callable[..., Any], plan: Any, *others: Any) -> Any:
        try:
            return right(plan, *others)
        except CloudError as error:
            if error.outcome is Outcome.UNKNOWN and not again:
                again.append(plan)
                job = cloudtrain.load(JOBS[provider])
                cloudtrain.submit(cloudtrain.plan(job, provider, data_dir=plan.context.data_dir))
            raise

    _wrap(patch, provider, "start", start)


def _forget_tags(patch: pytest.MonkeyPatch, provider: str) -> None:
    def render(right: Callable[..., Any], *args: Any, **more: Any) -> Any:
        request = right(*args, **more)
        document = {**request.document}
        member = "Tags" if "Tags" in document else "tags"
        document[member] = type(document[member])()
        return replace(request, document=document)

    _wrap(patch, provider, "render", render)


def _forget_the_stop(patch: pytest.MonkeyPatch, provider: str) -> None:
    def stop(_: object, run: object, state: object, record: Callable[..., None]) -> bool:
        ended = Ended(time=time.time(), state="stopped", reason="stop requested")
        record(Observation(events=[ended]))
        return True

    _wrap(patch, provider, "stop", stop)


def _adopt_a_stranger(patch: pytest.MonkeyPatch, provider: str) -> None:
    def start(right: Callable[..., Any], plan: Any, *others: Any) -> Any:
        try:
            return right(plan, *others)
        except RunExists:
            return {"name": plan.run_id, "arn": "a:b:c:d:123456789012:e", "url": ""}

    _wrap(patch, provider, "start", start)


def _miss_jobs(patch: pytest.MonkeyPatch, provider: str) -> None:
    _wrap(patch, provider, "discover_runs", lambda right, *args: [*right(*args)][1:])


def _end_too_early(patch: pytest.MonkeyPatch, provider: str) -> None:
    def observe(right: Callable[..., Any], run: Any, state: RunState) -> Any:
        yield from right(run, state)
        if state.ref is not None and not state.has_ended:
            yield Observation(events=[Ended(time=time.time(), state="failed", reason="gone")])

    _wrap(patch, provider, "observe", observe)


def _fetch_a_part(patch: pytest.MonkeyPatch, provider: str) -> None:
    def fetch(
        right: Callable[..., Any], run: Any, state: Any, names: Any, folder: Path, *m: Any
    ) -> Any:
        found = right(run, state, names, folder, *m)
        (folder / "model" / "weights").unlink(missing_ok=True)
        return found

    _wrap(patch, provider, "fetch", fetch)


def _finish_and_fetch(machine: CloudMachine) -> None:
    run_id = machine.submit("here")
    machine.end(run_id)
    machine.fetch(run_id, "here")


def _submit_and(verb: str, machine: CloudMachine) -> None:
    run_id = machine.submit("here")
    machine.every_job_has_our_tags()
    if verb == "adopt":
        machine.adopt("there")
    else:
        getattr(machine, verb)(run_id, "here")


LOST = partial(doubt_and_rerun, "create:lostx200 look:unseenx200")
PLANTED = {
    "a lost answer is believed": Mistake(_believe_silence, LOST, "a job was denied", is_rare=True),
    "a second send after a doubtful one": Mistake(_send_again, LOST, "a second job", is_rare=True),
    "a request is not recorded": Mistake(_record_nothing, LOST, "0 of"),
    "an absence is believed for good": Mistake(
        _believe_absence, partial(arrive_late, "status"), "a job was denied", is_rare=True
    ),
    "a job without tags": Mistake(_forget_tags, partial(_submit_and, "status"), "without the tags"),
    "a stop is forgotten": Mistake(
        _forget_the_stop, partial(_submit_and, "stop"), "a stop did not reach|a job was lost"
    ),
    "a stranger's job is taken": Mistake(_adopt_a_stranger, take_a_name, "a name in use was taken"),
    "a list misses a job": Mistake(_miss_jobs, partial(_submit_and, "adopt"), "missed a job"),
    "an end that is none": Mistake(
        _end_too_early, partial(_submit_and, "status"), "a job was lost"
    ),
    "a part of the results": Mistake(
        _fetch_a_part, _finish_and_fetch, "a fetch brought", is_rare=True
    ),
}
