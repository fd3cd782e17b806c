"""Security review of an Azure ML job before it is sent. Pure.

After PSRule's rules for Azure Machine Learning that depend on a job, not on the workspace
(Azure.ML.ComputeVnet, Azure.ML.UserManagedIdentity), and one of ours: ways into the job.
"""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.issues import Issue
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.request import section_of

_INTERACTIVE = ("ssh", "jupyter", "vscode")


def security_findings(plan: Plan) -> list[Issue]:
    """Return an issue for each rule that the job breaks, with the path of its field."""
    return [*_network(plan), *_identity(plan), *_access(plan)]


def _network(plan: Plan) -> Iterator[Issue]:
    if not plan.target.config_as(AzureConfig).compute:
        message = (
            "is not set: serverless machines are in no network of yours, unless the workspace has a"
            " managed one"
        )
        yield Issue(("azure", "compute"), message, "a cluster in your network, by its name")


def _identity(plan: Plan) -> Iterator[Issue]:
    # a job with secrets has the managed identity
    if not section_of(plan).identity and not plan.spec.secrets:
        message = (
            "is not set: the job reads and writes with the workspace's keys, or with your own"
            " rights"
        )
        yield Issue(
            ("azure", "identity"),
            message,
            "azure.identity: managed, an identity with only the rights that it needs",
        )
    elif section_of(plan).identity != "user" and not plan.target.config_as(AzureConfig).compute:
        message = (
            "is not set: a serverless job acts as the workspace itself, which may read all of its"
            " key vault"
        )
        yield Issue(("azure", "compute"), message, "a cluster, which has its own identity")


def _access(plan: Plan) -> Iterator[Issue]:
    services = [name for name in section_of(plan).services if name in _INTERACTIVE]
    if services:
        message = (
            f"{', '.join(services)} opens a way into the running job, with all that its identity"
            " may do"
        )
        yield Issue(("azure", "services"), message, "leave it out once the job runs")
