"""Service Quotas of SageMaker, read-only: what an account has, and what all have.

After the API reference of Service Quotas (ListServiceQuotas, ListAWSDefaultServiceQuotas) and
"Amazon SageMaker AI endpoints and quotas" (AWS General Reference): the names of the quotas.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import Any

import botocore.session

from cloudtrain.errors import dotted
from cloudtrain.providers.aws.service_model import violations
from tests.fakes.aws.account import Account
from tests.fakes.messages import ServiceError

TARGET = "ServiceQuotasV20190624."
DEFAULT = 0
USUAL = 20
"""Quotas of other types: AWS's default, and this account's value."""
PAGE = 100
"""MaxResults is 1 to 100 (API reference)."""
NEVER_RAISED = "ml.m5."
"""Types whose quotas are AWS's own defaults here: ListServiceQuotas leaves these out."""


class Quotas:
    """The quotas of one account.

    `Account.quotas` holds the values that a test sets, by instance type.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self._model = botocore.session.get_session().get_service_model("service-quotas")

    def call(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One call; ServiceError is what it answers instead."""
        if operation not in ("ListServiceQuotas", "ListAWSDefaultServiceQuotas"):
            raise ServiceError(
                "UnknownOperationException", f"The requested operation {operation} is not known."
            )
        problems = violations(self._model.operation_model(operation).input_shape, dict(body))
        if problems:
            message = "; ".join(
                f"'{dotted(problem.path)}': {problem.message}" for problem in problems
            )
            raise ServiceError("IllegalArgumentException", message)
        if body["ServiceCode"] != "sagemaker":
            raise ServiceError(
                "NoSuchResourceException", "The request failed because the service does not exist."
            )
        start = int(body.get("NextToken", 0))
        size = int(body.get("MaxResults", PAGE))
        names = [
            name
            for name in _names()
            if operation != "ListServiceQuotas" or not name.startswith(NEVER_RAISED)
        ]
        page: dict[str, Any] = {
            "Quotas": [self._quota(name, operation) for name in names[start : start + size]]
        }
        return page | ({"NextToken": str(start + size)} if start + size < len(names) else {})

    def _quota(self, name: str, operation: str) -> dict[str, Any]:
        kind = name.partition(" ")[0]
        if "warm pool" in name:
            value = USUAL if self.account.has_warm_pools else 0
        elif operation == "ListServiceQuotas" or kind.startswith(NEVER_RAISED):
            value = self.account.quotas.get(kind, USUAL)
        else:
            value = DEFAULT
        code = f"L-{sha256(name.encode()).hexdigest()[:8].upper()}"
        return {
            "ServiceCode": "sagemaker",
            "QuotaCode": code,
            "QuotaName": name,
            "Value": float(value),
        }


@cache
def _names() -> tuple[str, ...]:
    model = botocore.session.get_session().get_service_model("sagemaker")
    usages = ("training job usage", "spot training job usage", "training warm pool usage")
    return tuple(
        f"{kind} for {usage}"
        for kind in model.shape_for("TrainingInstanceType").enum
        for usage in usages
    )
