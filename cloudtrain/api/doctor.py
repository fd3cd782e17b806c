"""Checks of a machine and an account before a job: the answers of `cloudtrain doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.api import jobs
from cloudtrain.catalog.machines import architecture_of
from cloudtrain.checkup import Check, Question
from cloudtrain.declaration import declaration_of
from cloudtrain.errors import CloudError, CloudtrainError
from cloudtrain.providers import get_provider
from cloudtrain.providers.docker.checks import engine_check
from cloudtrain.providers.docker.images import inspect_image, is_named
from cloudtrain.settings import DEFAULT_PROVIDER, load_settings
from cloudtrain.spec.sources import FILE

if TYPE_CHECKING:
    from cloudtrain.errors import Issue
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.target import Target
    from cloudtrain.settings import Settings
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
    """Yield the checks for a job, each as its answer comes, with its place: `this machine`.

    `provider`: None for this machine only. `job`: the job whose machines are checked; None: the
    job.yaml of this folder, or else the smallest job. Only reading calls are made. Raise SpecError
    for mistakes in the job, UsageError for an unknown provider.
    """
    source: str | Path | dict[str, str]
    if job is not None:
        source = job
    elif Path(FILE).is_file():
        source = FILE
    else:
        source = {"name": "doctor"}

    loaded = jobs.load(source, overrides)
    settings = load_settings(loaded.folder, {"data_dir": data_dir})
    provider = provider or MACHINE
    declaration = declaration_of(provider)
    machine = get_provider(MACHINE)
    here = declaration_of(MACHINE).label
    target = machine.target(settings, loaded.spec)

    for check in machine.checkup(settings, target, loaded.spec):
        yield here, check

    if declaration.is_remote or provider == MACHINE:  # other providers check it themselves
        yield here, engine_check()

    if provider != MACHINE:
        target = get_provider(provider).target(settings, loaded.spec)
        is_elsewhere = declaration.is_remote and target.where
        if is_elsewhere:
            place = f"{declaration.label}, {target.where}"
        else:
            place = declaration.label

        for check in platform_checks(provider, settings, target, loaded.spec):
            yield place, check


def exit_code(checks: Sequence[Check]) -> int:
    """Return 0 if all is well, 2 for something to fix, 4 for clouds that do not answer."""
    return min((check.exit_code for check in checks if check.is_wrong), default=0)


def platform_checks(
    provider: str, settings: Settings, target: Target, spec: JobSpec
) -> Iterator[Check]:
    """Yield missing settings, or else the checks of the provider's platform."""
    for issue in target.problems:
        yield Question.of_setting(issue)

    if not target.problems:
        yield from get_provider(provider).checkup(settings, target, spec)
        yield from _image(target, spec)


def online_checks(plan: Plan) -> list[Check]:
    """Return the checks of the platform for this plan. Only reading calls are made."""
    settings = load_settings(Path(plan.context.folder), {"data_dir": plan.context.data_dir})
    return list(platform_checks(plan.provider, settings, plan.host, plan.spec))


def online_issues(plan: Plan, checks: Sequence[Check]) -> list[Issue]:
    """Return the issues of failed checks, each at the line of its setting.

    A check without permission is a warning. Raise CloudError if the only problem is that the
    cloud does not answer or denies these credentials.
    """
    lost = [check for check in checks if check.is_wrong]
    if lost and all(check.exit_code == CloudError.exit_code for check in lost):
        raise CloudError(lost[0].answer, hint=lost[0].fix or None)
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
            yield question.not_applicable(f"it cannot be looked up from here: {error.what}")

        return

    if image is None:
        yield question.wrong(
            "there is no such image", "look at its name and tag; cloudtrain image push pushes one"
        )
    elif image.architectures and architecture not in image.architectures:
        fix = f"docker build --platform linux/{architecture} …, and push it"
        yield question.wrong(f"it is for {', '.join(sorted(image.architectures))}", fix)
    else:
        yield question.ok("it is")
