"""Walk over the things that a job needs: the answers of `doctor` and `check --online`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cloudtrain.api import jobs
from cloudtrain.api.notification import refusals
from cloudtrain.api.preflight import preflight
from cloudtrain.catalog.machines import architecture_of
from cloudtrain.checkup import Check, Question
from cloudtrain.declaration import declaration_of
from cloudtrain.errors import CloudError, CloudtrainError, SpecError
from cloudtrain.providers import get_provider
from cloudtrain.providers.docker.checks import engine_check
from cloudtrain.providers.docker.images import inspect_image, is_named
from cloudtrain.providers.local.checkup import data_folder_check
from cloudtrain.runs.store import NOTIFY_MARKS, RunStore
from cloudtrain.settings import DEFAULT_PROVIDER
from cloudtrain.spec.sources import FILE

if TYPE_CHECKING:
    from cloudtrain.errors import Issue
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.target import Target
    from cloudtrain.spec.model import JobSpec

MACHINE = DEFAULT_PROVIDER
"""Provider that checks this machine."""


def doctor(
    provider: str | None = None,
    job: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    data_dir: str | None = None,
) -> Iterator[tuple[str, Check]]:
    """Yield a check for each thing that a job needs, as its answer comes, with its place.

    `provider`: None for this machine only. `job`: the job that is checked; None: the job.yaml of
    this folder, or else the smallest job. Only reading calls are made. Raise SpecError for mistakes
    in the file of the job, UsageError for an unknown provider.
    """
    declaration = declaration_of(provider or MACHINE)
    try:
        plan = _plan(declaration.name, job, overrides, data_dir)
    except SpecError as error:
        for issue in error.issues:
            yield declaration.label, Question.of_setting(issue)
        return

    here = declaration_of(MACHINE).label
    if declaration.is_remote and plan.host.where:
        place = f"{declaration.label}, {plan.host.where}"
    else:
        place = declaration.label

    yield here, data_folder_check(plan)
    yield from ((here, check) for check in receiver_checks(Path(plan.context.data_dir)))
    is_built = plan.host.image is not None and plan.host.image.recipe is not None
    if plan.provider == MACHINE or (declaration.is_remote and is_built):
        yield here, engine_check()

    issues: Sequence[Issue] = plan.issues
    if plan.provider == MACHINE:  # the others' walks ask their engines and SDKs themselves
        issues = preflight(plan, starting=False)

    for issue in issues:
        if issue.is_error:
            yield place, Question.of_setting(issue)

    for check in platform_checks(plan):
        yield place, check


def receiver_checks(data_dir: Path) -> Iterator[Check]:
    """Yield a wrong check for each receiver that did not take its last messages, and why."""
    answers: dict[str, str] = {}
    for name in sorted(RunStore(data_dir).marked(NOTIFY_MARKS)):
        for line in refusals(data_dir, name):
            key, _, why = line.partition(": ")
            answers[key] = f"no, at the end of {name}: {why}"

    for key, answer in answers.items():
        yield Check(
            name="message",
            question=f"does notify.{key} take the messages of ended runs",
            answer=answer,
            verdict="wrong",
            fix=f"correct notify.{key} of your settings; cloudtrain status RUN sends it again",
        )


def _plan(
    provider: str, job: str | Path | None, overrides: Sequence[str], data_dir: str | None
) -> Plan:
    """Return the plan of the job; of the smallest one, without the files of this folder."""
    if job is None and Path(FILE).is_file():
        job = FILE
    if job is not None:
        return jobs.plan(jobs.load(job, overrides), provider, data_dir=data_dir)

    with TemporaryDirectory() as empty:
        smallest = jobs.load({"name": "doctor", "source": empty}, overrides)
        return jobs.plan(smallest, provider, data_dir=data_dir)


def exit_code(checks: Sequence[Check]) -> int:
    """Return 0 if nothing is wrong, 2 for something to fix, 4 for clouds that do not answer."""
    return min((check.exit_code for check in checks if check.is_wrong), default=0)


def platform_checks(plan: Plan) -> Iterator[Check]:
    """Yield the checks of a plan's platform and image. Only reading calls are made."""
    yield from get_provider(plan.provider).checkup(plan)
    yield from _image(plan.host, plan.spec)


def online_issues(plan: Plan, checks: Sequence[Check]) -> list[Issue]:
    """Return the issues of failed checks, each at the line of its setting.

    A thing that was not checked is a warning. Raise CloudError if the only problem is that the
    cloud does not answer or denies these credentials.
    """
    lost = [check for check in checks if check.is_wrong]
    if lost and all(check.exit_code == CloudError.exit_code for check in lost):
        raise CloudError(f"{lost[0].name}: {lost[0].answer}", hint=lost[0].fix or None)
    return [plan.located(issue) for check in checks if (issue := check.issue())]


def _image(target: Target, spec: JobSpec) -> Iterator[Check]:
    """Check that the spec's image is in its registry and built for the job's machines."""
    if not is_named(spec, target):
        return

    architecture = architecture_of(target.provider, target.instances)
    question = Question(
        "image", f"is {target.image_address} there, and built for {architecture}", ("image",)
    )

    try:
        image = inspect_image(target.image_address)
    except CloudtrainError as error:
        if isinstance(error, CloudError) and error.is_denied:
            yield question.failed(error)
        else:  # the cloud may reach a registry that this machine cannot reach
            yield question.not_checked(f"it cannot be looked up from here: {error.what}")

        return

    if image is None:
        yield question.wrong(
            "there is no such image", "look at its name and tag; cloudtrain image push pushes one"
        )
    elif image.architectures and architecture not in image.architectures:
        fix = f"docker build --platform linux/{architecture} …, and push it"
        yield question.wrong(f"it is for {', '.join(sorted(image.architectures))}", fix)
    else:
        yield question.found("it is")
