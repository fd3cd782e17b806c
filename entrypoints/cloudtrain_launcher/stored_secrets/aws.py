"""Secrets Manager and Parameter Store, read with the job's role and the image's boto3."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

PERMISSIONS = {
    "secretsmanager": "secretsmanager:GetSecretValue (and kms:Decrypt for a custom key)",
    "ssm": "ssm:GetParameter (and kms:Decrypt for its key)",
}
"""Store -> permissions that the role needs."""


def get_secret(label: str, store: str, name: str, environ: Mapping[str, str]) -> str:
    """Return the value of one secret. Raise RuntimeError with `label` and a hint.

    `store`: secretsmanager or ssm. `name`: the secret's name or ARN.
    """
    try:
        boto3, config, errors = (
            importlib.import_module(m) for m in ("boto3", "botocore.config", "botocore.exceptions")
        )
    except Exception as error:  # noqa: BLE001  (a broken installation fails in many ways)
        raise RuntimeError(
            f"{label} needs boto3, which cannot be imported here ({error}): "
            "add boto3 to the image, or use an image that has it"
        ) from None
    region = region_of(name, environ)
    timeouts = config.Config(
        connect_timeout=10, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 5}
    )
    label += f" in {region}" if region else ""
    try:
        client = boto3.client(store, region_name=region, config=timeouts)
        if store == "ssm":
            return str(client.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])
        answer: dict[str, Any] = client.get_secret_value(SecretId=name)
    except errors.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "an error without a code")
        raise RuntimeError(f"{label}: {code}; the job's role needs {PERMISSIONS[store]}") from None
    except (errors.BotoCoreError, ValueError) as error:
        raise RuntimeError(
            f"{label}: {type(error).__name__}: {error}; let the job reach {store} (no network"
            f" isolation; inside a VPC an endpoint or NAT) and a role with {PERMISSIONS[store]}"
        ) from None
    if "SecretString" not in answer:
        raise RuntimeError(
            f"{label} is binary, and a variable can only contain text: store it as text"
        )
    return str(answer["SecretString"])


def region_of(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the region of an ARN, the environment or the job; None if unknown.

    boto3 itself does not read AWS_REGION.
    """
    configured = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return (
        _region_of_arn(name)
        or configured
        or _region_of_arn(environ.get("TRAINING_JOB_ARN", ""))
        or None
    )


def _region_of_arn(text: str) -> str:
    parts = text.split(":")
    return parts[3] if parts[0] == "arn" and len(parts) > 5 else ""
