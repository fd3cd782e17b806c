"""What an AWS account needs before jobs run there: the stack of infra/aws, through CloudFormation's
change sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cloudtrain.bundle import bundled
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.infrastructure import DEFAULT_NAME, Infrastructure, Report
from cloudtrain.infrastructure.changes import ChangePlan, Deployment, DeploymentState, Resource
from cloudtrain.infrastructure.parameters import NONE, defaults
from cloudtrain.providers.aws import infra_advice, infra_parameters
from cloudtrain.providers.aws.infra_account import github_provider, log_group
from cloudtrain.providers.aws.infra_parameters import DATA_TYPES, FOUND, PARAMETERS, kind_of
from cloudtrain.providers.aws.stack import Stack, Stacks, failure_of, failure_words
from cloudtrain.providers.aws.stack_changes import (
    change_of,
    deletion_of,
    removal_of,
    stack_removal,
    unchanged_costs,
)

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient

NAME = r"[a-zA-Z][a-zA-Z0-9-]{0,127}"
"""Names of stacks (API reference of CloudFormation, CreateStack)."""


class AwsInfrastructure(Infrastructure):
    """The stack of one name in one region, with the credentials at hand."""

    parameters = PARAMETERS
    formats = ("cloudformation", "terraform")

    def __init__(self, cloud: AwsClient | None, name: str, poll_seconds: float) -> None:
        """`cloud`: None where only the template is asked for."""
        self._cloud = cloud
        self.name = name
        self._poll_seconds = poll_seconds

    def template(self, format_: str) -> str:
        """The CloudFormation template, or the Terraform module that deploys it, as one file."""
        folder = bundled("infra") / "aws"
        if format_ == "cloudformation":
            return (folder / "cloudtrain.yaml").read_text(encoding="utf-8")
        files = [(folder / "terraform" / f"{name}.tf") for name in ("main", "variables", "outputs")]
        text = "\n".join(path.read_text(encoding="utf-8") for path in files).replace(
            "../cloudtrain.yaml", "cloudtrain.yaml"
        )
        return (
            "# Put the template beside it: cloudtrain infra render --provider aws >"
            f" cloudtrain.yaml\n{text}"
        )

    def show(self) -> Deployment:
        """The stack as it is; of one that is gone, what it has left."""
        stack = self._stacks.find()
        if stack is None or stack.status == "REVIEW_IN_PROGRESS":
            left = tuple(
                Resource(name=each["LogicalResourceId"], kind=kind_of(each["ResourceType"]), state="kept",
                         identity=each["PhysicalResourceId"]) for each in self._left_behind()
            )  # fmt: skip
            return self._deployment(state="absent", resources=left)
        resources = tuple(
            Resource(name=each["LogicalResourceId"], kind=kind_of(each["ResourceType"]), state=each["ResourceStatus"],
                     identity=each.get("PhysicalResourceId", ""))
            for each in self._stacks.resources() if each["ResourceStatus"] != "DELETE_COMPLETE"
        )  # fmt: skip
        is_ready = stack.status.endswith("_COMPLETE") and stack.status != "ROLLBACK_COMPLETE"
        state: DeploymentState = (
            "changing" if stack.is_changing else "ready" if is_ready else "failed"
        )
        why = self._stacks.failures(stack.id, "") if state == "failed" else []
        return self._deployment(
            state=state,
            reason=": ".join(
                part
                for part in (stack.status, failure_words(why[0]) if why else stack.reason)
                if part
            ),
            resources=resources,
            parameters=infra_parameters.values_of(stack.parameters),
            outputs=infra_parameters.outputs_of(stack.outputs),
            settings=infra_parameters.settings_of(stack.outputs),
        )

    def plan_up(self, values: Mapping[str, str]) -> ChangePlan:
        """By a change set. What a first attempt has left, a stack without resources, is deleted
        before.
        """
        stack = self._stacks.find()
        if stack is not None and stack.is_changing:
            note = (
                f"CloudFormation is at work on it ({stack.status}): this goes on watching; then do"
                " it again"
            )
            return self._plan((), notes=(note,), reference={"watch": stack.id})
        self._refuse_broken(stack)
        if stack is not None and stack.status == "ROLLBACK_COMPLETE":
            self._delete_remains(stack)
        is_new = stack is None or stack.is_empty
        before = {} if stack is None or is_new else infra_parameters.values_of(stack.parameters)
        chosen = defaults(PARAMETERS) | before | dict(values)
        infra_advice.refuse_impossible(self._aws, chosen, values)
        if chosen["github_provider"] == FOUND and chosen["github_subject"] != NONE:
            own = (
                []
                if is_new
                else [each.get("PhysicalResourceId", "") for each in self._stacks.resources()]
            )
            chosen["github_provider"] = github_provider(self._aws, own)
        owns_log = (
            not is_new and stack is not None and stack.parameters.get("CreateLogGroup") == "yes"
        )
        log = None if owns_log else log_group(self._aws)
        parameters = infra_parameters.template_values(chosen, self._aws.region, self._partition)
        parameters["CreateLogGroup"] = "no" if log else "yes"
        found = self._stacks.create_change_set(
            self.template("cloudformation"), parameters, is_new=is_new
        )
        changes = [change_of(each["ResourceChange"]) for each in (found or {}).get("Changes", [])]
        changes += unchanged_costs([] if is_new else self._stacks.resources(), changes)
        reference = {"change_set": found["ChangeSetId"]} if found else {}
        notes = list(infra_advice.notes_of_choices(chosen))
        if is_new:
            notes += infra_advice.notes_of_remains(self._left_behind(), chosen, self._key_arns)
        return self._plan(changes, parameters=chosen, notes=tuple(notes), reference=reference)

    def up(self, plan: ChangePlan, report: Report) -> Deployment:
        """Execute the change set, and watch until all is done or rolled back."""
        stack = self._stacks.find()
        again = self._command("up")
        if stack is not None and ("change_set" in plan.reference or "watch" in plan.reference):
            since = self._stacks.last_event(stack.id)
            if "change_set" in plan.reference:
                self._stacks.execute(plan.reference["change_set"])
            else:
                since = ""
            self._finish(self._stacks.watch(stack, since, report), since, again)
        return self.show()

    def discard(self, plan: ChangePlan) -> None:
        """Delete the change set, and the empty stack that CloudFormation made for it."""
        if "change_set" in plan.reference:
            self._stacks.delete_change_set(plan.reference["change_set"])

    def plan_down(self, *, delete_data: bool) -> ChangePlan:
        """All resources of the stack; of one that is gone, what it has left."""
        stack = self._stacks.find()
        gone = stack is None or stack.status == "REVIEW_IN_PROGRESS"
        found = list(self._left_behind()) if gone else self._stacks.resources()
        there = [
            each
            for each in found
            if each["ResourceStatus"] != "DELETE_COMPLETE" and each.get("PhysicalResourceId")
        ]
        changes = [removal_of(each, delete_data=delete_data) for each in there]
        if stack is not None and not gone and not there:
            changes = [stack_removal(self.name)]
        reference = {"types": {each["LogicalResourceId"]: each["ResourceType"] for each in there}}
        notes = tuple(infra_advice.notes_of_removal(changes))
        changes.sort(key=lambda each: each.action == "keep")
        return self._plan(
            changes,
            notes=notes,
            reference=reference | ({} if gone or not stack else {"stack": stack.id}),
        )

    def down(self, plan: ChangePlan, report: Report) -> None:
        """The stack first, so that nobody writes any more; then the data, where the plan says so."""
        from cloudtrain.providers.aws.stored_data import delete_for_good

        again = self._command("down")
        stack = (
            self._stacks.find(plan.reference.get("stack", ""))
            if "stack" in plan.reference
            else None
        )
        if stack is not None and stack.status != "DELETE_COMPLETE":
            since = self._stacks.last_event(stack.id)
            if stack.status != "DELETE_IN_PROGRESS":
                self._stacks.delete(stack)
            self._finish(self._stacks.watch(stack, since, report), since, again)
        for change in plan.changes:
            if change.holds_data and change.action == "delete":
                delete_for_good(
                    self._aws, plan.reference["types"][change.resource], change.identity
                )
                report(deletion_of(change))

    @property
    def _aws(self) -> AwsClient:
        if self._cloud is None:
            raise UsageError(
                "aws.region is not set",
                hint="--region us-east-1, or [aws] region in cloudtrain.toml",
            )
        return self._cloud

    @cached_property
    def _stacks(self) -> Stacks:
        if not re.fullmatch(NAME, self.name):
            hint = "letters, digits and hyphens, a letter first, at most 128"
            raise UsageError(f"--name {self.name}: CloudFormation takes no such names", hint=hint)
        return Stacks(self._aws, self.name, self._poll_seconds)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return self._aws.call("sts", "get_caller_identity")

    @property
    def _partition(self) -> str:
        return str(self._identity["Arn"].split(":")[1])

    @property
    def _key_arns(self) -> str:
        return f"arn:{self._partition}:kms:{self._aws.region}:{self._identity['Account']}:key/"

    @property
    def _where(self) -> str:
        return f"account {self._identity['Account']}, {self._aws.region}"

    def _command(self, verb: str) -> str:
        """What to type to go on with this very stack."""
        name = "" if self.name == DEFAULT_NAME else f" --name {self.name}"
        return f"cloudtrain infra {verb} --provider aws --region {self._aws.region}{name}"

    def _plan(self, changes: Any, **more: Any) -> ChangePlan:
        return ChangePlan(
            provider="aws", name=self.name, where=self._where, changes=tuple(changes), **more
        )

    def _deployment(self, **more: Any) -> Deployment:
        return Deployment(provider="aws", name=self.name, where=self._where, **more)

    def _finish(self, stack: Stack, since: str, again: str) -> None:
        """CloudError with the first cause if what was watched has failed."""
        if stack.status in (
            "CREATE_COMPLETE",
            "UPDATE_COMPLETE",
            "DELETE_COMPLETE",
            "IMPORT_COMPLETE",
        ):
            return
        failures = self._stacks.failures(stack.id, since)
        if failures:
            raise failure_of(failures[0], self.name, again)
        raise CloudError(
            f"the stack {self.name} is {stack.status}: {stack.reason}",
            code=stack.status,
            hint=again,
        )

    def _refuse_broken(self, stack: Stack | None) -> None:
        """CloudError for a stack that takes no change set before somebody has put it right."""
        if stack is None or not stack.status.endswith("_FAILED"):
            return
        if stack.status == "UPDATE_ROLLBACK_FAILED":
            continued = f"aws cloudformation continue-update-rollback --stack-name {self.name}"
            hint = f"put right what the reason names, then: {continued}"
        else:
            hint = f"{self._command('down')}; it keeps all data"
        raise CloudError(
            f"the stack {self.name} is {stack.status}: {stack.reason}", code=stack.status, hint=hint
        )

    def _delete_remains(self, stack: Stack) -> None:
        since = self._stacks.last_event(stack.id)
        self._stacks.delete(stack)
        again = self._command("up")
        self._finish(self._stacks.watch(stack, since, lambda _: None), since, again)

    def _left_behind(self) -> Iterator[dict[str, Any]]:
        """What earlier stacks of this name have left and is still there."""
        from cloudtrain.providers.aws.stored_data import exists

        for each in self._stacks.kept_resources():
            if (
                each["ResourceType"] not in DATA_TYPES
                or each["ResourceType"] == "AWS::Logs::LogGroup"
            ):
                # a policy goes with its bucket; the log group is the account's, with or without us
                continue
            if exists(self._aws, each["ResourceType"], each["PhysicalResourceId"]):
                yield each
