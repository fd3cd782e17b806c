"""Parts of a `sweep` section and its budget that a tuning job cannot express. Pure.

After the API reference of CreateHyperParameterTuningJob and the developer guide's pages "How
hyperparameter tuning works", "Resource limits for automatic model tuning" and
"HyperbandStrategyConfig". Nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cloudtrain.errors import Issue, Keys, dotted, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import override_path, reserved_issues, spec_overrides
from cloudtrain.planning.tuned import sweep_of
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.request import FORM, section_of
from cloudtrain.providers.aws.request_fields import spec_issues, spec_path
from cloudtrain.providers.aws.service_model import TUNING_INPUT, request_violations
from cloudtrain.providers.aws.tuning_request import (
    CONFIG,
    DEFINED,
    FIELDS,
    SWEEP_FORM,
    comes_back,
    render,
)
from cloudtrain.providers.shared.sweep_rules import PORTABLE, ServiceLimits, service_issues
from cloudtrain.spec.search_space import MAX_CHOICES, Integers, Normal

_TAKEN = (*DEFINED, "AlgorithmSpecification.MetricDefinitions", "Tags")
"""Members of `aws.request` that reach the trials."""

MAX_NAME = 32
MAX_METRICS = 20
MAX_TRIALS = 10_000
DEFAULT_TRIALS = 750
"""Maximum number of trials; the larger one for random search and on request only."""
MIN_SECONDS = 120
MAX_SECONDS = 30 * 86_400
MAX_RESOURCE = 20_000

_NO_MEMBER = {
    "tensorboard": "uploads nothing for TensorBoard while a trial trains",
    "remote_debug": "allows no shell in its trials",
    "infra_check": "tests no hardware before its trials",
}
"""Keys of `aws` without a member in the definition -> what a tuning job does instead."""


def tuning_issues(plan: Plan) -> list[Issue]:
    """Return issues: errors refuse the sweep, warnings name differences to our own trials."""
    most = MAX_TRIALS if sweep_of(plan).method == "random" else DEFAULT_TRIALS
    limits = ServiceLimits("a tuning job", most, (MIN_SECONDS, MAX_SECONDS))

    issues: list[Issue] = []
    issues += _names(plan)
    issues += _space(plan)
    issues += _stopping(plan)
    issues += _job(plan)
    issues += service_issues(plan, limits)
    reported = {issue.path for issue in issues if issue.is_error}
    violations = request_violations(render(plan).document, TUNING_INPUT)
    issues += spec_issues(
        "CreateHyperParameterTuningJob", violations, partial(_path_of, plan), reported
    )
    issues += _notes(plan)
    return [plan.located(issue) for issue in issues]


def _names(plan: Plan) -> Iterator[Issue]:
    if len(plan.run_id) > MAX_NAME:
        message = (
            f"the sweep's id {plan.run_id} is {len(plan.run_id)} characters long, a tuning job's at"
            f" most {MAX_NAME}"
        )
        yield Issue(("name",), message, "a shorter name, or a shorter --run-id")


def _space(plan: Plan) -> Iterator[Issue]:
    sweep = sweep_of(plan)
    for key, dimension in sweep.space.items():
        path = ("sweep", "space", key)
        if key.startswith("_tuning_"):
            message = "begins with _tuning_, as SageMaker's own hyperparameters do"
            yield Issue(path, message, "choose another name")
        if isinstance(dimension, Normal):
            message = "is a normal distribution, which a tuning job does not have"
            yield Issue(path, message, f"uniform(low, high); or {PORTABLE}")
        if sweep.method == "grid" and isinstance(dimension, Integers):
            count = dimension.size
            if count > MAX_CHOICES:
                message = f"has {count} values, a grid of SageMaker at most {MAX_CHOICES} of each"
                yield Issue(path, message, PORTABLE)


def _stopping(plan: Plan) -> Iterator[Issue]:
    sweep = sweep_of(plan)
    if sweep.method != "asha":
        return

    path = ("sweep", "early_stopping")
    rules = sweep.early_stopping
    if rules is None or rules.max is None:
        hint = "early_stopping: {max: 27}, the reports of a whole trial, such as its epochs"
        message = "is missing: Hyperband needs to know how long a trial is"
        field: Keys = (*path, "max") if rules else path
        yield Issue(field, message, hint)
    elif rules.max > MAX_RESOURCE:
        message = f"is {rules.max}, and Hyperband takes at most {MAX_RESOURCE}"
        yield Issue((*path, "max"), message, PORTABLE)
    if rules is not None and "eta" in rules.model_fields_set:
        message = "SageMaker's Hyperband decides itself how many trials continue"
        yield Issue((*path, "eta"), message, PORTABLE)


def _job(plan: Plan) -> Iterator[Issue]:
    address = plan.target.image_address
    section = section_of(plan)
    if "/pytorch-training" in address:
        message = (
            "AWS's containers start programs their own way, and a tuning job cannot name another"
            " command"
        )
        yield Issue(("image",), message, f"aws.repository, for our own image; or {PORTABLE}")
    if plan.target.config_as(AwsConfig).queue:
        message = "native cannot go with aws.queue: a queue starts no tuning jobs"
        yield Issue(("sweep", "engine"), message, f"leave one of them out, or {PORTABLE}")
    for name, instead in _NO_MEMBER.items():
        if getattr(section, name):
            yield Issue(("aws", name), f"a tuning job {instead}", f"leave it out, or {PORTABLE}")

    if section.training_plan and len(plan.target.instances) > 1:
        message = "a tuning job takes no plan for one of several instance types"
        yield Issue(("aws", "training_plan"), message, f"name one type, or {PORTABLE}")

    for item in spec_overrides(plan.spec, "aws"):
        name = ".".join(item.names)
        is_taken = any(f"{name}.".startswith(f"{taken}.") for taken in _TAKEN)
        if item.keys[1] == FORM.field and not is_taken:
            message = f"the trials of a tuning job have no {name}"
            yield Issue(item.keys, message, f"leave it out, or {PORTABLE}")

    yield from reserved_issues(section.sweep_request, SWEEP_FORM)

    definition = render(plan).document["TrainingJobDefinition"]
    count = len(definition["AlgorithmSpecification"]["MetricDefinitions"])
    if count > MAX_METRICS:
        yield Issue(
            ("metrics",),
            f"are {count} with the trainer's, and a tuning job takes at most {MAX_METRICS}",
        )


def _notes(plan: Plan) -> Iterator[Issue]:
    image = plan.target.image
    if image is None or image.recipe is None or not image.recipe.kind:
        yield warning(
            "the image must have our program `train` (docker/train) on its PATH: a tuning job"
            " cannot name a command",
            path=("image",),
        )

    if comes_back(plan):
        yield warning(
            "each trial also downloads the checkpoints of those before it: SageMaker keeps them"
            " together"
        )
    elif not plan.spec.checkpoints.uri:
        yield warning(
            "checkpoints of a trial end with it: a tuning job has no folder in S3 for each (model"
            " and output stay)"
        )


def _path_of(plan: Plan, path: Keys) -> Keys:
    """Return the field of the spec behind a member of the request; empty for none."""
    override = override_path(
        section_of(plan).sweep_request, render(plan).document, path, SWEEP_FORM
    )
    if override is not None:
        return override
    if path[:1] == ("TrainingJobDefinition",):
        return spec_path(plan, path[1:])
    if path[:1] == ("HyperParameterTuningJobName",):
        return ("name",)
    if path[:1] != (CONFIG,):
        return spec_path(plan, path)

    if path[1:2] == ("ParameterRanges",):
        return ("sweep", "space")
    return FIELDS.get(dotted(path[1:3])) or FIELDS.get(dotted(path[1:2]), ("sweep",))
