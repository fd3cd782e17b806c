"""Walk over the things in a request of Azure ML: each one's service answers. Read-only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloudtrain.checkup import Check, Question, Thing
from cloudtrain.errors import UsageError
from cloudtrain.providers.azure.account import format_issues
from cloudtrain.providers.azure.config import AzureConfig, connect
from cloudtrain.providers.azure.lookups import LOOKUPS
from cloudtrain.providers.azure.things import Things
from cloudtrain.providers.shared.clock import clock_check

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan

UNTOLD = (
    (
        "network",
        "do the job's machines reach what they need",
        "private networks and firewalls are not seen from here",
    ),
    (
        "policies",
        "does anything refuse what roles allow",
        "Azure Policy, locks and deny assignments are not asked",
    ),
    ("capacity", "are the machines free", "Azure tells it when they are asked for"),
)
"""Questions that no call answers: name, question, reason."""


def account_checks(plan: Plan) -> Iterator[Check]:
    """Yield each check of a request's things as its answer comes.

    Without a login or a workspace no further question is possible.
    """
    config = plan.target.config_as(AzureConfig)
    try:
        cloud = connect(config.subscription, config.resource_group, config.workspace)
    except UsageError as error:
        yield Question("azure-ai-ml", "is it installed").failed(error)
        return

    from cloudtrain.providers.azure.sdk import ResourceManager

    things = Things(cloud, ResourceManager(), plan)
    login = LOOKUPS["credentials"].check(things, Thing("credentials"))
    yield login
    if login.is_wrong or any(format_issues(config)):
        return

    place = Thing("workspace", config.workspace, ("azure", "workspace"))
    yield LOOKUPS["workspace"].check(things, place)
    if not things.workspace:
        remainder = Question("everything else", "is it there, and who may use it")
        yield remainder.not_checked("the workspace alone tells of it")
        return

    yield clock_check(things.date, time.time())
    for thing in things.all():
        yield LOOKUPS[thing.kind].check(things, thing)
    for name, question, reason in UNTOLD:
        yield Question(name, question).not_checked(reason)
