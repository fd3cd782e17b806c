"""Lookup of stored cloud secrets with the job's identity. Standard library only.

A reference names a secret: `secretsmanager:NAME`, `ssm:NAME` (NAME may be an ARN),
`keyvault:VAULT/NAME`, `keyvault:VAULT/NAME/VERSION`. A suffix `#KEY` selects one field of a JSON
object. Values are only returned, never logged, stored or passed as arguments.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtrain_launcher.stored_secrets.azure import KeyVault

PERMISSIONS = {
    "secretsmanager": "secretsmanager:GetSecretValue (and kms:Decrypt for a custom key)",
    "ssm": "ssm:GetParameter (and kms:Decrypt for its key)",
}
"""Store -> permissions that the role needs."""

FORMS = "secretsmanager:NAME, ssm:NAME or keyvault:VAULT/NAME"


def look_up(
    secrets: Mapping[str, str],
    environ: Mapping[str, str],
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """Return the values of all variables missing in `environ`. Raise RuntimeError with a hint.

    `secrets`: variable -> reference. Return {} once `cancelled()` is true. A silent endpoint may
    take minutes, so a thread makes the requests and is abandoned on cancellation.
    """
    missing = {name: reference for name, reference in secrets.items() if name not in environ}
    if not missing:
        return {}
    values: dict[str, str] = {}
    errors: list[BaseException] = []

    def work() -> None:
        stores = SecretStores(environ)
        try:
            for name, reference in missing.items():
                values[name] = _resolve(name, reference, stores)
        except BaseException as error:  # noqa: BLE001  (raised below, in the thread that waits)
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True, name="secrets")
    thread.start()
    while thread.is_alive() and not cancelled():
        thread.join(0.1)
    if cancelled():
        return {}
    if errors:
        raise errors[0]
    return values


class SecretStores:
    """Stores that a reference can name."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._vaults: KeyVault | None = None

    def get_secret(self, label: str, store: str, name: str) -> str:
        """Return the value of one secret. Raise RuntimeError with `label` and a hint."""
        if store != "keyvault":
            return get_aws_secret(label, store, name, self._environ)
        if self._vaults is None:
            # A late import: urllib is slow to import and most jobs do not need it.
            from cloudtrain_launcher.stored_secrets.azure import KeyVault

            self._vaults = KeyVault(self._environ)
        return self._vaults.get_secret(label, name)


def _resolve(variable: str, reference: str, stores: SecretStores) -> str:
    label = f"secret {variable} ({reference})"
    store, _, name_and_key = reference.partition(":")
    name, _, key = name_and_key.partition("#")
    if store not in (*PERMISSIONS, "keyvault") or not name:
        raise RuntimeError(f"secret {variable}: cannot read {reference!r}; write {FORMS}")
    value = stores.get_secret(label, store, name)
    if key:
        value = _json_field(label, value, key)
    if "\0" in value:
        raise RuntimeError(
            f"{label} contains a zero byte, which an environment variable cannot contain"
        )
    return value


def _json_field(label: str, value: str, key: str) -> str:
    """Return one field of a JSON secret. Error messages contain none of its values."""
    try:
        document = json.loads(value)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise RuntimeError(f"{label} is not a JSON object: remove #{key} from the reference")
    if key not in document:
        raise RuntimeError(f"{label} has no field {key!r}")
    return document[key] if isinstance(document[key], str) else json.dumps(document[key])


def get_aws_secret(label: str, store: str, name: str, environ: Mapping[str, str]) -> str:
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
