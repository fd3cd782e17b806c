"""Secrets that AWS keeps for the job, looked up inside it with the job's role. Standard library only, but for boto3.

A reference says where one is kept: `secretsmanager:NAME`, `secretsmanager:NAME#KEY` for one field of a secret that is
a JSON object, `ssm:NAME`; an ARN may stand for the name. A value is returned and nothing else is done with it: it
is in no log, message, file or argument.
"""

from __future__ import annotations

import importlib
import json
import threading
from typing import Any, Callable, Mapping

PERMISSIONS = {
    "secretsmanager": "secretsmanager:GetSecretValue (and kms:Decrypt for a key of your own)",
    "ssm": "ssm:GetParameter (and kms:Decrypt for its key)",
}


def look_up(
    secrets: Mapping[str, str], environ: Mapping[str, str], until: Callable[[], bool] = lambda: False
) -> dict[str, str]:
    """The values of those variables that are not in the environment already; RuntimeError with the remedy.

    `until`: a reason to wait no longer, such as SIGTERM; nothing is returned then. An endpoint that does not answer
    keeps the SDK busy for minutes: so it works in a thread of its own, which may be left behind.
    """
    wanted = {name: reference for name, reference in secrets.items() if name not in environ}
    if not wanted:
        return {}
    found: dict[str, str] = {}
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for name, reference in wanted.items():
                found[name] = _value(name, reference, environ)
        except BaseException as error:  # noqa: BLE001  (raised below, where it is waited for)
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True, name="secrets")
    thread.start()
    while thread.is_alive() and not until():
        thread.join(0.1)
    if until():
        return {}
    if errors:
        raise errors[0]
    return found


def _value(variable: str, reference: str, environ: Mapping[str, str]) -> str:
    store, _, rest = reference.partition(":")
    if store not in PERMISSIONS or not rest:
        raise RuntimeError(f"secret {variable}: cannot read {reference!r}; write secretsmanager:NAME or ssm:NAME")
    name, _, key = rest.partition("#")
    value = _ask(variable, reference, store, name, _region(name, environ))
    if key:
        value = _field(f"secret {variable} ({reference})", value, key)
    if "\0" in value:
        raise RuntimeError(f"secret {variable} ({reference}) holds a zero byte: no environment variable can hold it")
    return value


def _ask(variable: str, reference: str, store: str, name: str, region: str | None) -> str:
    try:
        boto3, config, errors = (
            importlib.import_module(m) for m in ("boto3", "botocore.config", "botocore.exceptions")
        )
    except Exception as error:  # noqa: BLE001  (a broken installation fails in many ways)
        raise RuntimeError(
            f"secret {variable} is looked up with boto3, which cannot be imported here ({error}): "
            "add boto3 to the image, or take an image that has it"
        ) from None
    patience = config.Config(connect_timeout=10, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 5})
    what = f"secret {variable} ({reference})" + (f" in {region}" if region else "")
    try:
        client = boto3.client(store, region_name=region, config=patience)
        if store == "ssm":
            return str(client.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])
        answer: dict[str, Any] = client.get_secret_value(SecretId=name)
    except errors.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "an error without a code")
        raise RuntimeError(f"{what}: {code}; the job's role needs {PERMISSIONS[store]}") from None
    except (errors.BotoCoreError, ValueError) as error:
        raise RuntimeError(
            f"{what}: {type(error).__name__}: {error}; the job needs a way to {store} (no network isolation; inside a "
            f"VPC an endpoint or NAT) and a role with {PERMISSIONS[store]}"
        ) from None
    if "SecretString" not in answer:
        raise RuntimeError(f"{what} is binary, and a variable holds text: store it as text")
    return str(answer["SecretString"])


def _region(name: str, environ: Mapping[str, str]) -> str | None:
    """Where to ask: an ARN says it itself; boto3 alone would not look at AWS_REGION."""
    named = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return _of_arn(name) or named or _of_arn(environ.get("TRAINING_JOB_ARN", "")) or None


def _of_arn(text: str) -> str:
    parts = text.split(":")
    return parts[3] if parts[0] == "arn" and len(parts) > 5 else ""


def _field(what: str, value: str, key: str) -> str:
    """One field of a secret that is a JSON object. No message repeats any of it."""
    try:
        document = json.loads(value)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise RuntimeError(f"{what} is no JSON object: ask for it without #{key}")
    if key not in document:
        raise RuntimeError(f"{what} has no field {key!r}")
    return document[key] if isinstance(document[key], str) else json.dumps(document[key])
