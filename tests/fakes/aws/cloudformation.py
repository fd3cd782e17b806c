"""CloudFormation on loopback: stacks, change sets and events, refused as its API reference and user
guide say.

Nothing runs beside the tests: each look at a stack (DescribeStacks) carries it a few resources
further.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import botocore.session

from tests.fakes.aws.stack_resources import ResourceFailed, Resources
from tests.fakes.aws.template import Resolver, invalid, parameter_values, read_template
from tests.fakes.messages import ServiceError

Document = dict[str, Any]
RESOURCES_PER_LOOK = 2
_NO_CHANGES = (
    "The submitted information didn't contain changes. Submit different information to create a"
    " change set."
)
_KEPT = ("Retain", "RetainExceptOnCreate")
_UPDATABLE = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")


class Stack:
    """One stack: its template, what there is of it, and all that has happened to it."""

    def __init__(self, name: str, arn: str) -> None:
        self.name = name
        self.arn = arn
        self.status = "REVIEW_IN_PROGRESS"
        self.reason = "User Initiated"
        self.template: Document = {"Resources": {}}
        self.values: dict[str, str] = {}
        self.resources: dict[str, Document] = {}
        self.events: list[Document] = []
        self.outputs: dict[str, str] = {}
        self.work: Iterator[None] = iter(())
        self.deleted_at = 0.0

    def enter(self, status: str, reason: str = "") -> None:
        """The stack's own status, which is an event too."""
        self.status = status
        self.reason = reason
        self.happened(self.name, "AWS::CloudFormation::Stack", self.arn, status, reason)

    def happened(self, name: str, kind: str, identity: str, status: str, reason: str = "") -> None:
        """An event; of a resource it is its new status."""
        about = {"LogicalResourceId": name, "ResourceType": kind, "PhysicalResourceId": identity}
        about |= {"ResourceStatus": status, **({"ResourceStatusReason": reason} if reason else {})}
        head = {
            "StackId": self.arn,
            "EventId": f"{name}-{len(self.events)}",
            "StackName": self.name,
        }
        self.events.append({**head, **about, "Timestamp": time.time()})
        if identity != self.arn:
            self.resources[name] = {**about, "LastUpdatedTimestamp": time.time()}


class CloudFormation:
    """The stacks of an account in a region. `failures`: logical name -> why making or changing it
    fails, once each.
    """

    def __init__(self, resources: Resources, region: str, account: str) -> None:
        self.resources = resources
        self.region = region
        self.account = account
        self.stacks: list[Stack] = []
        self.failures: dict[str, str] = {}
        self.is_paused = False
        """Whether looks carry nothing further: as if the cloud took its time."""
        self._change_sets: dict[str, Document] = {}
        self._numbers = itertools.count(1)
        self.model = botocore.session.get_session().get_service_model("cloudformation")
        self._operations: Mapping[str, Callable[[Document], Document]] = {
            "CreateChangeSet": self._create_change_set,
            "DescribeChangeSet": self._describe_change_set,
            "DeleteChangeSet": self._delete_change_set,
            "ExecuteChangeSet": self._execute_change_set,
            "DescribeStacks": self._describe_stacks,
            "DescribeStackEvents": lambda body: {
                "StackEvents": self.stack(body["StackName"]).events[::-1]
            },
            "ListStackResources": self._list_resources,
            "ListStacks": self._list_stacks,
            "DeleteStack": self._delete_stack,
        }

    def reset(self) -> None:
        """Forget all stacks."""
        self.stacks.clear()
        self.failures.clear()
        self._change_sets.clear()
        self.is_paused = False

    def call(self, operation: str, body: Document) -> Document:
        """One call; ServiceError is what it answers instead."""
        if operation not in self._operations:
            raise ServiceError(
                "InvalidAction", f"Could not find operation {operation} for version 2010-05-15"
            )
        return self._operations[operation](body)

    def find(self, name: str) -> Stack | None:
        """The stack of a name that is not deleted, or that of an ARN."""
        alive = (
            each
            for each in self.stacks
            if each.arn == name or (each.name == name and not each.deleted_at)
        )
        return next(alive, None)

    def stack(self, name: str) -> Stack:
        """The same; refused if there is none."""
        found = self.find(name)
        if found is None:
            raise invalid(f"Stack with id {name} does not exist")
        return found

    # Change sets

    def _create_change_set(self, body: Document) -> Document:
        name = body["StackName"]
        kind = body.get("ChangeSetType", "UPDATE")
        stack = self.find(name)
        if not re.fullmatch("[a-zA-Z][-a-zA-Z0-9]*", name):
            raise invalid(
                f"1 validation error detected: Value '{name}' at 'stackName' failed to satisfy"
                " constraint"
            )
        template = read_template(body["TemplateBody"])
        values = parameter_values(
            template, {p["ParameterKey"]: p["ParameterValue"] for p in body.get("Parameters", [])}
        )
        _check_capabilities(template, body.get("Capabilities", []))
        if kind == "CREATE":
            if stack is not None and stack.status != "REVIEW_IN_PROGRESS":
                raise ServiceError(
                    "AlreadyExistsException",
                    f"Stack [{name}] already exists and cannot be created again",
                )
            stack = stack or self._new_stack(name)
        elif stack is None:
            raise invalid(f"Stack [{name}] does not exist")
        elif stack.status not in _UPDATABLE:
            raise invalid(f"Stack:{stack.arn} is in {stack.status} state and can not be updated.")
        place = f"arn:aws:cloudformation:{self.region}:{self.account}"
        arn = f"{place}:changeSet/{body['ChangeSetName']}/{next(self._numbers)}"
        resolver = self._resolver(stack, template, values)
        changes = _changes(stack, resolver, self._resolver(stack, stack.template, stack.values))
        is_empty = not changes and resolver.outputs() == stack.outputs
        told = {
            "ChangeSetId": arn,
            "ChangeSetName": body["ChangeSetName"],
            "StackId": stack.arn,
            "StackName": name,
        }
        told |= {"Changes": [{"Type": "Resource", "ResourceChange": each} for each in changes]}
        told |= {"Status": "CREATE_COMPLETE", "ExecutionStatus": "AVAILABLE"}
        if is_empty:
            reason = (
                "The submitted information didn't contain changes. Submit different information to"
                " create a change set."
            )
            told |= {"Status": "FAILED", "ExecutionStatus": "UNAVAILABLE", "StatusReason": reason}
        self._change_sets[arn] = {
            "told": told,
            "template": template,
            "values": values,
            "stack": stack,
            "looks": 0,
        }
        return {"Id": arn, "StackId": stack.arn}

    def _describe_change_set(self, body: Document) -> Document:
        found = self._change_set(body["ChangeSetName"])
        found["looks"] += 1
        if found["looks"] == 1:  # it takes a moment
            return {
                **found["told"],
                "Status": "CREATE_IN_PROGRESS",
                "ExecutionStatus": "UNAVAILABLE",
                "Changes": [],
            }
        return dict(found["told"])

    def _delete_change_set(self, body: Document) -> Document:
        self._change_sets.pop(body["ChangeSetName"], None)
        return {}

    def _execute_change_set(self, body: Document) -> Document:
        found = self._change_set(body["ChangeSetName"])
        told = found["told"]
        stack = found["stack"]
        if told["ExecutionStatus"] != "AVAILABLE":
            status = f"current execution status of [{told['ExecutionStatus']}]"
            message = f"ChangeSet [{body['ChangeSetName']}] cannot be executed in its {status}"
            raise ServiceError("InvalidChangeSetStatus", message)
        self._change_sets = {
            arn: each for arn, each in self._change_sets.items() if each["stack"] is not stack
        }
        is_new = stack.status == "REVIEW_IN_PROGRESS"
        stack.enter("CREATE_IN_PROGRESS" if is_new else "UPDATE_IN_PROGRESS", "User Initiated")
        stack.work = self._carry_out(stack, found["template"], found["values"], [
            each["ResourceChange"] for each in told["Changes"]
        ], is_new)  # fmt: skip
        return {}

    def _change_set(self, name: str) -> Document:
        if name not in self._change_sets:
            raise ServiceError("ChangeSetNotFound", f"ChangeSet [{name}] does not exist", 404)
        return self._change_sets[name]

    # Work

    def _carry_out(
        self,
        stack: Stack,
        template: Document,
        values: dict[str, str],
        changes: list[Document],
        is_new: bool,
    ) -> Iterator[None]:
        """Resource after resource; if one fails all that was done is undone."""
        resolver = self._resolver(stack, template, values)
        made = list[str]()
        for change in changes:
            name = change["LogicalResourceId"]
            kind = change["ResourceType"]
            if change["Action"] == "Remove":
                continue
            word = "CREATE" if change["Action"] == "Add" else "UPDATE"
            identity = change.get("PhysicalResourceId", "")
            stack.happened(name, kind, identity, f"{word}_IN_PROGRESS")
            yield
            try:
                if name in self.failures:
                    raise ResourceFailed(self.failures.pop(name))
                if word == "CREATE":
                    identity = self.resources.create(stack.name, name, kind, resolver)
                    made.append(name)
                    stack.happened(
                        name, kind, identity, "CREATE_IN_PROGRESS", "Resource creation Initiated"
                    )
                else:
                    self.resources.update(name, kind, identity, resolver)
            except ResourceFailed as failed:
                stack.happened(name, kind, identity, f"{word}_FAILED", str(failed))
                yield from self._roll_back(stack, template["Resources"], made, is_new, name)
                return
            stack.happened(name, kind, identity, f"{word}_COMPLETE")
        for change in changes:
            if change["Action"] == "Remove":
                self._remove(stack, change["LogicalResourceId"], stack.template["Resources"])
                yield
        stack.template = template
        stack.values = values
        stack.outputs = resolver.outputs()
        stack.enter("CREATE_COMPLETE" if is_new else "UPDATE_COMPLETE")

    def _roll_back(
        self, stack: Stack, declared: Document, made: list[str], is_new: bool, failed: str
    ) -> Iterator[None]:
        """What was made goes again, but for what is kept in any case (user guide, DeletionPolicy
        attribute).
        """
        prefix = "" if is_new else "UPDATE_"
        stack.enter(
            f"{prefix}ROLLBACK_IN_PROGRESS",
            f"The following resource(s) failed to create: [{failed}]. ",
        )
        for name in reversed(made):
            about = stack.resources[name]
            is_kept = declared.get(name, {}).get("DeletionPolicy") == "Retain"
            if not is_kept:
                self.resources.delete(about["ResourceType"], about["PhysicalResourceId"])
            word = "DELETE_SKIPPED" if is_kept else "DELETE_COMPLETE"
            stack.happened(name, about["ResourceType"], about["PhysicalResourceId"], word)
            yield
        stack.enter(f"{prefix}ROLLBACK_COMPLETE")

    def _delete_stack(self, body: Document) -> Document:
        stack = self.find(body["StackName"])
        if stack is None or stack.deleted_at:
            return {}
        if stack.status == "REVIEW_IN_PROGRESS":
            stack.deleted_at = time.time()
            return {}
        stack.enter("DELETE_IN_PROGRESS", "User Initiated")
        stack.work = self._tear_down(stack)
        return {}

    def _tear_down(self, stack: Stack) -> Iterator[None]:
        failed = []
        for name in reversed(list(stack.resources)):
            if stack.resources[name]["ResourceStatus"] in ("DELETE_COMPLETE", "DELETE_SKIPPED"):
                continue
            yield
            if not self._remove(stack, name, stack.template["Resources"]):
                failed.append(name)
        if failed:
            stack.enter(
                "DELETE_FAILED",
                f"The following resource(s) failed to delete: [{', '.join(failed)}]. ",
            )
            return
        stack.deleted_at = time.time()
        stack.enter("DELETE_COMPLETE")

    def _remove(self, stack: Stack, name: str, declared: Document) -> bool:
        about = stack.resources[name]
        kind = about["ResourceType"]
        identity = about["PhysicalResourceId"]
        if not identity:  # it was never made
            stack.happened(name, kind, identity, "DELETE_COMPLETE")
            return True
        if declared.get(name, {}).get("DeletionPolicy") in _KEPT:
            stack.happened(name, kind, identity, "DELETE_SKIPPED")
            return True
        stack.happened(name, kind, identity, "DELETE_IN_PROGRESS")
        try:
            if f"delete {name}" in self.failures:
                raise ResourceFailed(self.failures.pop(f"delete {name}"))
            self.resources.delete(kind, identity)
        except ResourceFailed as failed:
            stack.happened(name, kind, identity, "DELETE_FAILED", str(failed))
            return False
        stack.happened(name, kind, identity, "DELETE_COMPLETE")
        return True

    # Looks

    def _describe_stacks(self, body: Document) -> Document:
        stack = self.stack(body["StackName"])
        if not self.is_paused:
            for _ in itertools.islice(stack.work, RESOURCES_PER_LOOK):
                pass
        told = {
            "StackId": stack.arn,
            "StackName": stack.name,
            "StackStatus": stack.status,
            "CreationTime": time.time(),
        }
        if stack.reason:
            told["StackStatusReason"] = stack.reason
        told["Parameters"] = [
            {"ParameterKey": key, "ParameterValue": value} for key, value in stack.values.items()
        ]
        told["Outputs"] = [
            {"OutputKey": key, "OutputValue": value} for key, value in stack.outputs.items()
        ]
        return {"Stacks": [told]}

    def _list_resources(self, body: Document) -> Document:
        return {"StackResourceSummaries": list(self.stack(body["StackName"]).resources.values())}

    def _list_stacks(self, body: Document) -> Document:
        wanted = body.get("StackStatusFilter", [])
        found = [each for each in self.stacks if not wanted or each.status in wanted]
        told = [
            {
                "StackId": each.arn,
                "StackName": each.name,
                "StackStatus": each.status,
                "CreationTime": time.time(),
                **({"DeletionTime": each.deleted_at} if each.deleted_at else {}),
            }
            for each in found
        ]
        return {"StackSummaries": told}

    def _new_stack(self, name: str) -> Stack:
        arn = f"arn:aws:cloudformation:{self.region}:{self.account}:stack/{name}/{next(self._numbers):08}"
        self.stacks.append(made := Stack(name, arn))
        return made

    def _resolver(self, stack: Stack, template: Document, values: dict[str, str]) -> Resolver:
        """A template with what there is of the stack."""
        made = Resolver(
            template, values, stack=stack.name, region=self.region, account=self.account
        )
        for name, about in stack.resources.items():
            if about["ResourceStatus"] in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
                made.identities[name] = about["PhysicalResourceId"]
                for attribute, value in self.resources.attributes(
                    about["ResourceType"], made.identities[name]
                ).items():
                    made.attributes[name, attribute] = value
        return made


def _check_capabilities(template: Document, given: list[str]) -> None:
    """IAM resources are acknowledged, named ones by another word (CreateChangeSet, Capabilities)."""
    iam = [each for each in template["Resources"].values() if each["Type"].startswith("AWS::IAM::")]
    named = any(
        {"RoleName", "ManagedPolicyName"} & each.get("Properties", {}).keys() for each in iam
    )
    needed = "CAPABILITY_NAMED_IAM" if named else "CAPABILITY_IAM"
    if iam and needed not in given and "CAPABILITY_NAMED_IAM" not in given:
        raise ServiceError(
            "InsufficientCapabilitiesException", f"Requires capabilities : [{needed}]"
        )


def _changes(stack: Stack, new: Resolver, old: Resolver) -> list[Document]:
    """What differs, in an order in which each resource comes after those that it names."""
    wanted = new.resources()
    there = {name: about for name, about in stack.resources.items() if name in old.identities}
    changes: list[Document] = []
    for name in _ordered(wanted, new.template):
        kind = wanted[name]["Type"]
        properties = new.properties(name)
        if name not in there:
            changes.append({"Action": "Add", "LogicalResourceId": name, "ResourceType": kind})
        elif differing := _differences(properties, old.properties(name)):
            about = {"LogicalResourceId": name, "ResourceType": kind, "Replacement": "False"}
            details = [{"Target": {"Attribute": "Properties", "Name": each}} for each in differing]
            identity = there[name]["PhysicalResourceId"]
            changes.append(
                {"Action": "Modify", **about, "PhysicalResourceId": identity, "Details": details}
            )
    for name, about in reversed(there.items()):
        if name not in wanted:
            told = {"LogicalResourceId": name, "ResourceType": about["ResourceType"]}
            changes.append(
                {"Action": "Remove", **told, "PhysicalResourceId": about["PhysicalResourceId"]}
            )
    return changes


def _differences(new: Document, old: Document) -> list[str]:
    return sorted(key for key in new.keys() | old.keys() if new.get(key) != old.get(key))


def _ordered(wanted: Mapping[str, Document], template: Mapping[str, Any]) -> list[str]:
    """Dependencies first, by what properties name; a circle is refused."""
    done: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise invalid(f"Circular dependency between resources: [{', '.join(path)}]")
        if name in done or name not in wanted:
            return
        text = json.dumps(template["Resources"][name].get("Properties", {}))
        for other in wanted:
            if other != name and re.search(rf'"{other}"|\$\{{{other}[.}}]', text):
                visit(other, (*path, name))
        done.append(name)

    for name in wanted:
        visit(name, ())
    return done
