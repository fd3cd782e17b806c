"""One CloudFormation stack: its state, its change sets, what happens to it, and why something
failed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError
from cloudtrain.infrastructure import Report
from cloudtrain.infrastructure.changes import ResourceEvent
from cloudtrain.providers.aws.infra_parameters import kind_of

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient

CAPABILITIES = ["CAPABILITY_IAM"]
"""What the template does that has to be acknowledged: it makes roles and a policy, under generated
names.
"""

_NO_CHANGES = re.compile(r"didn't contain changes|No updates are to be performed")
_CANCELLED = re.compile(r"cancelled$|The following resource\(s\) failed")
_STATES: Mapping[str, Any] = {
    "CREATE_IN_PROGRESS": "creating",
    "CREATE_COMPLETE": "created",
    "UPDATE_IN_PROGRESS": "changing",
    "UPDATE_COMPLETE": "changed",
    "DELETE_IN_PROGRESS": "deleting",
    "DELETE_COMPLETE": "deleted",
    "DELETE_SKIPPED": "kept",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """As DescribeStacks tells it."""

    id: str
    status: str
    reason: str
    parameters: Mapping[str, str]
    outputs: Mapping[str, str]

    @property
    def is_changing(self) -> bool:
        """Whether CloudFormation is at work. A stack under review waits for a change set: nothing
        is done.
        """
        return self.status.endswith("_IN_PROGRESS") and self.status != "REVIEW_IN_PROGRESS"

    @property
    def is_empty(self) -> bool:
        """Whether it is a name alone: under review, or left by a first attempt that was rolled
        back.
        """
        return self.status in ("REVIEW_IN_PROGRESS", "ROLLBACK_COMPLETE")


class Stacks:
    """The stacks of one name in one region."""

    def __init__(self, cloud: AwsClient, name: str, poll_seconds: float) -> None:
        self.cloud = cloud
        self.name = name
        self.poll_seconds = poll_seconds

    def find(self, stack_id: str = "") -> Stack | None:
        """The stack of this name, or the one of this id even if it was deleted; None if there is
        none.
        """
        try:
            found = self.cloud.call(
                "cloudformation", "describe_stacks", StackName=stack_id or self.name
            )["Stacks"][0]
        except CloudError as error:
            if error.code == "ValidationError" and "does not exist" in error.what:
                return None
            raise
        return Stack(
            id=found["StackId"],
            status=found["StackStatus"],
            reason=found.get("StackStatusReason", ""),
            parameters={
                each["ParameterKey"]: each["ParameterValue"] for each in found.get("Parameters", [])
            },
            outputs={each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])},
        )

    def resources(self, stack_id: str = "") -> list[dict[str, Any]]:
        """The resources, as CloudFormation tells them; those of a deleted stack for 90 days."""
        pages = self.cloud.pages(
            "cloudformation", "list_stack_resources", StackName=stack_id or self.name
        )
        return [each for page in pages for each in page["StackResourceSummaries"]]

    def kept_resources(self) -> Iterator[dict[str, Any]]:
        """What deleted stacks of this name have left, newest first. It may have been deleted since."""
        pages = self.cloud.pages(
            "cloudformation", "list_stacks", StackStatusFilter=["DELETE_COMPLETE"]
        )
        deleted = [
            each
            for page in pages
            for each in page["StackSummaries"]
            if each["StackName"] == self.name
        ]
        for stack in sorted(
            deleted, key=lambda each: str(each.get("DeletionTime", "")), reverse=True
        ):
            yield from (
                each
                for each in self.resources(stack["StackId"])
                if each["ResourceStatus"] == "DELETE_SKIPPED"
            )

    def create_change_set(
        self, template: str, parameters: Mapping[str, str], *, is_new: bool
    ) -> dict[str, Any] | None:
        """A change set that is ready, described; None if the stack is as the template says.
        CloudError if refused.
        """
        answer = self.cloud.call(
            "cloudformation",
            "create_change_set",
            StackName=self.name,
            ChangeSetName=f"cloudtrain-{time.time_ns()}",
            ChangeSetType="CREATE" if is_new else "UPDATE",
            TemplateBody=template,
            Parameters=[
                {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
            ],
            Capabilities=CAPABILITIES,
            Tags=[{"Key": "cloudtrain", "Value": self.name}],
        )
        while (found := self._change_set(answer["Id"]))["Status"] in (
            "CREATE_PENDING",
            "CREATE_IN_PROGRESS",
        ):
            time.sleep(self.poll_seconds)
        if found["Status"] == "CREATE_COMPLETE":
            return found
        self.delete_change_set(answer["Id"])
        reason = found.get("StatusReason", "no reason given")
        if _NO_CHANGES.search(reason):
            return None
        raise CloudError(f"CloudFormation refuses the change set: {reason}", code="ChangeSetFailed")

    def _change_set(self, change_set: str) -> dict[str, Any]:
        pages = list(
            self.cloud.pages("cloudformation", "describe_change_set", ChangeSetName=change_set)
        )
        return {**pages[0], "Changes": [each for page in pages for each in page.get("Changes", [])]}

    def delete_change_set(self, change_set: str) -> None:
        """Delete a change set, and the stack too if it is only a name under review."""
        self.cloud.call("cloudformation", "delete_change_set", ChangeSetName=change_set)
        stack = self.find()
        if stack is not None and stack.status == "REVIEW_IN_PROGRESS":
            self.cloud.call("cloudformation", "delete_stack", StackName=stack.id)

    def execute(self, change_set: str) -> None:
        """Start to carry out a change set."""
        self.cloud.call("cloudformation", "execute_change_set", ChangeSetName=change_set)

    def delete(self, stack: Stack) -> None:
        """Start to delete a stack."""
        self.cloud.call("cloudformation", "delete_stack", StackName=stack.id)

    def watch(self, stack: Stack, since: str, report: Report) -> Stack:
        """Report what happens to a stack until nothing does any more; returns it. `since`: the last
        old event.
        """
        last = since
        while True:
            found = self.find(stack.id) or stack
            for event in self._events_after(stack.id, last):
                last = event["EventId"]
                if event["PhysicalResourceId"] != stack.id and (told := _told(event)):
                    report(told)
            if not found.is_changing:
                return found
            time.sleep(self.poll_seconds)

    def last_event(self, stack_id: str) -> str:
        """The id of the newest event; empty if there is none."""
        page = self.cloud.call("cloudformation", "describe_stack_events", StackName=stack_id)
        return str(page["StackEvents"][0]["EventId"]) if page["StackEvents"] else ""

    def failures(self, stack_id: str, since: str) -> list[dict[str, Any]]:
        """The events after one by which resources failed, the first one first; without those that
        it took along.
        """
        failed = [
            each
            for each in self._events_after(stack_id, since)
            if each["ResourceStatus"].endswith("_FAILED")
        ]
        reasons = [each for each in failed if each["PhysicalResourceId"] != stack_id]
        return [
            each for each in reasons if not _CANCELLED.search(each.get("ResourceStatusReason", ""))
        ] or failed

    def _events_after(self, stack_id: str, since: str) -> list[dict[str, Any]]:
        """The events after one, oldest first."""
        newer: list[dict[str, Any]] = []
        for page in self.cloud.pages("cloudformation", "describe_stack_events", StackName=stack_id):
            for event in page["StackEvents"]:
                if event["EventId"] == since:
                    return newer[::-1]
                newer.append(event)
        return newer[::-1]


def failure_of(event: Mapping[str, Any], name: str, again: str) -> CloudError:
    """Our error for a resource that failed: which, why, and what to do before the command `again`."""
    what = failure_words(event, f" of the stack {name}")
    reason = event.get("ResourceStatusReason", "")
    return CloudError(
        what, code=event["ResourceStatus"], hint=f"{_remedy(event, reason)}; then again: {again}"
    )


def failure_words(event: Mapping[str, Any], of: str = "") -> str:
    """`IAM role (ExecutionRole): User ... is not authorized to perform: iam:CreateRole`."""
    reason = event.get("ResourceStatusReason", "no reason given")
    return f"{kind_of(event['ResourceType'])} ({event['LogicalResourceId']}){of}: {reason}"


def _remedy(event: Mapping[str, Any], reason: str) -> str:
    denied = re.search(r"perform: ([\w-]+:\w+)", reason)
    if denied:
        return f"these credentials lack {denied[1]}"
    if re.search("already exists|EntityAlreadyExists|AlreadyOwnedByYou", reason):
        if event["ResourceType"] == "AWS::IAM::OIDCProvider":
            return (
                "there is one already: --set github_provider=ARN (aws iam"
                " list-open-id-connect-providers)"
            )
        return (
            f"it was made outside the stack: delete {event.get('PhysicalResourceId') or 'it'}, or"
            " use it by --set"
        )
    if "attached" in reason and event["ResourceType"] == "AWS::IAM::ManagedPolicy":
        return (
            "detach it from them: aws iam list-entities-for-policy --policy-arn"
            f" {event['PhysicalResourceId']}"
        )
    if re.search("limit|quota|maximum number", reason, re.IGNORECASE):
        return "ask for more in Service Quotas, or delete what is not needed"
    return "put that right"


def _told(event: Mapping[str, Any]) -> ResourceEvent | None:
    """An event as progress; None for one that says nothing new."""
    status = event["ResourceStatus"]
    reason = event.get("ResourceStatusReason", "")
    state: Any = "failed" if status.endswith("_FAILED") else _STATES.get(status)
    if state is None or (
        status.endswith("_IN_PROGRESS") and reason == "Resource creation Initiated"
    ):
        return None
    return ResourceEvent(
        resource=event["LogicalResourceId"],
        kind=kind_of(event["ResourceType"]),
        state=state,
        identity=event.get("PhysicalResourceId", "") if state != "creating" else "",
        reason=reason if state == "failed" else "",
    )
