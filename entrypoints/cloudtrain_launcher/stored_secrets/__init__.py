"""Lookup of stored cloud secrets with the job's identity. Standard library only.

A reference names a secret: `secretsmanager:NAME`, `ssm:NAME` (NAME may be an ARN),
`keyvault:VAULT/NAME`, `keyvault:VAULT/NAME/VERSION`. A suffix `#KEY` selects one field of a JSON
object. Values are only returned, never logged, stored or passed as arguments.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cloudtrain_launcher.stored_secrets import aws as aws_secrets

if TYPE_CHECKING:
    from cloudtrain_launcher.stored_secrets.azure import KeyVault

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
            return aws_secrets.get_secret(label, store, name, self._environ)
        if self._vaults is None:
            # A late import: urllib is slow to import and most jobs do not need it.
            from cloudtrain_launcher.stored_secrets.azure import KeyVault

            self._vaults = KeyVault(self._environ)
        return self._vaults.get_secret(label, name)


def _resolve(variable: str, reference: str, stores: SecretStores) -> str:
    label = f"secret {variable} ({reference})"
    store, _, name_and_key = reference.partition(":")
    name, _, key = name_and_key.partition("#")
    if store not in (*aws_secrets.PERMISSIONS, "keyvault") or not name:
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
