"""The one call of CloudFormation that the client makes: DescribeStacks, after its API reference."""

from __future__ import annotations

import time
from typing import Any

import botocore.session

from tests.fakes.messages import ServiceError


class Stacks:
    """The stacks of an account. Tests change both mappings."""

    def __init__(self) -> None:
        self.model = botocore.session.get_session().get_service_model("cloudformation")
        self.outputs: dict[str, dict[str, str]] = {}
        """Name of a stack -> its outputs."""
        self.failed: dict[str, str] = {}
        """Name of a stack that was rolled back -> the reason."""

    def clear(self) -> None:
        """Forget all stacks."""
        self.outputs.clear()
        self.failed.clear()

    def call(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a call. Raise ServiceError if it is refused."""
        if operation != "DescribeStacks":
            message = f"Could not find operation {operation} for version 2010-05-15"
            raise ServiceError("InvalidAction", message)

        name = body["StackName"]
        stack = {"StackName": name, "CreationTime": time.time()}
        if name in self.failed:
            stack |= {"StackStatus": "ROLLBACK_COMPLETE", "StackStatusReason": self.failed[name]}
        elif name in self.outputs:
            outputs = [
                {"OutputKey": key, "OutputValue": value}
                for key, value in self.outputs[name].items()
            ]
            stack |= {"StackStatus": "CREATE_COMPLETE", "Outputs": outputs}
        else:
            raise ServiceError("ValidationError", f"Stack with id {name} does not exist")
        return {"Stacks": [stack]}
