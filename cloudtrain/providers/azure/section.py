"""The section `azure` of job.yaml: settings of the workspace, and options of Azure ML."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cloudtrain.errors import Issue
from cloudtrain.spec.contradictions import OUTPUTS
from cloudtrain.spec.section import Members, Section, Strings
from cloudtrain.spec.yaml_document import mapping_of

_POLICIES: Mapping[Any, tuple[str, ...]] = {
    "bandit": ("slack_factor", "slack_amount"),
    "median_stopping": (),
    "truncation_selection": ("truncation_percentage",),
}
"""Type of an early termination -> its own keys; it needs exactly one of them."""

_POLICY_KEYS = {"slack_factor", "slack_amount", "truncation_percentage"}


class Output(Section):
    """Output of the job, with the keys of Azure ML's own YAML.

    Without `version`: API 2025-01-01-preview refuses it, and numbers the versions itself (recorded
    for azure-ai-ml's command_job_register_output).
    """

    type: Literal[
        "uri_folder", "uri_file", "mltable", "custom_model", "mlflow_model", "triton_model"
    ] = "uri_folder"
    path: str | None = None
    mode: Literal["rw_mount", "upload", "direct"] | None = None
    name: str | None = Field(None, pattern="^[A-Za-z0-9_-]{1,255}$")


def _read_output(value: Any) -> Any:
    if not isinstance(value, str):
        return value

    return {"path": value}


class EarlyTermination(Section):
    """Rule that ends bad trials early, with Azure ML's keys; for a sweep with `engine: native`."""

    type: Literal["bandit", "median_stopping", "truncation_selection"] = Field(
        description="which trials end: far from the best, below the median, or the worst"
    )
    slack_factor: float | None = None
    slack_amount: float | None = None
    truncation_percentage: int | None = Field(None, ge=1, le=99)
    evaluation_interval: int | None = Field(None, ge=1)
    delay_evaluation: int | None = Field(None, ge=0)


class AzureSection(Section):
    """Fields for Azure ML; the workspace and its parts may be in the settings instead."""

    subscription: str | None = Field(None, description="id of the subscription")
    resource_group: str | None = Field(None, description="the workspace's resource group")
    workspace: str | None = Field(None, description="the Azure ML workspace that the job runs in")
    location: str | None = Field(
        None,
        description="where the workspace is, such as eastus: prices depend on it",
    )
    compute: str | None = Field(
        None,
        description="a compute cluster of the workspace; default: serverless machines",
    )
    datastore: str | None = Field(None, description="where checkpoints, model and output are kept")
    repository: str | None = Field(
        None,
        description="where built images are pushed: myregistry.azurecr.io/train",
    )
    identity: Literal["managed", "user"] | None = Field(None, description="whom the job acts as")
    services: Strings = Field(
        (),
        description="ways into the running job: ssh, jupyter, vscode, tensorboard",
    )
    ssh_key: str | None = Field(None, description="your public key, for the service ssh")
    conda: str | None = Field(
        None,
        description="conda file that Azure ML installs in the image, with Python 3.10 or newer",
    )
    description: str | None = Field(None, description="text on the job's page in the studio")
    experiment: str | None = Field(None, description="experiment of the job; default: its name")
    display_name: str | None = Field(None, description="title of the job; default: its name")
    docker_args: str | None = Field(None, description="more arguments of docker run")
    outputs: Mapping[str, Annotated[Output, BeforeValidator(_read_output)]] = Field(
        {},
        description="more outputs: NAME: {type, path, mode, name}, or a path; name"
        " registers one, also the job's own model",
    )
    early_termination: EarlyTermination | None = Field(
        None, description="rule of a native sweep that ends bad trials"
    )
    request: Members = Field(
        {},
        description="keys of the command job's YAML that no other field sets, merged into the"
        " request; null removes one",
    )
    sweep_request: Members = Field(
        {},
        description="keys of the sweep job's YAML that no other field sets, for a sweep with"
        " engine: native",
    )

    @classmethod
    def contradictions(cls, section: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Issue]:  # noqa: ARG003
        """Return mistakes in outputs and in early termination that one key alone does not show."""
        outputs = mapping_of(section, "outputs")
        issues: list[Issue] = []
        for name in outputs:
            issues += _output_issues(outputs, name)

        issues += _policy_issues(mapping_of(section, "early_termination"))
        return issues


def _output_issues(outputs: Mapping[str, Any], name: Any) -> Iterator[Issue]:
    at = ("azure", "outputs", name)
    output = _read_output(outputs[name])
    keys = output if isinstance(output, dict) else {}
    if not re.fullmatch(r"[A-Za-z]\w*", str(name), re.ASCII):
        yield Issue(at, "is not a name of an output", "letters, digits and underscores")
    path = keys.get("path")
    if isinstance(path, str) and not path.startswith("azureml://"):
        hint = "azureml://datastores/NAME/paths/FOLDER/"
        yield Issue((*at, "path"), f"{path!r} is not a datastore path", hint)

    for key in ("path", "mode"):
        if key in keys and name in OUTPUTS:
            yield Issue((*at, key), f"cloudtrain sets the {key} of {name}", "choose another output")


def _policy_issues(policy: Mapping[str, Any]) -> Iterator[Issue]:
    kind = policy.get("type")
    if not isinstance(kind, str) or kind not in _POLICIES:
        return

    keys = _POLICIES[kind]
    used = _POLICY_KEYS & policy.keys()
    expected = 1 if keys else 0
    if used - set(keys) or len(used) != expected:
        at = ("azure", "early_termination")
        yield Issue(at, f"{kind} takes {' or '.join(keys) or 'no slack and no percentage'}")
